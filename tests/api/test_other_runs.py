"""No folder, sweep or comparison takes one run for another: other data, networks and objects of the same name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import fedgs
from fedgs.errors import CheckpointError, ConfigError
from tests.api import plant
from tests.api.test_run import Stop

QUICK: dict[str, Any] = {"rounds": 2, "iterations": 3, "batch_size": 5, "pick": 2, "device": "cpu"}
FEDERATION = plant.federation()
SOLVER = Callable[[fedgs.SelectionProblem, np.random.Generator], NDArray[np.int64]]


def dense(width: int = 8) -> fedgs.Task:
    """Return a task whose network the settings cannot tell from one of another width."""
    return fedgs.classification(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, width), nn.Linear(width, 3)), ["fine", "worn", "broken"]
    )


def weighted(weight: float) -> fedgs.Task:
    weights = torch.tensor([weight, 1.0, 1.0])

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, weight=weights, reduction="none")

    return replace(plant.signals(), loss=loss, path=None)


def first_from(place: int) -> SOLVER:
    def solver(problem: fedgs.SelectionProblem, generator: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(place, place + problem.pick)

    return solver


def scaled(federation: fedgs.Federation) -> fedgs.Federation:
    return replace(federation, inputs=2 * federation.inputs)


@pytest.mark.parametrize(
    ("first", "second", "error", "words"),
    [
        ({}, {"federation": scaled(FEDERATION)}, CheckpointError, "begun with other settings, data, network"),
        ({}, {"federation": plant.federation(seed=1)}, CheckpointError, "begun with other settings, data, network"),
        ({"task": dense(8)}, {"task": dense(9)}, CheckpointError, "network"),
        ({"task": weighted(1.0)}, {"task": weighted(9.0)}, ConfigError, "task.loss.weights was Tensor .* is Tensor"),
        ({"solver": first_from(0)}, {"solver": first_from(1)}, ConfigError, "place was 0 when the run began and is 1"),
    ],
    ids=["inputs", "split", "network", "loss", "solver"],
)  # fmt: skip
@pytest.mark.parametrize("stops", [False, True], ids=["finished", "interrupted"])
def test_a_folder_gives_back_no_other_run(
    first: dict[str, Any], second: dict[str, Any], error: type[Exception], words: str, stops: bool, tmp_path: Path
) -> None:
    usual: dict[str, Any] = {"task": plant.signals(), "federation": FEDERATION, "out": tmp_path / "run", **QUICK}
    begun = fedgs.run(**usual | first, callbacks=[Stop(1)] if stops else [])
    with pytest.raises(error, match=words):
        fedgs.run(**usual | second, resume=True)
    again = fedgs.run(**usual | first, resume=True)
    assert again.metrics[: len(begun.metrics)] == begun.metrics


def test_a_sweep_tells_objects_of_one_name_apart(tmp_path: Path) -> None:
    def sweep(**options: Any) -> list[dict[str, Any]]:
        grid = {"solver": [first_from(0), first_from(1), "random"]}
        rows: list[dict[str, Any]] = fedgs.sweep(plant.signals(), FEDERATION, grid, **QUICK, **options).to_dict(
            "records"
        )
        return rows

    rows = sweep()
    assert [row["solver"] for row in rows] == ["solver", "solver-2", "random"]
    assert len({row["loss"] for row in rows}) == 3
    for _ in range(2):  # made, then read
        assert [row["loss"] for row in sweep(out=tmp_path)] == [row["loss"] for row in rows]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "solver=random-seed=0", "solver=solver-2-seed=0", "solver=solver-seed=0"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ({}, {}, True),
        ({"task": dense(8)}, {"task": dense(9)}, False),
        ({}, {"federation": scaled(FEDERATION)}, False),
        ({"solver": first_from(0)}, {"solver": first_from(1)}, False),
        ({"task": weighted(1.0)}, {"task": weighted(9.0)}, False),
    ],
    ids=["seeds", "network", "inputs", "solver", "loss"],
)
def test_a_comparison_takes_only_seeds_together(
    first: dict[str, Any], second: dict[str, Any], together: bool, tmp_path: Path
) -> None:
    usual: dict[str, Any] = {"task": plant.signals(), "federation": FEDERATION, **QUICK, "rounds": 1}
    runs = [fedgs.run(**usual | own, seed=seed, out=tmp_path / str(seed)) for seed, own in enumerate((first, second))]
    for histories in (runs, [tmp_path / "0", tmp_path / "1"]):
        assert len(fedgs.compare(*histories).groups) == (1 if together else 2)
    # Names that somebody gives are kept apart, unless they count.
    assert list(fedgs.compare(*runs, names=["plain", "other"]).groups) == ["plain", "other"]
    assert len(fedgs.compare(*runs, names=["a-seed0", "a-seed1"]).groups) == (1 if together else 2)


def test_the_divergence_of_baselines_is_not_beside_that_of_teams() -> None:
    both = [fedgs.run(plant.signals(), FEDERATION, algorithm=name, **QUICK) for name in ("fedgs", "fedavg")]
    lines = str(fedgs.compare(*both)).splitlines()
    assert lines[2].split()[-1] == "–" != lines[1].split()[-1]
    assert str(fedgs.compare(both[1])).splitlines()[1].split()[-1] != "–"


def test_a_run_is_saved_over_another_if_asked(tmp_path: Path) -> None:
    first, second = (fedgs.run(plant.signals(), FEDERATION, **QUICK, seed=seed) for seed in range(2))
    first.save(tmp_path / "run")
    with pytest.raises(fedgs.FedgsError, match="exists already"):
        second.save(tmp_path / "run")
    second.save(tmp_path / "run", overwrite=True)
    assert fedgs.load_history(tmp_path / "run").metrics == second.metrics
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
