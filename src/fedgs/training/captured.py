"""What the two GPU engines share: a round whose plan lies on the device, and one captured graph replayed T times.

The plan of a whole round is on the GPU before it begins: sample places, their shares (1/n^m, or 0 for a place nobody
fills) and learning rates. A counter on the GPU says which iteration it is, so that replaying the graph needs nothing
from the host. Inside the graph the factories run on parallel streams: their kernels are small and fill the GPU only
together.

Without a GPU the same step runs as it stands, one factory after the other: that is how the engines are tested.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgs.settings import TrainingSettings
from fedgs.training.engine import RoundResult, Tick
from fedgs.training.layout import Layout
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import ImageStore, gpu_precision

WARM_UP = 3
"""Steps before the capture, in which libraries choose their kernels and take their memory."""
Shape = tuple[int, int, int]
"""Iterations of a round, factories, samples of a super node."""


class Stations(ABC):
    """The networks of all stations, the plan of a round, and the step that a graph captures."""

    def __init__(self, store: ImageStore, shape: Shape, classes: int = 0) -> None:
        """``classes``: of the logits, where they are shifted (:mod:`fedgs.training.calibration`); 0: they are not."""
        iterations, factories, batch = self.shape = shape
        self.classes = classes
        device = store.device
        self._store = store
        self._losses = torch.zeros(iterations, factories, device=device)
        self._samples = torch.zeros(iterations, factories, batch, dtype=torch.int64, device=device)
        self._shares = torch.zeros(iterations, factories, batch, device=device)
        self._rates = torch.zeros(iterations, device=device)
        self._shifts = torch.zeros(iterations, factories, 1, classes, device=device) if classes else None
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)
        stream: Any = torch.cuda.Stream
        self._streams = [stream(device) for _ in range(factories)] if device.type == "cuda" else []
        self._graph: torch.cuda.CUDAGraph | None = None

    @abstractmethod
    def set(self, weights: Tensor, momentum: Tensor | None) -> None:
        """Start all networks from the flat ``weights``, their velocities from ``momentum`` or at rest."""

    @abstractmethod
    def descend(self, samples: Tensor, shares: Tensor, rate: Tensor, shift: Tensor | None) -> Tensor:
        """Make one step in every factory, (factories, batch) samples with their shares; return the losses.

        ``shift`` (factories, 1, classes) is added to the logits.
        """

    @abstractmethod
    def result(self) -> tuple[Tensor, Tensor | None]:
        """Return (factories, weights) and, with momentum, the velocities."""

    def load(self, plan: RoundPlan, rates: NDArray[np.float64]) -> None:
        """Put a round's plan where the step reads it."""
        counting = np.arange(plan.samples.shape[-1]) < plan.sizes[..., None]
        shares = counting / np.maximum(plan.totals, 1)[:, :, None, None]
        places = self._store.places(np.where(counting, plan.samples, 0))
        # Freshly made arrays: the copies below may run on while the next round's plan is made.
        self._samples.copy_(torch.from_numpy(places.reshape(self.shape)))
        self._shares.copy_(torch.from_numpy(shares.reshape(self.shape).astype(np.float32)))
        self._rates.copy_(torch.from_numpy(rates.astype(np.float32)))
        if self._shifts is not None and plan.shifts is not None:
            self._shifts.copy_(torch.from_numpy(plan.shifts[:, :, None]))
        self._iteration.zero_()

    def step(self) -> None:
        """Make the next iteration: replay the graph, or compute it where there is none."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._one_step()

    def losses(self) -> NDArray[np.float64]:
        """Return (iterations, factories) losses; waits for the GPU."""
        found: NDArray[np.float64] = self._losses.double().cpu().numpy()
        return found

    def side_by_side(self, work: Callable[[int], None]) -> None:
        """Do ``work`` for every factory, on a GPU each on a stream of its own."""
        if not self._streams:
            for factory in range(self.shape[1]):
                work(factory)
            return
        here = torch.cuda.current_stream(self._store.device)
        for factory, stream in enumerate(self._streams):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                work(factory)
        for stream in self._streams:
            here.wait_stream(stream)

    def capture(self) -> None:
        """Capture one iteration as a graph; does nothing without a GPU."""
        device = self._store.device
        if device.type != "cuda":
            return
        stream: Any = torch.cuda.Stream
        side = stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._one_step()
                self._iteration.zero_()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self._one_step()
        self._graph = graph

    def _one_step(self) -> None:
        samples, shares, rate = (
            table.index_select(0, self._iteration)[0] for table in (self._samples, self._shares, self._rates)
        )
        shift = None if self._shifts is None else self._shifts.index_select(0, self._iteration)[0]
        losses = self.descend(samples, shares, rate, shift)
        self._losses.index_copy_(0, self._iteration, losses[None])
        self._iteration.add_(1)


class CapturedEngine(ABC):
    """Trains all factories at once; what a network's step is, its children say."""

    def __init__(self, model: nn.Module, store: ImageStore, training: TrainingSettings) -> None:
        self.model, self.store, self.training = model, store, training
        self.layout = Layout.of(model)
        self._stations: Stations | None = None

    @abstractmethod
    def make_stations(self, shape: Shape, classes: int) -> Stations:
        """Return the stations for rounds of this shape; ``classes``: as for :class:`Stations`."""

    def train_round(
        self,
        weights: Tensor,
        plan: RoundPlan,
        rates: NDArray[np.float64],
        momentum: Tensor | None = None,
        tick: Tick | None = None,
    ) -> RoundResult:
        """Train a round; the first one, and one of another shape, captures the graph before."""
        iterations, factories, places = plan.devices.shape
        shape = (iterations, factories, places * plan.samples.shape[-1])
        with gpu_precision(self.training.precision) if self.store.device.type == "cuda" else nullcontext():
            classes = 0 if plan.shifts is None else plan.shifts.shape[-1]
            if self._stations is None or (self._stations.shape, self._stations.classes) != (shape, classes):
                self._stations = None  # its memory goes back first
                self._stations = self.make_stations(shape, classes)
                self._stations.capture()
            stations = self._stations
            stations.set(weights, momentum)
            stations.load(plan, rates)
            for _ in range(iterations):
                stations.step()
        losses = stations.losses()
        losses[plan.totals == 0] = np.nan
        if tick is not None:
            tick(float(iterations))
        trained, velocity = stations.result()
        return RoundResult(trained, losses, velocity)

    def close(self) -> None:
        """Give the memory back."""
        self._stations = None
