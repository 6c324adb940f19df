"""Ideas beside the queues: what they add to accuracy, on processors, with the compact network.

    python benchmarks/coverage_ideas.py --femnist FILE                            # all ideas on two federations
    python benchmarks/coverage_ideas.py --femnist FILE --deals natural --ideas plain rows --rounds 10

All runs select by queues, but for ``window``, ``by-data``, ``unmatched`` and ``gbp-cs``:

    plain        queues alone
    by-data      no matching: devices at random, in proportion to data
    window       nobody's turn is owed: the pooled samples of the round so far are matched, not each iteration's
    weighted     queues; the loss of a class c is weighed by P_real(c) / p(c), at most 5, p the mix of the whole round
    iteration    queues; logits shifted by log(p/P_real), p the mix of this iteration alone
    calibration  queues; … p the running mix of about a round (fedgs.training.calibration)
    rows         … and the top server averages the classifier's row of a class by who saw it (server.class_wise): what
                 the preset ``coverage`` does
    unmatched    the same without queues and matching: devices at random, in proportion to data
    loss         ``rows``, and a device's share of turns is its data times the loss of its last turns: whom the model
                 serves badly comes more often (Cho et al., 2020, power of choice). Plans are made while the round
                 before is trained, so its result depends a little on how fast they are
    diversity    … times how far the gradient of its last turns was from its team's mean: who teaches what others do not
                 comes more often. Of the gradient the classifier's bias counts, mean of softmax − label, which a
                 station sees in every answer (in the spirit of DivFL, Balakrishnan et al., 2022)
    drift        ``rows``, and stations correct their steps by how theirs differed from everybody's in the last round
                 (control variates; SCAFFOLD, Karimireddy et al., 2020)
    gbp-cs       the paper's selection, for comparison
    unskewed     for comparison: the train images dealt out at random (experiments.selection_study), devices by data

Steps are larger here than in the selection study (rate 0.2, ``--rate`` for another), so differences are too: this tells
which ideas are worth a GPU, no more. One seed (``--seed``); a run takes minutes; nan: it diverged. ``--clip`` bounds
gradients in all of them (fedgs.training.step). ``--model paper --device cuda`` is the study's own size.
"""

import argparse
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from command import at_least, in_one_line
from fedgs.algorithms.fedgs import FedGS
from fedgs.data import Federation
from fedgs.errors import ConfigError, TrainingError
from fedgs.selection import SelectionProblem, team
from fedgs.selection.coverage import fair_shares
from fedgs.settings import Settings
from fedgs.simulation.components import resolve
from fedgs.simulation.selection_plan import Coverage, count_classes
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.training.calibration import FLOOR
from fedgs.training.fused import FactoryThreads
from fedgs.training.network import Network
from fedgs.training.objective import Batch, Objective, Sent, Weights
from fedgs.training.optimizers import Optimizer
from fedgs.training.round_plan import RoundPlan
from fedgs.training.step import descend, gradient_of
from reproduction.experiments.reproduction import Reproduction
from reproduction.experiments.selection_study import DEALS, UNSKEWED, make_jobs

IDEAS = ("plain", "by-data", "window", "weighted", "iteration", "calibration", "rows", "unmatched", "loss", "diversity",
         "drift", "gbp-cs", UNSKEWED)  # fmt: skip
POLICY = {"by-data": "random-by-data", "window": "exact", "calibration": "queues-calibrated", "rows": "coverage",
          "unmatched": "by-data-full", "loss": "coverage", "diversity": "coverage", "drift": "coverage",
          "gbp-cs": "gbp-cs", UNSKEWED: UNSKEWED}  # fmt: skip
MOST_WEIGHT = 5.0
MEMORY = 0.3
"""How much a device's last turn counts for ``loss`` and ``diversity``."""


class Window:
    """Matches the pooled samples of a round: what was selected before in this round is given to the solver as base."""

    def __init__(self, settings: Settings, federation: Federation) -> None:
        self._iterations = settings.training.iterations
        self._pooled = np.zeros((federation.factories, len(federation.classes)))
        self._asked: list[SelectionProblem] = []
        self._solved = 0
        self._solve = team.solve_batch

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


@dataclass(frozen=True)
class Weighted(Objective):
    """The loss of a class c is weighed by P_real(c) / p(c), p the mix of the station's whole round."""

    target: Tensor
    """P_real."""
    here: threading.local = field(default_factory=threading.local)
    """Its ``shares`` (classes,) are p of the station this thread trains."""

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss of a team's batch, and the outputs."""
        logits = network(weights, batch.inputs, batch.clients, batch.keys)
        shares = getattr(self.here, "shares", self.target)
        weight = (self.target / shares.clamp(min=1e-9)).clamp(max=MOST_WEIGHT)
        labels = batch.targets[0]
        return (cross_entropy(logits[0], labels, reduction="none") * weight[labels]).mean()[None], logits


