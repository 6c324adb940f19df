"""Ideas beside the queues: what they add to accuracy, on processors, with the compact network.

    python benchmarks/coverage_ideas.py --femnist FILE                            # all ideas on two federations
    python benchmarks/coverage_ideas.py --femnist FILE --deals natural --ideas plain rows --rounds 10

All runs select by queues, but for ``window``, ``by-data``, ``unmatched`` and ``gbp-cs``:

    plain        queues alone
    by-data      no matching: devices at random, in proportion to data
    window       nobody's turn is owed: the pooled samples of the round so far are matched, not each iteration's
    weighted     queues; the loss of a class c is weighed by P_real(c) / p(c), at most 5, p the mix of the whole round
    iteration    queues; logits shifted by log(p/P_real), p the mix of this iteration alone
    calibration  queues; … p the running mix of about a round (fedgs.calibration)
    rows         … and the top server averages the classifier's row of a class by who saw it (server.by_class): what the
                 preset ``coverage`` does
    unmatched    the same without queues and matching: devices at random, in proportion to data
    gbp-cs       the paper's selection, for comparison

Steps are larger here than in the selection study (rate 0.2, ``--rate`` for another), so differences are too: this tells
which ideas are worth a GPU, no more. One seed; a run takes minutes. ``--clip`` bounds gradients in all of them
(fedgs.clipping).
"""

import argparse
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgs.calibration import FLOOR
from fedgs.data import Federation
from fedgs.experiments.reproduction import Reproduction
from fedgs.experiments.selection_study import make_parts
from fedgs.selection import SelectionProblem
from fedgs.settings import Settings
from fedgs.simulation import fused, selection_plan
from fedgs.simulation.round_plan import RoundPlan
from fedgs.simulation.round_view import count_classes
from fedgs.simulation.simulator import Simulator

IDEAS = ("plain", "by-data", "window", "weighted", "iteration", "calibration", "rows", "unmatched", "gbp-cs")
POLICY = {"by-data": "random-by-data", "window": "exact", "calibration": "queues-calibrated", "rows": "coverage",
          "unmatched": "by-data-full", "gbp-cs": "gbp-cs"}  # fmt: skip
MOST_WEIGHT = 5.0


class Window:
    """Matches the pooled samples of a round: what was selected before in this round is given to the solver as base."""

    def __init__(self, settings: Settings, federation: Federation) -> None:
        self._iterations = settings.training.iterations
        self._pooled = np.zeros((federation.factories, len(federation.classes)))
        self._asked: list[SelectionProblem] = []
        self._solved = 0
        self._solve = selection_plan.solve_batch

    def trusted(self, counts: Any, target: Any, pick: int, base: Any, *more: Any) -> SelectionProblem:
        """Stand in for ``SelectionProblem.trusted``; the factories come one after the other."""
        self._asked.append(SelectionProblem(counts, target, pick, base + self._pooled[len(self._asked)]))
        return self._asked[-1]

    def solve_batch(self, problems: Any, *arguments: Any, **options: Any) -> Any:
        """Stand in for ``solve_batch``, and remember what was chosen."""
        answers = self._solve(problems, *arguments, **options)
        if len(answers) != len(self._asked):  # the warm-up of a solver
            return answers
        for factory, (problem, answer) in enumerate(zip(self._asked, answers, strict=True)):
            self._pooled[factory] += problem.counts[answer.chosen].sum(axis=0)
        self._asked = []
        self._solved += 1
        if self._solved % self._iterations == 0:
            self._pooled[:] = 0.0
        return answers


class Loss(threading.local):
    """The loss of one station's step, as an idea has it."""

    idea = "plain"
    shares: Tensor
    """(classes,) of the whole round of the station this thread trains."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Stand in for the cross-entropy of the fused engine."""
        target = TARGET[0]
        if self.idea == "weighted":
            weights = (target / self.shares.clamp(min=1e-9)).clamp(max=MOST_WEIGHT)
            return (cross_entropy(logits, labels, reduction="none") * weights[labels]).mean()
        if self.idea == "iteration":
            own = torch.bincount(labels, minlength=len(target)) / len(labels)
            logits = logits + torch.log(own / target + FLOOR)
        return cross_entropy(logits, labels)


TARGET: list[Tensor] = []


def run(settings: Settings, federation: Federation, idea: str) -> float:
    """Return the mean accuracy of the tests in the last quarter of the rounds."""
    TARGET[:] = [torch.from_numpy(federation.p_real()).float()]
    loss = Loss()
    Loss.idea = idea  # for all threads
    patches: list[tuple[Any, str, Any]] = [(fused, "cross_entropy", loss)]
    train_factory = fused.FusedEngine._train_factory

    def with_shares(self: Any, factory: int, station: Tensor, plan: RoundPlan, *more: Any) -> None:
        loss.shares = torch.from_numpy(_shares(plan, federation)[factory]).float()
        train_factory(self, factory, station, plan, *more)

    patches.append((fused.FusedEngine, "_train_factory", with_shares))
    if idea == "window":
        window = Window(settings, federation)
        patches += [(selection_plan, "solve_batch", window.solve_batch), (selection_plan, "make_rules", _no_rules)]
        patches.append((selection_plan, "SelectionProblem", _Problems(window)))
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        with Simulator(settings, federation, torch.device("cpu")) as simulator:
            *_, last = simulator.rounds(simulator.begin())
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
    tests = [line["accuracy"] for line in last.metrics if line.get("round", 0) > 0.75 * settings.training.rounds
             and "accuracy" in line]  # fmt: skip
    return float(np.mean(tests))


class _Problems:
    """``SelectionProblem`` with another ``trusted``."""

    def __init__(self, window: Window) -> None:
        self.trusted = window.trusted

    def __call__(self, *arguments: Any) -> SelectionProblem:
        return SelectionProblem(*arguments)


def _no_rules(*_: Any) -> None:
    """Have every iteration played step by step: the compiled loop knows no window."""


def _shares(plan: RoundPlan, federation: Federation) -> np.ndarray:
    """Return the class shares (factories, classes) of a round."""
    counts = count_classes(plan.samples, federation.labels, len(federation.classes)).sum(axis=0)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--femnist", type=Path, required=True)
    parser.add_argument("--deals", nargs="+", default=["two-classes", "alpha-0.02"])
    parser.add_argument("--ideas", nargs="+", choices=IDEAS, default=list(IDEAS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--clip", type=float)
    given = parser.parse_args()
    overrides = ["training.model=compact", f"training.learning_rate={given.rate}"]
    overrides += [] if given.clip is None else [f"training.clip={given.clip}"]
    reproduction = Reproduction(given.femnist, [0], given.rounds, overrides)
    parts = {part.name: part for part in make_parts(reproduction)}
    print(f"{'':24}" + "".join(f"{idea:>13}" for idea in given.ideas))
    for deal in given.deals:
        print(f"{deal:24}", end="", flush=True)
        for idea in given.ideas:
            part = parts[f"study-{deal}-{POLICY.get(idea, 'queues')}-seed-0"]
            late = run(part.settings, reproduction.federation(part.federation, 0), idea)
            print(f"{100 * late:13.2f}", end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
