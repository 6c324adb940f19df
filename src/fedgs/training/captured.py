"""What the GPU engines share: a round whose plan lies on the device, and one captured graph replayed T times.

The plan of a whole round is on the GPU before it begins: sample places, their shares (1/n^m, or 0 for a place nobody
fills) and learning rates. A counter on the GPU says which iteration it is, so that replaying the graph needs nothing
from the host. Inside the graph the factories run on parallel streams: their kernels are small and fill the GPU only
together.

A step that reads values of tensors in Python cannot be captured; it runs on the same streams as it stands, and a line
says so. Without a GPU the same step runs one factory after the other: that is how the engines are tested.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.training.engine import Engine, RoundInput, RoundResult, Setup
from fedgs.training.optimizers import Optimizer
from fedgs.training.precision import gpu_precision
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import SampleStore

WARM_UP = 3
"""Steps before the capture, in which libraries choose their kernels and take their memory."""
Shape = tuple[int, int, int, int]
"""Iterations of a round, factories, places of a super node, samples of a batch."""


class Stations(ABC):
    """The networks of all stations, the plan of a round, and the step that a graph captures."""

    def __init__(self, store: SampleStore, shape: Shape, classes: int = 0) -> None:
        """``classes``: of the outputs, where they are shifted (:mod:`fedgs.training.calibration`); 0: they are not."""
        iterations, factories, places, batch = self.shape = shape
        self.classes = classes
        device = store.device
        self._store = store
        self._losses = torch.zeros(iterations, factories, device=device)
        self._samples = torch.zeros(iterations, factories, places * batch, dtype=torch.int64, device=device)
        self._shares = torch.zeros(iterations, factories, places * batch, device=device)
        self._rates = torch.zeros(iterations, device=device)
        self._shifts = torch.zeros(iterations, factories, 1, classes, device=device) if classes else None
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)
        stream: Any = torch.cuda.Stream
        self._streams = [stream(device) for _ in range(factories)] if device.type == "cuda" else []
        self._graph: torch.cuda.CUDAGraph | None = None

    @abstractmethod
    def set(self, weights: Tensor, memory: dict[str, Tensor] | None) -> None:
        """Start all networks from the flat ``weights``, their optimisers from ``memory`` or at rest."""

    @abstractmethod
    def descend(self, samples: Tensor, shares: Tensor, rate: Tensor, shift: Tensor | None) -> Tensor:
        """Make one step in every factory, (factories, batch) samples with their shares; return the losses.

        ``shift`` (factories, 1, classes) is added to the outputs.
        """

    @abstractmethod
    def result(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (factories, size) and what the optimisers remember."""

    def generators(self) -> "list[torch.Generator]":
        """Return the generators that a step draws from, beside the device's own."""
        return []

    def load(self, plan: RoundPlan, rates: NDArray[np.float64]) -> None:
        """Put a round's plan where the step reads it."""
        counting = np.arange(plan.samples.shape[-1]) < plan.sizes[..., None]
        shares = counting / np.maximum(plan.totals, 1)[:, :, None, None]
        # Nobody's places are filled with training samples, no two alike: what no share counts must be finite all the
        # same, and statistics of equal samples may have no finite gradient.
        others = np.resize(self._store.task.federation.train.flat, plan.samples.shape[-1])
        places = self._store.places(np.where(counting, plan.samples, others))
        # Freshly made arrays: the copies below may run on while the next round's plan is made.
        self._samples.copy_(torch.from_numpy(places.reshape(self._samples.shape)))
        self._shares.copy_(torch.from_numpy(shares.reshape(self._shares.shape).astype(np.float32)))
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
        if self._store.device.type != "cuda":
            return

        def warm_up() -> None:
            self._one_step()
            self._iteration.zero_()

        self._graph = capture(self._store.device, self._one_step, warm_up, self.generators())

    def _one_step(self) -> None:
        samples, shares, rate = (
            table.index_select(0, self._iteration)[0] for table in (self._samples, self._shares, self._rates)
        )
        shift = None if self._shifts is None else self._shifts.index_select(0, self._iteration)[0]
        losses = self.descend(samples, shares, rate, shift)
        self._losses.index_copy_(0, self._iteration, losses[None])
        self._iteration.add_(1)


def capture(
    device: torch.device,
    step: Callable[[], None],
    warm_up: Callable[[], None],
    generators: "list[torch.Generator]",
    *,
    side: Any = None,
    pool: Any = None,
    warm_up_steps: int | None = None,
) -> torch.cuda.CUDAGraph:
    """Return a step as a CUDA graph, after a few steps in which libraries choose their kernels.

    ``side``, ``pool``: a stream and a memory pool to share with graphs that never run at the same time.
    """
    stream: Any = torch.cuda.Stream
    side = side or stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP if warm_up_steps is None else warm_up_steps):
            warm_up()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)  # type: ignore[no-untyped-call,unused-ignore]
    with torch.cuda.graph(graph, pool=pool, stream=side):
        step()
    return graph


class CapturedEngine(Engine):
    """Trains all factories at once; what a network's step is, its children say."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.layout = setup, setup.network.layout
        self.optimizer = Optimizer.of(setup.training)
        self._stations: Stations | None = None

    @abstractmethod
    def make_stations(self, shape: Shape, classes: int) -> Stations:
        """Return the stations for rounds of this shape; ``classes``: as for :class:`Stations`."""

    def run(self, given: RoundInput) -> RoundResult:
        """Train a round; the first one, and one of another shape, captures the graph before."""
        plan = given.plan
        iterations, factories, places = plan.devices.shape
        shape = (iterations, factories, places, plan.samples.shape[-1])
        precision = self.setup.training.precision
        on_gpu = self.setup.store.device.type == "cuda"
        with gpu_precision(precision) if on_gpu else nullcontext(), warnings.catch_warnings():
            # Recurrent layers advise to keep their weights in one piece, which they are not as functions of weights.
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
            classes = 0 if plan.shifts is None else plan.shifts.shape[-1]
            if self._stations is None or (self._stations.shape, self._stations.classes) != (shape, classes):
                self._stations = None  # its memory goes back first
                self._stations = self.make_stations(shape, classes)
                if not self.setup.traits.reads_values:
                    self._stations.set(given.weights, None)
                    self._stations.capture()
            stations = self._stations
            stations.set(given.weights, given.memory)
            stations.load(plan, given.rates)
            for _ in range(iterations):
                stations.step()
        losses = stations.losses()
        losses[plan.totals == 0] = np.nan
        given.tick(float(iterations))
        trained, kept = stations.result()
        return RoundResult(trained, losses, kept, given.local)

    def close(self) -> None:
        """Give the memory back."""
        self._stations = None