@dataclass(frozen=True)
class ByIteration(Objective):
    """Logits are shifted by log(p / P_real), p the mix of this iteration alone."""

    target: Tensor
    """P_real."""

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss of a team's batch, and the shifted outputs."""
        labels = batch.targets[0]
        own = torch.bincount(labels, minlength=len(self.target)) / len(labels)
        shift = torch.log(own / self.target + FLOOR)
        logits = network(weights, batch.inputs, batch.clients, batch.keys) + shift
        return network.loss(logits, batch), logits


class ByWorth:
    """Shares in proportion to data and what a turn was worth. Plans are made a round or two ahead: so old is that."""

    def __init__(self, federation: Federation) -> None:
        self._worth = np.full(len(federation), np.nan)

    def follow(self, devices: np.ndarray, worth: np.ndarray) -> None:
        """Take in what the turns of a super node were worth, device by device."""
        before = np.where(np.isnan(self._worth[devices]), worth, self._worth[devices])
        self._worth[devices] = before + MEMORY * (worth - before)

    def shares(self, coverage: Any, there: Any, streams: Any) -> np.ndarray:
        """Stand in for ``Coverage.shares``, which is asked once a round."""
        known = self._worth[~np.isnan(self._worth)]
        worth = np.where(np.isnan(self._worth), known.mean() if len(known) else 1.0, self._worth)
        shares = np.zeros(len(worth))
        for devices in there:
            shares[devices] = fair_shares((coverage._train_sizes * worth)[devices], coverage._pick)
        return shares


class Drift:
    """Control variates of stations: how the mean step of each differed from that of all, in the last round."""

    def __init__(self) -> None:
        self._round, self._lock = 0, threading.Lock()
        self._own: dict[int, Tensor] = {}
        self._last: dict[int, Tensor] = {}

    def correction(self, round_number: int, factory: int, station: Tensor) -> Tensor:
        """Return what is added to every gradient of a station in this round."""
        with self._lock:
            if round_number != self._round:
                self._round, self._last = round_number, dict(self._own)
            if not self._last:
                return torch.zeros_like(station)
            return torch.stack([self._last[other] for other in sorted(self._last)]).mean(dim=0) - self._last[factory]

    def follow(self, factory: int, mean_gradient: Tensor) -> None:
        """Take in a station's own mean gradient of the round, without the correction."""
        with self._lock:
            self._own[factory] = mean_gradient


def loss_of_each(logits: Tensor, labels: Tensor, devices: int) -> Tensor:
    """Return the mean loss of each device of a super node."""
    return cross_entropy(logits, labels, reduction="none").view(devices, -1).mean(dim=1)


def distance_of_each(logits: Tensor, labels: Tensor, devices: int) -> Tensor:
    """Return how far the gradient of each device, of the classifier's bias, is from the mean of a super node."""
    gradients = logits.softmax(dim=1) - one_hot(labels, logits.shape[1])
    own = gradients.view(devices, -1, logits.shape[1]).mean(dim=1)
    return (own - own.mean(dim=0)).norm(dim=1)


def train_factory_with(by_worth: ByWorth | None, worth: Any, drift: Drift | None) -> Any:
    """Return what stands in for the fused engine's training of a station."""

    def train(
        self: Any, factory: int, station: Tensor, plan: RoundPlan, rates: np.ndarray, _: Any, losses: Tensor,
        sent: Sent, *__: Any,
    ) -> None:  # fmt: skip
        setup, layout = self.setup, self.layout
        views = {name: view[None] for name, view in layout.views(station).items()}
        trained = list(layout.trained_views(station).values())
        start = station.clone()
        correction = drift.correction(plan.round, factory, station) if drift else torch.zeros_like(station)
        corrections = list(layout.trained_views(correction).values())
        for iteration, rate in enumerate(rates.tolist()):
            if not plan.sizes[iteration, factory].any():
                continue
            batch = setup.batch(plan, iteration, factory)
            found = gradient_of(setup.network, setup.objective, views, layout.trained, sent, batch)
            losses[iteration] = found.losses[0]
            gradients = [None if value is None else value[0] for value in found.values]
            descend(trained, gradients, rate, Optimizer(), {}, 0, setup.training.clip)
            with torch.no_grad():
                torch._foreach_add_(trained, corrections, alpha=-rate)
            if by_worth:
                devices = plan.devices[iteration, factory]
                devices = devices[devices >= 0]
                by_worth.follow(devices, worth(found.outputs[0].detach(), batch.targets[0], len(devices)).cpu().numpy())
        if drift:
            drift.follow(factory, (start - station) / float(rates.sum()) - correction)

    return train


