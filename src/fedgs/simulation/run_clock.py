"""The virtual clock of a run: what each round would take and send in a real park, line by line (``clock.jsonl``).

    {"round": 0, "elapsed": 0.0, "step_seconds": 0.0012}
    {"round": 1, "elapsed": 5.1, "seconds": 5.1, "computation": …, "selection": …, "internal": …, "top": …,
     "bytes": {"device_station_up": …, "device_station_down": …, "station_top_up": …, "station_top_down": …}}

The time model is :mod:`fedgs.network.clock`. The clock looks at the plans of the rounds; algorithms and training know
nothing of it. A device receives and sends the shared weights, or what the baseline's ``traffic`` says, and its step is
that of the algorithm's local objective. Bytes follow from the seed; seconds do so where the settings give the times of
a step and of a selection, and differ from run to run where these are measured. A measured step is measured once, before
the first round, and stays in the first line: a resumed run, on another machine too, goes on with the same clock. The
first line also holds what a pre-training took and sent, a run of its own before this one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fedgs.algorithms import Baseline
from fedgs.algorithms.algorithm import Algorithm
from fedgs.network.clock import VirtualClock
from fedgs.rng import stream
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.solve import warm_up
from fedgs.settings import Settings
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.build import generators_kept
from fedgs.training.clients import local_step
from fedgs.training.layout import WEIGHT_BYTES, Layout
from fedgs.training.objective import Objective
from fedgs.training.precision import one_thread_each

Lines = Sequence[dict[str, Any]]
PARTS = ("computation", "selection", "internal", "top")
"""What the seconds of a round are made of."""
CLASSES = 62
REPEATS = 11


class RunClock:
    """Makes the lines of the clock from the plans of the rounds; it keeps nothing but the speed of the devices."""

    def __init__(self, settings: Settings, task: BoundTask, algorithm: Algorithm, layout: Layout) -> None:
        self._settings, self._task, self._algorithm, self._layout = settings, task, algorithm, layout
        self._clock: VirtualClock | None = None
        settings.clock.links()  # a profile that cannot be read is found before anything is trained

    def first_line(self, before: Lines = ()) -> dict[str, Any]:
        """Return the line before the first round; here a step is measured, if it is to be.

        ``before`` are the lines of the pre-training: what it took and sent counts, and stands here.
        """
        given = self._settings.clock.step_seconds
        seconds = fastest(self._step()) if given == "measured" else float(given)
        line: dict[str, Any] = {"round": 0, "elapsed": 0.0, "step_seconds": seconds}
        if before:
            line["elapsed"] = before[-1]["elapsed"]
            line |= {part: _sum(before, part) for part in PARTS}
            line["bytes"] = traffic(before, before[-1]["round"])
        return line

    def line(self, lines: Lines, plan: Any) -> dict[str, Any]:
        """Return the line of a round; ``lines`` are those before it."""
        if self._clock is None:
            devices, seed = len(self._task.federation), self._settings.seed
            self._clock = self._settings.clock.clock(devices, seed, lines[0]["step_seconds"])
        down, up = self._traffic()
        if self._algorithm.kind == "baseline":
            cost = self._clock.flat_round(plan.devices, plan.steps, bytes_down=down, bytes_up=up)
        else:
            cost = self._clock.fedgs_round(plan.devices, down, plan.seconds, returned=plan.sizes > 0)
        return {
            "round": plan.round,
            "elapsed": lines[-1]["elapsed"] + cost.seconds,
            "seconds": cost.seconds,
            **{part: getattr(cost, part) for part in PARTS},
            "bytes": {link: int(amount) for link, amount in asdict(cost.traffic).items()},
        }

    def _traffic(self) -> tuple[int, int]:
        """Return the bytes a device receives and sends when it takes part once."""
        if isinstance(self._algorithm, Baseline):
            views = self._layout.views(torch.zeros(self._layout.size))
            shared = {name: view for name, view in views.items() if name not in self._layout.local}
            return self._algorithm.traffic(shared)
        model = WEIGHT_BYTES * self._layout.shared_size
        return model, model

    def _step(self) -> Callable[[], object]:
        """Return one local step of a device on one core."""
        found = getattr(self._algorithm, "objective", self._algorithm)
        objective = found if isinstance(found, Objective) else Objective()
        return local_step(self._task, objective, self._settings.training.batch_size)


def clock_summary(settings: Settings, lines: Lines, target_round: int | None) -> dict[str, Any]:
    """Return what a run would take in all, and until the target was reached."""
    measured = [name for name in ("step_seconds", "selection_seconds") if getattr(settings.clock, name) == "measured"]
    if settings.algorithm.is_baseline and "selection_seconds" in measured:
        measured.remove("selection_seconds")  # nobody selects
    return {
        "profile": settings.clock.profile,
        "seconds": elapsed(lines, lines[-1]["round"]),
        "seconds_to_target": elapsed(lines, target_round),
        **{part: _sum(lines, part) for part in PARTS},
        "step_seconds": lines[0]["step_seconds"],
        "measured": measured,
    }


def _sum(lines: Lines, part: str) -> float:
    return float(sum(line.get(part, 0.0) for line in lines))


def elapsed(lines: Lines, round_number: int | None) -> float | None:
    """Return the simulated seconds up to the end of a round; None of a round that never was."""
    return next((float(line["elapsed"]) for line in lines if line["round"] == round_number), None)


def traffic(lines: Lines, round_number: int | None) -> dict[str, int] | None:
    """Return the bytes on each link up to the end of a round; None of a round that never was."""
    if elapsed(lines, round_number) is None or round_number is None:
        return None
    total: dict[str, int] = {}
    for line in lines:
        if line["round"] <= round_number:
            for link, amount in line.get("bytes", {}).items():
                total[link] = total.get(link, 0) + amount
    return total


def selection_seconds(
    candidates: int,
    pick: int,
    solver: str = "gbp-cs",
    repeats: int = REPEATS,
    *,
    classes: int = CLASSES,
    batch_size: int = 32,
) -> float:
    """Return the time of one selection among mini-batches drawn from some of the classes."""
    draws = stream(0, "selection-time")
    counts = draws.multinomial(batch_size, draws.dirichlet(np.full(classes, 0.3), size=candidates))
    problem = SelectionProblem(counts, np.full(classes, 1 / classes), pick)
    warm_up(solver, problem)
    return fastest(lambda: solve(problem, solver), repeats)


def fastest(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the seconds of the fastest of several repeats, on one thread, after a few to get ready."""
    times = []
    with one_thread_each(), generators_kept():
        for _ in range(3):  # memory and kernels are found in the first ones
            action()
        for _ in range(repeats):
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
    return min(times)  # whatever else this machine does only makes it slower
