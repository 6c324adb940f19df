"""The race against other frameworks (benchmarks/race.py): with fedgs alone, at a tiny size."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedgs.tasks.cnn import build_model

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import race

    return race


def interpreter(folder: Path, name: str, finds: bool) -> Path:
    """Return a program that stands for the Python of an environment: it finds a framework, or not, and always fails."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then exit {0 if finds else 1}; fi\necho "no such luck" >&2\nexit 3\n'
    )
    path.chmod(0o755)
    return path


def test_race(race: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    numbers, picture = tmp_path / "race.json", tmp_path / "race.png"
    broken, empty = interpreter(tmp_path, "broken", finds=True), interpreter(tmp_path, "empty", finds=False)
    sizes = {"devices": 3, "samples": 20, "epochs": 1, "rounds": 2, "repeats": 1, "processes": 1}
    options = [f"--{name}={value}" for name, value in sizes.items()]
    options += ["--only", "pfl", "fluke", f"--python=pfl={broken}", f"--python=fluke={empty}"]
    monkeypatch.setattr(sys, "argv", ["race.py", *options, f"--json={numbers}", f"--plot={picture}"])
    race.main()
    fedgs, own, pfl, fluke = json.loads(numbers.read_text())["entries"]
    assert fedgs["ratio"] == 1
    assert fedgs["accuracies"] == own["accuracies"]  # the same network from the same weights
    for entry in (fedgs, own):
        assert len(entry["runs"][0]) == 2
        assert min(entry["runs"][0]) > 0
        assert entry["versions"]["fedgs"]
    assert "no such luck" in pfl["problem"]
    assert "pip install fluke-fl" in fluke["problem"]
    assert picture.stat().st_size > 1000
    printed = capsys.readouterr().out
    assert "no such luck" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--device", "tpu"], "--device"),
        (["--rounds", "1"], "--rounds"),
        (["--python", "pfl"], "NAME=PATH"),
        (["--python", "pfl=/nowhere/python"], "/nowhere/python"),
        (["--json", "/nowhere/race.json"], "/nowhere"),
    ],
)
def test_bad_arguments_end_in_one_line(
    arguments: list[str],
    key: str,
    race: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["race.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        race.in_one_line(race.main)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert key in said


@pytest.mark.parametrize("name", ["paper", "compact"])
def test_the_networks_of_the_race_are_those_of_fedgs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "racers"))
    import network

    here = build_model(name, 62)
    there = network.NETWORKS[name](62)
    there.load_state_dict(here.state_dict())
    images = torch.rand(3, 1, 28, 28)
    assert torch.equal(here(images), there(images))
