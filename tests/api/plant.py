"""A user's own package, to be imported by name: network, task, algorithm, server rule, solver and source."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedgs
from fedgs.algorithms import Upload
from fedgs.deploy.sources import Batch
from fedgs.training.network import Network
from fedgs.training.objective import Batch as TrainingBatch
from fedgs.training.objective import Objective, Sent

CLASSES = 3


class Net(nn.Module):
    """A 1-D CNN with batch normalisation."""

    def __init__(self, channels: int = 2, width: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(channels, width, 5, 2, bias=False), nn.BatchNorm1d(width), nn.Tanh())
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, signals: Tensor) -> Tensor:
        outputs: Tensor = self.fc(self.body(signals).mean(-1))
        return outputs


def signals() -> fedgs.Task:
    """Return the task of this plant."""
    return fedgs.classification(Net, ["fine", "worn", "broken"], head="fc", features="body")


ready = signals()


def local_norms() -> fedgs.Task:
    """Return the same with statistics that stay on the devices."""
    return fedgs.classification(Net, CLASSES, keep_local=["body.1.*"])


def wear() -> fedgs.Task:
    """Return a regression with known edges of its bins."""
    return fedgs.regression(lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 1)), bins=3, edges=[0.7, 1.4])


not_a_task = 3


def double(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of one's own."""
    return 2 * nn.functional.cross_entropy(outputs, targets, reduction="none")


def halves(targets: Any) -> Any:
    """Balance two bins."""
    return (np.asarray(targets) > 0).astype(int)


@dataclass(frozen=True)
class Shrinking(fedgs.Baseline):
    """FedAvg whose clients also shrink their weights: an algorithm of one's own overrides one method."""

    strength: float = 0.01

    def objective(self, network: Network, weights: Any, sent: Sent, batch: TrainingBatch) -> tuple[Tensor, Any]:
        loss, outputs = super().objective(network, weights, sent, batch)
        size = sum(weight.square().flatten(1).sum(1) for name, weight in weights.items() if name.endswith("fc.weight"))
        return loss + self.strength * size, outputs


@dataclass(frozen=True)
class Pulled(Objective):
    """An objective of one's own for FedGS."""

    pull = 0.5


@dataclass(frozen=True)
class Middle:
    """A server rule of one's own: the median of the uploads."""

    scale: float = 1.0

    def init(self, weights: Any) -> dict[str, Any]:
        return {"round": 0}

    def update(self, state: Any, weights: Any, uploads: list[Upload]) -> Any:
        new = {}
        for name, own in weights.items():
            middle = torch.stack([upload.weights[name] for upload in uploads]).median(0).values
            new[name] = own + self.scale * (middle - own)
        return new, {"round": state["round"] + 1}


def first_ones(problem: fedgs.SelectionProblem, generator: np.random.Generator, skip: int = 0) -> Any:
    """A solver of one's own: the first devices there are."""
    return np.arange(skip, skip + problem.pick)


def wrong_ones(problem: fedgs.SelectionProblem, generator: np.random.Generator) -> Any:
    return np.zeros(problem.pick, int)


def failing(problem: fedgs.SelectionProblem, generator: np.random.Generator) -> Any:
    raise ZeroDivisionError("two\nlines")


def arrays(seed: int = 0, samples: int = 180) -> tuple[Any, Any, Any]:
    """Return signals, classes and machines."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, CLASSES, samples)
    time = np.arange(16) / 16
    waves = np.sin(2 * np.pi * (1 + 2 * labels[:, None, None]) * time + draws.uniform(0, 6, (samples, 2, 1)))
    return (waves + 0.3 * draws.normal(size=waves.shape)).astype(np.float32), labels, np.arange(samples) % 12


def federation(seed: int = 0) -> fedgs.Federation:
    waves, labels, machines = arrays(seed)
    return fedgs.Federation.from_arrays(
        waves, labels, devices=machines, factories=3, classes=["fine", "worn", "broken"]
    )


class Stream:
    """A source of one's own: new waves for ever."""

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        seed = 0
        while True:
            waves, labels, _ = arrays(seed, size)
            seed += 1
            yield Batch(waves, labels)


class Odd:
    """A server rule that fails in one way or another."""

    def __init__(self, how: str) -> None:
        self.how = how

    def init(self, weights: Any) -> Any:
        return 3 if self.how == "init" else {"mean": torch.zeros(2)} if self.how == "tensor" else {}

    def update(self, state: Any, weights: Any, uploads: Any) -> Any:
        if self.how == "update":
            raise KeyError("momentum")
        return {name: weight.cpu().numpy() for name, weight in weights.items()}, state


class Stumbling(fedgs.Baseline):
    """A baseline whose objective fails."""

    def objective(self, network: Any, weights: Any, sent: Any, batch: Any) -> Any:
        raise ValueError("a stone")


class Forgetful(fedgs.Baseline):
    """A baseline whose server fails."""

    def update(self, state: Any, weights: Any, uploads: Any) -> Any:
        raise KeyError("momentum")
