"""A run as a function from state to state, one round at a time: FedGS (Algorithm 1), or a flat approach.

    with Simulator(settings, federation) as simulator:
        state = simulator.begin()
        for state in simulator.rounds(state):
            print(state.metrics[-1])

The random numbers a round uses follow from (seed, purpose, iteration, factory); the result depends on settings and data
alone: not on threads, on how far the selection runs ahead, or on how often the run was interrupted.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgs.algorithms.algorithm import Method
from fedgs.algorithms.client_server import FlatRounds
from fedgs.algorithms.fedgs import GroupedRounds
from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.errors import DeviceError, TrainingError
from fedgs.settings import Settings
from fedgs.simulation.evaluate import Evaluation, Evaluator
from fedgs.simulation.prefetch import RunAhead
from fedgs.simulation.pretraining import PURPOSE, pretraining_of
from fedgs.simulation.process_group import World
from fedgs.simulation.run_clock import RunClock
from fedgs.training.engine import Tick
from fedgs.training.store import ImageStore


@dataclass
class Timing:
    """Where the time of the last round went, in seconds; never part of the state."""

    total: float = 0.0
    training: float = 0.0
    evaluation: float = 0.0
    waiting: float = 0.0
    """For the selection."""


class Simulator:
    """Runs a federation; a context manager, for it owns threads and memory."""

    def __init__(
        self,
        settings: Settings,
        federation: Federation,
        device: str | torch.device = "cpu",
        world: World | None = None,
        *,
        ahead: int = 3,
        tick: Tick | None = None,
        purpose: str = "",
    ) -> None:
        """``ahead``: how many rounds the plan may be ahead.

        ``tick`` is told of iterations as they are done (of a flat round: of shares of it). ``purpose`` names other
        random streams for the participants of a flat approach: those of pre-training.
        """
        self.settings, self.federation, self.device = settings, federation, torch.device(device)
        self.world = world or World()
        self.timing = Timing()
        self.last_evaluation: Evaluation | None = None
        self._ahead, self._tick = ahead, tick
        store = ImageStore(federation, self.device)
        self.method: Method = (
            FlatRounds(settings, federation, store, self.world, purpose)
            if settings.algorithm.flat
            else GroupedRounds(settings, federation, store, self.world)
        )
        self.layout = self.method.layout
        self._clock = RunClock(settings, federation, self.method)
        self._evaluator = Evaluator(
            federation, store, self.world, settings.training.precision, weighting=settings.eval.weighting
        )

    def __enter__(self) -> "Simulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.method.close()

    def begin(self, before: RunState | None = None) -> RunState:
        """Return the state before the first round, its model already tested.

        ``before`` is the last state of the pre-training, for an approach that has one; without it the pre-training is
        done here, in memory.
        """
        began = time.perf_counter()
        wanted = pretraining_of(self.settings)
        if before is None and wanted is not None:
            with Simulator(wanted, self.federation, self.device, self.world, purpose=PURPOSE) as first:
                for state in first.rounds(first.begin()):
                    before = state
        weights = self.method.first_weights(None if before is None else before.tested)
        state = RunState(
            round=0,
            weights=weights,
            plan=self.method.plan().state_dict(),
            server=self.method.begin(weights),
            average=weights.clone() if self.settings.eval.ema else None,
        )
        trained = time.perf_counter()
        line = {"round": 0, **self._tested_line(state)}
        ended = time.perf_counter()
        self.timing = Timing(total=ended - began, training=trained - began, evaluation=ended - trained)
        return replace(state, metrics=(line,), clock=(self._clock.first_line(before.clock if before else ()),))

    def rounds(self, state: RunState) -> Iterator[RunState]:
        """Yield the state after each round, up to the last one of the settings."""
        plan = self.method.plan()
        plan.load_state(state.plan)
        state = self._onto_device(state)
        self._clock.go_on(state.clock)
        with RunAhead(plan, self.settings.training.rounds, self._ahead) as plans:
            waited = 0.0
            began = time.perf_counter()
            for round_plan in plans:
                self.timing = Timing(waiting=plans.waited - waited)
                waited = plans.waited
                state = self.play(state, round_plan)
                self.timing.total = time.perf_counter() - began
                yield state
                began = time.perf_counter()

    def play(self, state: RunState, plan: Any) -> RunState:
        """Return the state after one round: training, what the server makes of it, test."""
        began = time.perf_counter()
        outcome = self.method.play(state, plan, self._tick)
        words = self.method.server_words
        if not bool(torch.isfinite(outcome.weights).all()):
            raise TrainingError(
                f"round {plan.round}: the global model is not finite after {words}; lower its server_lr"
            )
        self.timing.training = time.perf_counter() - began
        new = RunState(
            round=plan.round,
            weights=outcome.weights,
            plan=plan.state,
            server=outcome.server,
            momentum=outcome.momentum,
            average=self._averaged(state.average, outcome.weights, plan.round),
        )
        line: dict[str, Any] = {"round": plan.round, **outcome.line}
        if plan.round % self.settings.eval.every == 0 or plan.round == self.settings.training.rounds:
            began = time.perf_counter()
            line |= self._tested_line(new)
            self.timing.evaluation = time.perf_counter() - began
            if not np.isfinite(line["loss"]):
                raise TrainingError(
                    f"round {plan.round}: the test loss is not a finite number ({words}, learning rate "
                    f"{outcome.rate:g}); the weights have grown beyond measure, lower the rates"
                )
        return replace(new, metrics=(*state.metrics, line), clock=(*state.clock, self._clock.line(state.clock, plan)))

    def evaluate(self, state: RunState) -> Evaluation:
        """Test the model of a state: the averaged one where there is one."""
        return self._evaluations(state)[""]

    def gathered(self, state: RunState) -> RunState:
        """Return the state with the momentum of all processes' stations: what a checkpoint holds."""
        if state.momentum is None:
            return state
        return replace(state, momentum=self.world.gather_rows(state.momentum, self.federation.factories))

    def _onto_device(self, state: RunState) -> RunState:
        momentum, average = (
            None if tensor is None else tensor.to(self.device) for tensor in (state.momentum, state.average)
        )
        return replace(state, weights=state.weights.to(self.device), momentum=momentum, average=average)

    def _averaged(self, average: Tensor | None, weights: Tensor, round_number: int) -> Tensor | None:
        if average is None:
            return None
        # A short memory at first, or the untrained model would linger.
        decay = min(self.settings.eval.ema, round_number / (round_number + 9))
        return average * decay + weights * (1 - decay)

    def _evaluations(self, state: RunState) -> dict[str, Evaluation]:
        forwards = self.method.forwards(state.tested.to(self.device), state.server)
        return {name: self._evaluator.evaluate(forward) for name, forward in forwards.items()}

    def _tested_line(self, state: RunState) -> dict[str, Any]:
        others = self._evaluations(state)
        found = self.last_evaluation = others.pop("")
        low, middle, high = found.percentiles
        line: dict[str, Any] = {
            "accuracy": found.accuracy,
            "loss": found.loss,
            "factories": list(found.factories),
            "percentiles": {"10": low, "50": middle, "90": high},
        }
        for name, other in others.items():
            line |= {f"accuracy_{name}": other.accuracy, f"loss_{name}": other.loss}
        return line


def pick_device(name: str) -> torch.device:
    """Return the torch device of ``auto``, ``cpu`` or ``cuda``; under torchrun each process has a GPU of its own."""
    import os

    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"--device {name}: choose auto, cpu or cuda")
    there = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not there:
        raise DeviceError("--device cuda: torch finds no CUDA GPU on this machine; use --device cpu or auto")
    if not there:
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
