"""``fedgs run`` and ``fedgs resume`` in this process: two runs beside each other, pictures, names, the display."""

import io
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from fedgs.algorithms.run_state import RunState
from fedgs.cli.run_display import ProgressLines, RunDisplay
from fedgs.simulation.folder import create_run, write_lines
from tests.conftest import Here, error_of
from tests.simulation.small import is_one_line, small_config, small_settings

BASELINE_RUN = "baseline=['selection.solver=random']"
PICTURES = ("learning.png", "divergence.png", "selection.png", "confusion.png", "comparison.png")


@pytest.mark.usefixtures("unpainted")
def test_resume_finishes_both_runs_and_compares_them(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("run", *small_config(tmp_path, BASELINE_RUN), "--out", "a")[0] == 0
    first, second = tmp_path / "a", tmp_path / "a-random"
    whole = (second / "metrics.jsonl").read_bytes()
    nothing_left = (0, "a: is finished, there is nothing left to do\n", "")
    assert here("resume", "a") == nothing_left

    # The second was never begun; from within the folder of the first.
    shutil.rmtree(second)
    (first / "comparison.png").unlink()
    monkeypatch.chdir(first)
    code, out, err = here("resume", ".")
    assert (code, err) == (0, "")
    assert "a-random: accuracy" in out
    assert "picture: comparison.png" in out
    assert (second / "metrics.jsonl").read_bytes() == whole
    assert (first / "comparison.png").is_file()
    monkeypatch.chdir(tmp_path)

    # The first was killed, the second has its folder alone.
    (first / "summary.json").unlink()
    for path in second.iterdir():
        if path.name != "config.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    code, out, err = here("resume", "a")
    assert (code, err) == (0, "")
    assert [word in out for word in ("a: accuracy", "a-random: accuracy", "picture: a/comparison.png")] == [True] * 3
    assert (second / "metrics.jsonl").read_bytes() == whole
    assert here("resume", "a") == nothing_left

    # Pictures that are missing are drawn, and nothing else.
    for picture in PICTURES:
        (first / picture).unlink()
        code, out, err = here("resume", "a")
        assert (code, err) == (0, "")
        assert picture in out
        assert (first / picture).is_file()
        assert "nothing left to do" not in out

    # What a finished run has lost is said.
    (first / "confusion.json").rename(tmp_path / "kept.json")
    assert "a: confusion.json is missing; to have it again take summary.json away" in here("resume", "a").out
    (tmp_path / "kept.json").rename(first / "confusion.json")
    lines = (first / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    rounds = len(lines) - 1
    for left, words in (
        (lines[:-1], f"has {rounds - 1} of {rounds} rounds"),
        ([lines[0], *lines[2:]], f"has {rounds - 1} of {rounds} rounds"),
        ([lines[0], *lines[2:], lines[-1]], f"has {rounds - 1} of {rounds} rounds"),
        ([*lines[:-2], lines[-1], lines[-2]], f"its lines are not rounds 0 to {rounds}"),
        (lines[1:], f"its lines are not rounds 0 to {rounds}"),
    ):
        (first / "metrics.jsonl").write_bytes(b"".join(left))
        assert words in error_of(here("resume", "a"))
    (first / "metrics.jsonl").write_bytes(b"".join(lines))
    weights = load_file(first / "model.safetensors")
    save_file({name: value * torch.nan for name, value in weights.items()}, first / "model.safetensors")
    assert "cannot be read as a model (NaN or infinity)" in error_of(here("resume", "a"))
    save_file(weights, first / "model.safetensors")

    # Another run in the place of the second is left alone.
    shutil.rmtree(second)
    create_run(second, small_settings("seed=7"))
    assert "a-random: holds a run with other settings" in error_of(here("resume", "a"))


def shown(width: int, name: str = "a-run-with-a-name-much-too-long-for-a-terminal") -> list[str]:
    """Return the lines on a terminal of this width after a round."""
    file = io.StringIO()
    settings = small_settings("training.rounds=500", "training.iterations=50")
    display = RunDisplay(name, settings, Console(width=width, file=file, force_terminal=True))
    run = SimpleNamespace(state=RunState(250, torch.zeros(1), {}), score="accuracy")
    display.on_begin(run)  # type: ignore[arg-type]
    metrics = {"round": 251, "accuracy": 0.8123, "divergence": 0.03649}
    display.on_round(RunState(251, torch.zeros(1), {}, metrics=(metrics,)), metrics)
    display._progress.refresh()
    last = file.getvalue()
    display.on_stop(None)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).replace("\r", "\n").splitlines()
    return [line.rstrip() for line in lines if line.strip()]


def test_the_display_of_a_baseline_counts_rounds() -> None:
    file = io.StringIO()
    settings = small_settings("algorithm.name=fedavg", "training.rounds=4")
    display = RunDisplay("a", settings, Console(width=120, file=file, force_terminal=True))
    display.on_begin(SimpleNamespace(state=RunState(2, torch.zeros(1), {}), score="accuracy"))  # type: ignore[arg-type]
    display.on_tick(0.5)
    display._progress.refresh()
    assert " 62%" in file.getvalue()
    display.on_round(RunState(3, torch.zeros(1), {}), {"round": 3, "accuracy": 0.5})
    display._progress.refresh()
    display.on_stop(None)
    assert " 75%" in file.getvalue()
    assert "s/round" in file.getvalue()


def test_without_a_terminal_a_line_is_printed_now_and_then() -> None:
    file, settings = io.StringIO(), small_settings("training.rounds=500")
    console = Console(width=80, file=file, force_terminal=False)

    def wait_for(words: str) -> None:
        deadline = time.monotonic() + 30
        while words not in file.getvalue():
            assert time.monotonic() < deadline, file.getvalue()
            time.sleep(0.01)

    with ProgressLines(0.02, console) as lines:
        wait_for("fedgs: reads the data")
        display = RunDisplay("a", settings, console, lines)
        display.on_begin(SimpleNamespace(state=RunState(250, torch.zeros(1), {}), score="accuracy"))  # type: ignore[arg-type]
        wait_for("fedgs:  50% 0:00:00 left -:--:-- a the first round …\n")
        display.on_round(RunState(251, torch.zeros(1), {}), {"round": 251, "accuracy": 0.8123})
        wait_for(" a 251/500  acc 81.2%\n")
        display.on_stop(None)
        wait_for("fedgs: writes results and pictures …\n")


@pytest.mark.parametrize("width", [40, 60, 80, 99, 100, 120])
def test_the_display_is_one_line_that_begins_with_the_times(width: int) -> None:
    lines = shown(width, "[bold]")
    assert all(re.match(r" 50% \d:\d\d:\d\d left [-\d]:[-\d]{2}:[-\d]{2} \[bold\]", line) for line in lines)
    assert all(len(line) <= width for line in lines)
    assert ("━" in lines[-1]) == (width >= 100)
    if width == 80:
        line = shown(width)[-1]
        assert " a-run-with-a-na… " in line
        assert line.endswith("251/500  acc 81.2%  div 0.036")


@pytest.mark.usefixtures("unpainted")
def test_a_picture_that_cannot_be_written_is_one_line(runs: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(runs / "a-fedavg", tmp_path / "a")
    (tmp_path / "a/learning.png").mkdir()
    (tmp_path / "both.png").mkdir()
    for arguments in (["resume", "a"], ["compare", "a", "--out", "both.png"]):
        done = here(*arguments)
        assert done.code == 2
        assert is_one_line(done.err)
        assert ".png: cannot be written (Is a directory)" in done.err
    assert not [path for path in (tmp_path / "a").iterdir() if path.name.startswith(".")]


def test_a_picture_of_an_unknown_kind_is_one_line(runs: Path, here: Here) -> None:
    assert "both.word: no picture has the ending .word" in here("compare", runs / "a", "--out", "both.word").err


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        *(
            ("metrics.jsonl", line, "line 2 is not that of a round")
            for line in ("[1, 2]", "3", "null", "{}", '{"round": 1, "accuracy": 0.5}', '{"round": "1"}')
        ),
        *(
            ("clock.jsonl", line, "is broken")
            for line in (
                "half a line",
                "[]",
                '{"round": 1}',
                '{"round": 1, "elapsed": "1", "bytes": {}}',
                '{"round": 1, "elapsed": 1, "bytes": {"up": null}}',
            )
        ),
    ],
)
def test_lines_that_are_no_rounds_are_one_line(tmp_path: Path, here: Here, file: str, line: str, words: str) -> None:
    folder = tmp_path / "a"
    create_run(folder, small_settings())
    write_lines(folder / "metrics.jsonl", [{"round": 0, "accuracy": 0.5, "loss": 1.0}])
    write_lines(folder / "clock.jsonl", [{"round": 0, "elapsed": 0.0, "step_seconds": 1.0}])
    (folder / file).write_text((folder / file).read_text() + line + "\n")
    assert f"a/{file}: {words}" in error_of(here("compare", "a", "--out", "both.png"))