def run(settings: Settings, federation: Federation, idea: str, device: torch.device) -> float:
    """Return the mean accuracy of the tests in the last quarter of the rounds."""
    target = torch.from_numpy(federation.p_real()).float().to(device)
    weighted = Weighted(target)
    objective = {"weighted": weighted, "iteration": ByIteration(target)}.get(idea, Objective())
    train_factory = FactoryThreads._train_factory

    def with_shares(self: Any, factory: int, station: Tensor, plan: RoundPlan, *more: Any) -> None:
        weighted.here.shares = torch.from_numpy(_shares(plan, federation)[factory]).float().to(device)
        train_factory(self, factory, station, plan, *more)

    by_worth = ByWorth(federation)
    others = {"loss": train_factory_with(by_worth, loss_of_each, None),
              "diversity": train_factory_with(by_worth, distance_of_each, None),
              "drift": train_factory_with(None, None, Drift())}  # fmt: skip
    patches: list[tuple[Any, str, Any]] = [(FactoryThreads, "_train_factory", others.get(idea, with_shares))]
    if idea in ("loss", "diversity"):
        patches.append((Coverage, "shares", lambda coverage, *about: by_worth.shares(coverage, *about)))
    if idea == "window":
        window = Window(settings, federation)
        patches += [(team, "solve_batch", window.solve_batch), (team, "METHODS", ())]  # no kernel knows a window
        patches.append((team, "SelectionProblem", _Problems(window)))
    kept = [(client, name, getattr(client, name)) for client, name, _ in patches]
    for client, name, value in patches:
        setattr(client, name, value)
    try:
        settings, components = resolve(settings, classes=len(federation.classes))
        components = replace(components, algorithm=FedGS(objective))
        with Simulator(settings, federation, device, components=components, ahead=1) as simulator:
            *_, last = simulator.rounds(simulator.begin())
    except TrainingError:
        return float("nan")  # it diverged
    finally:
        for client, name, value in kept:
            setattr(client, name, value)
    tests = [line["accuracy"] for line in last.metrics if line.get("round", 0) > 0.75 * settings.training.rounds
             and "accuracy" in line]  # fmt: skip
    return float(np.mean(tests))


class _Problems:
    """``SelectionProblem`` with another ``trusted``."""

    def __init__(self, window: Window) -> None:
        self.trusted = window.trusted

    def __call__(self, *arguments: Any) -> SelectionProblem:
        return SelectionProblem(*arguments)


def _shares(plan: RoundPlan, federation: Federation) -> np.ndarray:
    """Return the class shares (factories, classes) of a round."""
    counts = count_classes(plan.samples, federation.labels, len(federation.classes)).sum(axis=0)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def job_name(deal: str, idea: str, seed: int) -> str:
    return f"study-{deal}-{POLICY.get(idea, 'queues')}-seed-{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--femnist", type=Path, required=True)
    parser.add_argument("--deals", nargs="+", choices=DEALS, default=["two-classes", "alpha-0.02"])
    parser.add_argument("--ideas", nargs="+", choices=IDEAS, default=list(IDEAS))
    parser.add_argument("--rounds", type=at_least(1), default=40)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--model", default="compact")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    overrides = [f"task.model={given.model}", f"training.learning_rate={given.rate}", "training.engine=fused"]
    device = pick_device(given.device)
    overrides += ["training.precision=bfloat16"] if device.type == "cuda" else []
    overrides += [] if given.clip is None else [f"training.clip={given.clip}"]
    reproduction = Reproduction(given.femnist, [given.seed], given.rounds, overrides)
    jobs = {job.name: job for job in make_jobs(reproduction)}
    for deal in given.deals:
        if job_name(deal, "plain", given.seed) not in jobs:
            raise ConfigError(f"--deals {deal}: this data set has not what its factories are made of; leave it out")
    print(f"{'':24}" + "".join(f"{idea:>13}" for idea in given.ideas))
    for deal in given.deals:
        print(f"{deal:24}", end="", flush=True)
        for idea in given.ideas:
            job = jobs[job_name(deal, idea, given.seed)]
            late = run(job.settings, reproduction.federation(job.federation, given.seed), idea, device)
            print(f"{100 * late:13.2f}", end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    in_one_line(main)
