"""The table of simulated time: whole in 80 columns, honest about what its times rest on."""

import json
import shutil
from pathlib import Path

import pytest

from fedgs.report.units import readable_duration
from tests.conftest import Here
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
