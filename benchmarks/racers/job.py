"""What every racer shares: the job it is given, the clock of its rounds, and the test of its model.

A job is a folder with ``job.json`` (sizes), beside ``data.npz`` (samples, first weights). A racer writes
``result.json`` into it. This file needs numpy and torch alone: it also runs in the environment of another framework.
"""

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network import NETWORKS
from torch import Tensor, nn


class Job:
    """The work of a racer. Devices hold their samples as float32 images (1, 28, 28) from 0 to 1 and int64 classes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        sizes = json.loads((self.folder / "job.json").read_text(encoding="utf-8"))
        self.network: str = sizes["network"]
        self.classes: int = sizes["classes"]
        self.devices: int = sizes["devices"]
        self.rounds: int = sizes["rounds"]
        self.epochs: int = sizes["epochs"]
        self.batch: int = sizes["batch"]
        self.learning_rate: float = sizes["learning_rate"]
        self.processes: int = sizes["processes"]
        self.own_network: bool = sizes["own_network"]
        self.device: str = sizes["device"]
        self.arrays: dict[str, np.ndarray] = dict(np.load(self.folder.parent / "data.npz"))
        self._ends: list[float] = []
        if self.device == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 for all, as fedgs has it by default

    def model(self) -> nn.Module:
        """Return the network with the first weights, the same for every racer."""
        model = NETWORKS[self.network](self.classes)
        weights = {name: torch.from_numpy(self.arrays[f"weights/{name}"]) for name in model.state_dict()}
        model.load_state_dict(weights)
        return model

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the images and classes a client trains on."""
        own = self.arrays["clients"] == client
        return _tensors(self.arrays["inputs"][own], self.arrays["labels"][own])

    def start(self) -> None:
        """Say that the first round begins."""
        self._ends = [self._now()]

    def end_round(self) -> None:
        """Say that a round is over."""
        self._ends.append(self._now())

    def drop_from_last(self, seconds: float) -> None:
        """Take so many seconds from the last round: work that the others do not do within a round."""
        self._ends[-1] -= seconds

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def finish(self, model: nn.Module, packages: list[str], how: str) -> None:
        """Test the model and write what came out."""
        result = {
            "seconds": np.diff(self._ends).tolist(),
            "accuracy": self.accuracy(model),
            "how": how,
            "versions": {"python": platform.python_version(), **installed([*packages, "torch", "numpy"])},
        }
        (self.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Return the share of the test samples of all clients that the model gets right."""
        images, labels = _tensors(self.arrays["test_inputs"], self.arrays["test_labels"])
        model = model.to("cpu").eval()
        right = [int((model(images[place : place + 512]).argmax(1) == labels[place : place + 512]).sum())
                 for place in range(0, len(labels), 512)]  # fmt: skip
        return sum(right) / len(labels)


@lru_cache(maxsize=1)
def job_in(folder: str) -> Job:
    """Return the job of a folder, read once in each process."""
    return Job(folder)


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(images[:, None].astype(np.float32) / 255), torch.from_numpy(labels.astype(np.int64))


def shuffled(images: Tensor, labels: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield an epoch of mini-batches in random order; the last one may be short."""
    order = torch.randperm(len(labels), device=labels.device)
    for place in range(0, len(labels), batch):
        chosen = order[place : place + batch]
        yield images[chosen], labels[chosen]


def installed(packages: list[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def mend_torchvision() -> None:
    """Let torchvision be imported where its compiled part does not fit this build of torch.

    PyPI's torchvision beside a CPU build of torch is such a case. Its import asks for two operators that are missing
    then; they are declared here. No racer uses them.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float limit) -> Tensor")
    except ImportError:
        return


def run(race: Callable[[Job], Any]) -> None:
    """Race the job named on the command line; a failure ends in one line that says what it was."""
    try:
        race(job_in(sys.argv[1]))
    except Exception as error:
        import traceback

        traceback.print_exc()
        said = str(error).strip().splitlines() or ["no detail"]
        (Path(sys.argv[1]) / "failure.txt").write_text(f"{type(error).__name__}: {said[0]}", encoding="utf-8")
        sys.exit(1)
