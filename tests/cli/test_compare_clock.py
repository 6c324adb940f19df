"""The table of simulated time: whole in 80 columns, honest about what its times rest on."""

import json
import shutil
from pathlib import Path

import pytest

from fedgs.report.units import readable_duration
from tests.conftest import Here, error_of
from tests.simulation.small import small_config


def table(out: str) -> list[str]:
    """The lines of the second table and its notes."""
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("simulated "))
    return lines[first:]


@pytest.mark.usefixtures("unpainted")
def test_fedgs_and_fedavg_beside_each_other(
    runs: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "a-fedavg"):
        shutil.copytree(runs / name, tmp_path / name)
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["clock"]["measured"] == []
    assert sum(summary["traffic"].values()) > 0
    (tmp_path / "file").touch()
    err = error_of(here("compare", "a", "a-fedavg", "--out", "file/both.png"))
    assert "--out: file: cannot make this folder" in err
    assert err.count("choose another") == 1
    code, out, err = here("compare", "a", "a-fedavg", "--out", "both.png")
    assert (code, err) == (0, "")
    heads, _, _, fedgs, fedavg, note, *_ = table(out)
    assert heads.split() == ["simulated", "time", "device–", "station–"]
    assert fedgs.split()[0] == "a"
    assert fedavg.split()[0] == "a-fedavg"
    assert note == "clock: 5g, a local step takes 500 ms"
    # Both links of FedAvg carry the same; FedGS sends less to the top server than inside.
    cells = fedavg.split()
    assert cells[-8:-4] == cells[-4:]
    line = json.loads((tmp_path / "a/clock.jsonl").read_text().splitlines()[-1])
    assert line["bytes"]["device_station_up"] == 12 * line["bytes"]["station_top_up"]

    # Long names, long times, several targets: whole at 80 columns.
    monkeypatch.setenv("COLUMNS", "80")
    long = "a-run-with-a-name-that-no-table-has-room-for"
    options = ("clock.step_seconds=12345.6", "clock.external.up.rate=7", "eval.target=0.999", "seed=2")
    code, out, err = here("run", *small_config(tmp_path, *options), "--out", long)
    assert (code, err) == (0, "")
    summary = json.loads((tmp_path / long / "summary.json").read_text())
    assert f"{long}: simulated {readable_duration(summary['clock']['seconds'])} on 5g; device–station " in out
    code, out, err = here("compare", "a", "a-fedavg", long, "--out", "all.png")
    assert (code, err) == (0, "")
    rows = table(out)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in "".join(rows).replace("…", "", 1)  # only the name is cut, at its front
    assert any(row.startswith("…") and row.rstrip().endswith("×") for row in rows)
    assert "the settings of the clocks differ" in " ".join(rows)

    # Runs without a clock are compared all the same.
    (tmp_path / "a-fedavg/clock.jsonl").unlink()
    code, out, err = here("compare", "a", "a-fedavg", "--out", "both.png")
    assert (code, err) == (0, "")
    assert "a-fedavg: has no clock.jsonl" in out
    (tmp_path / "a/clock.jsonl").unlink()
    code, out, err = here("compare", "a", "a-fedavg", "--out", "both.png")
    assert (code, err) == (0, "")
    assert "simulated" not in out


@pytest.mark.usefixtures("unpainted")
def test_seeds_are_one_row_and_the_picture_comes_first(
    runs: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: final accuracies 0.5 and 0.7 are 60 ± 14.14 %, rounds to the target 2 and 3 are 2.5 ± 0.7."""
    for number, (final, at) in enumerate([(0.5, 2), (0.7, 3)]):
        folder = tmp_path / f"a-seed{number}"
        shutil.copytree(runs / "a", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"seed": number, "eval": {"target": 0.4}}))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row |= {"accuracy": final if row["round"] >= at else 0.1, "loss": 1.0 + number}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(runs / "a-fedavg", tmp_path / "a-fedavg")
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        code, out, err = here("compare", "a-seed0", "a-seed1", "a-fedavg", "--out", "new/folder/all.png")
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= width
        row = next(line.split() for line in out.splitlines() if line.startswith("a "))
        scores = ["60.00±14.14%"] * (1 if width == 80 else 2)
        assert row[1 : 5 + len(scores)] == ["fedgs", "gbp-cs", "3", "×2", *scores]
        assert row[-4:-1] == ["1.500±0.707", "2.5±0.71", "(40%)"]
        assert "×N: mean ± standard deviation of N seeds" in out
        assert (tmp_path / "new/folder/all.png").is_file()
    seen = []
    monkeypatch.setattr("rich.console.Console.print", lambda *_, **__: seen.append((tmp_path / "b.png").is_file()))
    assert here("compare", "a-fedavg", "--out", "b.png").code == 0
    assert all(seen)
    assert seen


@pytest.mark.usefixtures("unpainted")
def test_long_names_that_end_alike_can_be_told_apart(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of a sweep differ at their front."""
    monkeypatch.setenv("COLUMNS", "80")
    assert here("run", *small_config(tmp_path), "--out", "a")[0] == 0
    names = [f"learning_rate={rate}-weight_decay=0.0001-seed=0" for rate in ("0.25", "0.75")]
    for name in names:
        shutil.copytree(tmp_path / "a", tmp_path / name)
    code, out, err = here("compare", *names, "--out", "all.png")
    assert (code, err) == (0, "")
    for table in out.split("simulated", 1):
        first = "".join(line.partition(" ")[0] for line in table.splitlines())
        assert [name in first for name in names] == [True, True]
        assert max(map(len, table.splitlines())) <= 80
