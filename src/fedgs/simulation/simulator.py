"""A run as a function from state to state, one round at a time: FedGS (Algorithm 1), or a baseline.

    with Simulator(settings, federation) as simulator:
        state = simulator.begin()
        for state in simulator.rounds(state):
            print(state.metrics[-1])

The random numbers a round uses follow from (seed, purpose, iteration, factory); the result depends on settings and data
alone: not on threads, on how far the selection runs ahead, or on how often the run was interrupted.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgs.algorithms.algorithm import Context, Rounds
from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.errors import DataError, DeviceError, TrainingError
from fedgs.settings import Settings
from fedgs.simulation.components import PURPOSE, Components, pretraining_of, resolve
from fedgs.simulation.evaluate import Evaluation, Evaluator
from fedgs.simulation.feedback import ask, check_learns
from fedgs.simulation.memory import resident_megabytes
from fedgs.simulation.participants import ParticipantPlan
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.run_clock import RunClock
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.summary import ONE_CLASS_TESTS, one_class_since, one_class_warning, score_facts
from fedgs.simulation.warm_start import warm_start
from fedgs.tasks.bind import BoundTask, bind
from fedgs.tasks.metrics import class_metrics
from fedgs.training.engine import Note, Tick
from fedgs.training.probe import explain_loss
from fedgs.training.store import SampleStore


@dataclass
class Timing:
    """Where the time of the last round went, in seconds; never part of the state."""

    total: float = 0.0
    training: float = 0.0
    evaluation: float = 0.0
    waiting: float = 0.0
    """For the selection."""

    def row(self, round_number: int) -> dict[str, Any]:
        """Return a line of ``timings.jsonl``."""
        return {
            "round": round_number,
            "seconds": round(self.total, 4),
            "training": round(self.training, 4),
            "evaluation": round(self.evaluation, 4),
            "waiting": round(self.waiting, 4),
            "megabytes": resident_megabytes(),
        }


class Simulator:
    """Runs a federation; a context manager, for it owns threads and memory."""

    def __init__(
        self,
        settings: Settings,
        federation: Federation,
        device: str | torch.device = "cpu",
        group: ProcessGroup | None = None,
        *,
        components: Components | None = None,
        ahead: int = 3,
        tick: Tick | None = None,
        note: Note = lambda line: None,
        purpose: str = "",
    ) -> None:
        """``components``: task, algorithm and solver as objects; None: those the settings name.

        ``ahead``: how many rounds the plan may be ahead. ``tick`` is called with iterations as they are done (of a
        baseline's round: with shares of it), ``note`` with lines for the user. ``purpose`` names other random streams
        for the participants of a baseline: those of pre-training.
        """
        self.device = torch.device(device)
        self.group = group or ProcessGroup()
        self.timing = Timing()
        self.last_evaluation: Evaluation | None = None
        self.last_plan: Any = None
        """Who took part in the last round."""
        self._ahead, self._tick, self._note = ahead, tick, note
        if components is None:
            settings, components = resolve(settings, classes=len(federation.classes))
        self.settings, self.components = settings, components
        self.task: BoundTask = bind(components.task, federation, settings.seed, settings.data.normalise)
        self.federation = self.task.federation
        self._store = store = SampleStore(self.task, self.device)
        self.kind = components.algorithm.kind
        self.rounds_of: Rounds = components.algorithm.bind(Context(settings, self.task, store, self.group, note))
        self.layout = self.rounds_of.layout
        smallest = self.rounds_of.smallest_batch
        if settings.training.batch_size < smallest:
            raise DataError(f"training.batch_size={settings.training.batch_size}: this network needs {smallest}")
        self.plan: Any
        """Teams of stations, or participants of rounds."""
        if self.kind == "baseline":
            self.plan = ParticipantPlan(self.federation, settings, purpose, smallest)
        else:
            self.plan = SelectionPlan(self.federation, settings, solver=components.solver, smallest_batch=smallest)
        check_learns(self.plan.lessons.kind, self.task)
        self._first_plan = self.plan.state_dict()
        self._clock = RunClock(settings, self.task, components.algorithm, self.layout)
        self._evaluator = Evaluator(
            self.task,
            store,
            self.group,
            settings.training.precision,
            weighting=settings.eval.weighting,
            by_device=bool(self.layout.local),
        )

    def __enter__(self) -> "Simulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.rounds_of.close()

    def begin(self, before: RunState | None = None) -> RunState:
        """Return the state before the first round, its model already tested.

        ``before`` is the last state of the pre-training, for an algorithm that has one; without it the pre-training is
        done here, in memory.
        """
        began = time.perf_counter()
        if self.settings.init is not None:
            warm_start(self.task, self.settings.init)
        wanted = pretraining_of(self.settings, self.components)
        if before is None and wanted is not None:
            with Simulator(
                wanted[0], self.federation, self.device, self.group, components=wanted[1], purpose=PURPOSE
            ) as first:
                for state in first.rounds(first.begin()):
                    before = state
        weights = self.rounds_of.first_weights(None if before is None else before.tested)
        places = torch.from_numpy(self.layout.local_places).to(weights.device)
        state = RunState(
            round=0,
            weights=weights,
            plan=self._first_plan,
            server=self.rounds_of.begin(weights),
            local=weights[places].repeat(len(self.federation), 1) if len(places) else None,
            average=weights.clone() if self.settings.eval.ema else None,
        )
        trained = time.perf_counter()
        line = {"round": 0, **self._tested_line(state)}
        ended = time.perf_counter()
        self.timing = Timing(total=ended - began, training=trained - began, evaluation=ended - trained)
        clock = (self._clock.first_line(before.clock if before else ()),)
        return replace(state, metrics=(line,), clock=clock, confusion=self._confusion(state, line))

    def rounds(self, state: RunState) -> Iterator[RunState]:
        """Yield the state after each round, up to the last one of the settings."""
        self.plan.load_state(state.plan)
        state = self._onto_device(state)
        left = self.settings.training.rounds - state.round
        # Who is selected by what training has shown can be selected no sooner.
        ahead = 1 if self.plan.lessons.wanted else self._ahead
        with closing(planned_ahead(self.plan.next_round, left, ahead)) as plans:
            began = time.perf_counter()
            for round_plan, waited in plans:
                self.timing = Timing(waiting=waited)
                state = self.run_round(state, round_plan)
                self.timing.total = time.perf_counter() - began
                yield state
                began = time.perf_counter()

    def run_round(self, state: RunState, plan: Any) -> RunState:
        """Return the state after one round: training, what the server makes of it, test."""
        began, self.last_plan = time.perf_counter(), plan
        outcome = self.rounds_of.run_round(state, plan, self._tick)
        label = self.rounds_of.server_label
        if not bool(torch.isfinite(outcome.weights).all()):
            raise TrainingError(
                f"round {plan.round}: training diverged, the global model is not finite after {label}; lower its "
                "server_lr"
            )
        self.timing.training = time.perf_counter() - began
        new = RunState(
            round=plan.round,
            weights=outcome.weights,
            plan=plan.state,
            server=outcome.server,
            stations=outcome.stations,
            local=outcome.local,
            average=self._averaged(state.average, outcome.weights, plan.round),
            confusion=state.confusion,
        )
        if self.plan.lessons.wanted:
            new = replace(new, plan=self._learn(new, plan))
        line: dict[str, Any] = {"round": plan.round, **outcome.line}
        if plan.round % self.settings.eval.every == 0 or plan.round == self.settings.training.rounds:
            began = time.perf_counter()
            line |= self._tested_line(new)
            self.timing.evaluation = time.perf_counter() - began
            if not np.isfinite(line["loss"]):
                reason = explain_loss(self.task, self.federation.test.flat)
                raise TrainingError(
                    f"round {plan.round}: training diverged, the test loss is not a finite number ({label}, learning "
                    f"rate {outcome.rate:g}); {reason or 'lower the learning rate'}"
                )
            new = replace(new, confusion=self._confusion(state, line))
            if one_class_since((*state.metrics, line), ONE_CLASS_TESTS) is not None:
                self._note(one_class_warning(self.settings, (*state.metrics, line)))
        return replace(new, metrics=(*state.metrics, line), clock=(*state.clock, self._clock.line(state.clock, plan)))

    def _learn(self, state: RunState, plan: Any) -> dict[str, Any]:
        """Tell the plan what the new model makes of the data of the round, and return the plan's state."""
        devices, samples = plan.last_samples()
        if len(devices):
            forward = self.rounds_of.forwards(replace(state, average=None))[""]
            found = ask(
                forward, self.task, self._store, self.group, self.settings.training.precision, self.plan.lessons,
                devices, samples, bool(self.layout.local),
            )  # fmt: skip
            self.plan.lessons.learn(devices, found)
        learnt: dict[str, Any] = self.plan.lessons.state_dict()
        return {**plan.state, **learnt}

    def evaluate(self, state: RunState) -> Evaluation:
        """Test the model of a state: the averaged one where there is one."""
        return self._evaluations(state)[""]

    def gathered(self, state: RunState) -> RunState:
        """Return the state with what all processes' stations remember: what a checkpoint holds."""
        factories = self.federation.factories
        return replace(
            state, stations={entry: self.group.gather_rows(value, factories) for entry, value in state.stations.items()}
        )

    def _onto_device(self, state: RunState) -> RunState:
        local, average = (None if tensor is None else tensor.to(self.device) for tensor in (state.local, state.average))
        stations = {entry: value.to(self.device) for entry, value in state.stations.items()}
        return replace(state, weights=state.weights.to(self.device), stations=stations, local=local, average=average)

    def _averaged(self, average: Tensor | None, weights: Tensor, round_number: int) -> Tensor | None:
        if average is None:
            return None
        # A short memory at first, or the untrained model would linger.
        decay = min(self.settings.eval.ema, round_number / (round_number + 9))
        return average * decay + weights * (1 - decay)

    def _evaluations(self, state: RunState) -> dict[str, Evaluation]:
        return {name: self._evaluator.evaluate(forward) for name, forward in self.rounds_of.forwards(state).items()}

    def _confusion(self, before: RunState, line: dict[str, Any]) -> dict[str, Tensor]:
        """Return the confusion matrices of the last test, of this line, and of the best so far."""
        found, score = self.last_evaluation, self.task.score
        if found is None or found.confusion is None:
            return {}
        now = torch.from_numpy(found.confusion)
        best = score_facts(before.metrics, score, self.task.mode, None)["best"]
        better = best is None or self.task.better(line[score], best)
        return {"last": now, "best": now if better else before.confusion.get("best", now)}

    def _tested_line(self, state: RunState) -> dict[str, Any]:
        others = self._evaluations(state)
        found = self.last_evaluation = others.pop("")
        low, middle, high = found.percentiles
        line: dict[str, Any] = {
            **found.metrics,
            "loss": found.loss,
            "factories": [_number(score) for score in found.factories],
            "percentiles": {"10": _number(low), "50": _number(middle), "90": _number(high)},
        }
        if found.confusion is not None:  # a metric of the user's own of the same name stays
            line = class_metrics(found.confusion) | line
        for name, other in others.items():
            line |= {f"{key}_{name}": value for key, value in (*other.metrics.items(), ("loss", other.loss))}
        return line


def planned_ahead(
    next_round: Callable[[], Any], rounds: int, depth: int = 3
) -> Generator[tuple[Any, float], None, None]:
    """Yield round plans that a thread makes while the rounds before them are trained, and the seconds waited for each.

    The kernels of selection release Python's global lock, so the thread really runs beside the training. It is at most
    ``depth`` rounds ahead. The plans are the same with and without it; each carries the plan's state after its round,
    so that a checkpoint knows nothing of what was planned ahead.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="fedgs-plan")
    coming: deque[Any] = deque()
    try:
        for number in range(rounds):
            while number + len(coming) < min(number + max(1, depth), rounds):
                coming.append(thread.submit(next_round))
            began = time.perf_counter()
            plan = coming.popleft().result()
            yield plan, time.perf_counter() - began
    finally:
        thread.shutdown(cancel_futures=True)


def _number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN: a factory or device without a test sample has no score."""
    return value if np.isfinite(value) else None


def pick_device(name: str) -> torch.device:
    """Return the torch device of ``auto``, ``cpu`` or ``cuda``; under torchrun each process has a GPU of its own."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device={name!r} is not possible; choose auto, cpu or cuda")
    there = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not there:
        raise DeviceError("device='cuda': torch finds no CUDA GPU on this machine; choose cpu or auto")
    if not there:
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
