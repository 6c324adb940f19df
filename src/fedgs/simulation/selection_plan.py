"""The selection of a whole run, without a model.

What a station selects follows from the class counts of its devices' next mini-batches, never from the model. So the
plan of a round is made before the round is trained, and ahead of the training (``simulator.planned_ahead``). Only
policies of other papers that learn from training wait for the round before (:mod:`fedgs.simulation.feedback`).
One iteration is :func:`fedgs.selection.team.select_teams`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data import DeviceStreams, Drift, Federation
from fedgs.errors import DataError
from fedgs.selection.coverage import fair_shares, queues_after
from fedgs.selection.solve import Solver, resolve_solver
from fedgs.selection.team import TeamRule, select_teams
from fedgs.settings import SelectionSettings, Settings, StreamSettings
from fedgs.simulation.dynamics import Dynamics
from fedgs.simulation.feedback import Lessons
from fedgs.training.calibration import ClassMix
from fedgs.training.round_plan import RoundPlan

Devices = NDArray[np.int64]


class Turns:
    """How often each device was selected, and how long it had to wait: in iterations of FedGS, or in rounds."""

    def __init__(self, devices: int) -> None:
        self.selected = np.zeros(devices, np.int64)
        """(devices,) how often each was selected."""
        self.last = np.zeros(devices, np.int64)
        """(devices,) the iteration (from 1) in which each was last selected; 0: never."""
        self.longest_wait = np.zeros(devices, np.int64)
        """(devices,) the most iterations between two selections, those before the first too."""

    def count(self, devices: NDArray[np.int64], iteration: int) -> None:
        """Note who was selected in an iteration."""
        self.selected[devices] += 1
        self.longest_wait[devices] = np.maximum(self.longest_wait[devices], iteration - self.last[devices])
        self.last[devices] = iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as plain lists."""
        return {name: values.tolist() for name, values in vars(self).items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        for name in vars(self):
            setattr(self, name, np.asarray(state[name], dtype=np.int64))


class Coverage:
    """The queues of a run's devices (:mod:`fedgs.selection.coverage`): who earns which share, where, and when.

    In every iteration the devices a station can select, those online and ready in the factory where they are now, share
    its L turns and earn them; the selected ones pay one. Who is offline, or has no whole batch, earns nothing and comes
    back with the queue it left with: no burst makes up for the absence. A queue belongs to the device, so whoever moves
    takes it along. Shares (``selection.coverage.share``) are in proportion to

    ============  =====================================================================================
    ``data``      the device's train samples: all data are seen equally often (Jain of epochs → 1)
    ``turns``     nothing: every device has the same number of turns
    ``fresh``     the samples its stream holds that no turn has used (``DeviceStreams.unused``), anew in
                  every iteration: whoever has most that is new earns most
    ============  =====================================================================================
    """

    def __init__(self, federation: Federation, settings: SelectionSettings) -> None:
        self.weight, self._share, self._pick = settings.coverage.weight, settings.coverage.share, settings.pick
        self.queue = np.zeros(len(federation))
        """(devices,) turns each is behind its fair share, or ahead of it below 0; all 0 without coverage."""
        self._train_sizes = federation.train.sizes.astype(np.float64)
        self._known: tuple[Sequence[Devices], NDArray[np.float64]] | None = None

    def shares(self, there: Sequence[Devices], streams: DeviceStreams) -> NDArray[np.float64]:
        """(devices,) what each device earns in this iteration; 0 for those who cannot be selected."""
        if self._known is not None and self._known[0] is there:
            return self._known[1]
        weights = {"data": self._train_sizes, "turns": np.ones(len(self.queue))}.get(self._share)
        fixed = weights is not None
        if weights is None:
            weights = streams.unused.astype(np.float64)
        shares = np.zeros(len(self.queue))
        for devices in there:
            shares[devices] = fair_shares(weights[devices], self._pick)
        self._known = (there, shares) if fixed else None
        return shares

    def end(self, there: Sequence[Devices], streams: DeviceStreams, selected: Devices) -> None:
        """Let everybody who is there earn a share, and the selected pay a turn."""
        if self.weight:
            self.queue = queues_after(self.queue, self.shares(there, streams), selected)


class SelectionPlan:
    """Makes the plans of the rounds, one after the other."""

    def __init__(
        self,
        federation: Federation,
        settings: Settings,
        *,
        solver: Solver | None = None,
        smallest_batch: int = 1,
    ) -> None:
        """``solver``: one of the user's own instead of the settings'.

        ``smallest_batch``: samples a step needs at least; a device that gets fewer done in an iteration counts as lost.
        """
        selection, training = settings.selection, settings.training
        smallest = int(federation.factory_sizes.min())
        if selection.pick > smallest and not (selection.cap or settings.dynamics.active):
            raise DataError(
                f"selection.pick={selection.pick} is more than the {smallest} devices of the smallest factory "
                "of this federation; lower it, or set selection.cap=true to take all of them"
            )
        self.federation, self.settings = federation, settings
        self.target = federation.p_real()
        self.target.flags.writeable = False  # like a problem's
        self._everybody = [federation.devices_of(factory) for factory in range(federation.factories)]
        self.streams = make_streams(federation, training.batch_size, settings.seed, settings.streams)
        self.dynamics = Dynamics(federation, settings.dynamics, settings.seed)
        self.round = 0
        self.turns = Turns(len(federation))
        self.coverage = Coverage(federation, selection)
        self.mix = ClassMix(federation.factories, self.target, training.iterations, training.calibration)
        self._train_sizes = federation.train.sizes.astype(np.float64)
        chosen = solver or resolve_solver(selection.solver)
        self._rule = TeamRule.of(selection, self.target, settings.seed, chosen)
        batches = np.full(len(federation), training.batch_size)
        self.lessons = Lessons(settings, chosen, len(self.target), batches, training.iterations)
        self._smallest = smallest_batch

    def next_round(self) -> RoundPlan:
        """Select for the T iterations of the next round."""
        training = self.settings.training
        shape = (training.iterations, self.federation.factories, self.settings.selection.pick)
        devices = np.full(shape, -1, np.int32)
        samples = np.full((*shape, training.batch_size), -1, np.int32)
        sizes = np.zeros(shape, np.int32)
        divergence = np.full(shape[:2], np.nan)
        seconds = sum(self._iterate(*row) for row in zip(devices, samples, sizes, divergence, strict=True))
        self.round += 1
        classes = len(self.target)
        counts = seen = count_classes(samples, self.federation.labels, classes)
        window, missing = view_round(counts, self.target)
        if (sizes < training.batch_size).any():  # who dropped out, and what a straggler left, was not trained on
            counting = np.arange(training.batch_size) < sizes[..., None]
            seen = count_classes(np.where(counting, samples, np.int32(-1)), self.federation.labels, classes)
        return RoundPlan(
            self.round,
            devices,
            samples,
            sizes,
            divergence,
            events=self.dynamics.take_events(),
            shifts=self.mix.follow(counts) if self.mix.strength else None,
            state=self.state_dict(),
            seconds=seconds,
            window_divergence=window,
            missing_classes=missing,
            seen=seen.sum(axis=0),
        )

    def _iterate(
        self,
        devices: NDArray[np.int32],
        samples: NDArray[np.int32],
        sizes: NDArray[np.int32],
        divergence: NDArray[np.float64],
    ) -> float:
        """Select for one iteration, write the teams into these arrays, and return the seconds of the solver."""
        iteration, batch_size = self.streams.iteration, self.settings.training.batch_size
        self.dynamics.begin(iteration)
        available = self._available()
        teams = select_teams(
            self._rule,
            iteration,
            self.streams.counts,
            available,
            self.coverage.queue,
            self._train_sizes,
            self.lessons.feedback(iteration + 1, self.turns.selected, self.turns.last),
        )
        everyone = np.concatenate([team.devices for team in teams])
        batches = self.streams.next_indices(everyone)
        done = np.floor(self.dynamics.shares(iteration, everyone) * batch_size + 1e-9)
        first = 0
        for factory, team in enumerate(teams):
            places = len(team.devices)
            mine = slice(first, first + places)
            devices[factory, :places] = team.devices
            samples[factory, :places] = batches[mine]
            sizes[factory, :places] = np.where(done[mine] < self._smallest, 0, done[mine])
            divergence[factory] = team.divergence
            if places < self._rule.pick:
                self.dynamics.events["short" if places else "idle"] += 1
            first += places
        self.turns.count(everyone, iteration + 1)
        self.coverage.end(available, self.streams, everyone)
        self.streams.advance(everyone)
        return sum(team.seconds for team in teams)

    def _available(self) -> list[Devices]:
        """Return the devices of every factory that can be selected now."""
        able = self.streams.ready & self.dynamics.online
        if able.all() and np.array_equal(self.dynamics.factory_of, self.federation.factory_of):
            return self._everybody
        return [
            np.flatnonzero(able & (self.dynamics.factory_of == factory)) for factory in range(self.federation.factories)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on later, in plain numbers, lists and text."""
        return {
            "round": self.round,
            "streams": self.streams.state_dict(),
            "dynamics": self.dynamics.state_dict(),
            **self.turns.state_dict(),
            "queue": self.coverage.queue.tolist(),
            **self.lessons.state_dict(),
            "mix": {"shares": self.mix.shares.tolist(), "steps": self.mix.steps.tolist()} if self.mix.strength else {},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.round = int(state["round"])
        self.streams.load_state(state["streams"])
        self.dynamics.load_state(state["dynamics"])
        self.turns.load_state(state)
        self.coverage.queue = np.asarray(state["queue"], dtype=np.float64)
        self.lessons.load_state(state)
        if state.get("mix"):
            self.mix.shares = np.asarray(state["mix"]["shares"], dtype=np.float64)
            self.mix.steps = np.asarray(state["mix"]["steps"], dtype=np.int64)


def view_round(
    counts: NDArray[np.int64], target: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Look at the class counts (iterations, factories, classes) of a round's super nodes.

    An iteration can miss what the next one brings. So there are two measures: (factories,) ‖P − P_real‖₂ of all samples
    of the round pooled, and (iterations, factories) the classes of P_real without a sample; NaN where there was nobody.
    """
    missing = ((counts == 0) & (target > 0)).sum(axis=2).astype(np.float64)
    missing[counts.sum(axis=2) == 0] = np.nan
    pooled = counts.sum(axis=0)
    with np.errstate(invalid="ignore"):  # nobody: 0 / 0
        window = np.linalg.norm(pooled / pooled.sum(axis=1, keepdims=True) - target, axis=1)
    return window, missing


def count_classes(samples: NDArray[np.int32], labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Return the class counts of a round's super nodes from its samples (iterations, factories, places, batch).

    −1 stands for no sample.
    """
    iterations, factories = samples.shape[:2]
    nodes = np.arange(iterations * factories)[:, None] * classes
    flat = samples.reshape(iterations * factories, -1)
    cells = (labels[flat].astype(np.int64) + nodes)[flat >= 0]
    return np.bincount(cells, minlength=iterations * factories * classes).reshape(iterations, factories, classes)


def make_streams(federation: Federation, batch_size: int, seed: int, settings: StreamSettings) -> DeviceStreams:
    """Return the device streams the settings ask for."""
    drift = settings.drift
    wanted = None
    if drift.kind != "none":
        wanted = Drift(drift.kind, drift.start, drift.length, drift.alpha, drift.spread)
    return DeviceStreams(
        federation,
        batch_size,
        seed,
        settings.mode,
        capacity=settings.capacity,
        arrival=settings.arrival,
        drift=wanted,
    )