@pytest.mark.usefixtures("unpainted")
def test_runs_are_named_after_their_settings_file(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    options = small_config(tmp_path)
    (tmp_path / "config.toml").write_text("seed = 1\n")
    (tmp_path / "config.json").write_text('{"seed": 1}\n')
    assert here("run", "config.toml", *options)[0] == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["config"]
    assert here("run", "config.json", *options, "--out", "other")[0] == 0
    monkeypatch.chdir(tmp_path / "runs/config")
    assert here("run", "config.json")[0] == 0
    assert (tmp_path / "runs/config/runs/config-again/summary.json").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("selection.solver", "baseline selection.solver: expected key.path=value"),
        ("selection.solver=nobody", "baseline: selection.solver='nobody' is not a solver"),
        ("seed.low=3", "baseline seed.low=3: seed is a value, not a section"),
        ("data.name=nowhere", "baseline: nowhere: no such file or folder"),
        ("dynamics.trace=nowhere.csv", "baseline: nowhere.csv: the trace cannot be read"),
        ("server.rule=nobody", "baseline: "),
        ("training.engine=graph", "needs device='cuda'"),
        ('baseline=[\\"seed=3\\"]', "baseline: it sets baseline itself"),
    ],
)
def test_a_second_run_that_cannot_be_is_refused_before_the_first_begins(
    tmp_path: Path, here: Here, override: str, words: str
) -> None:
    options = small_config(tmp_path, f'baseline=["{override}"]')
    err = error_of(here("run", *options, "--out", "a", "--device", "cpu"))
    assert words in err
    assert err.startswith("fedgs: error: baseline")
    assert "--set" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.npz"]


@pytest.mark.usefixtures("unpainted")
def test_resume_looks_at_what_a_finished_run_left(tmp_path: Path, here: Here) -> None:
    assert here("run", *small_config(tmp_path), "--out", "a")[0] == 0
    for name, broken in (("model.safetensors", b"torn"), ("metrics.jsonl", b"")):
        file = tmp_path / "a" / name
        whole = file.read_bytes()
        file.write_bytes(broken)
        assert name in error_of(here("resume", "a"))
        file.write_bytes(whole)
    assert here("resume", "a").code == 0


def test_a_learning_rate_beyond_float32_is_refused(tmp_path: Path, here: Here) -> None:
    assert "training.learning_rate" in error_of(here("run", "--set", "training.learning_rate=1e300", "--out", "a"))
    assert not (tmp_path / "a").exists()
