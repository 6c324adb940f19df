"""The selection of a whole run, without a model.

What a station selects follows from the class counts of its devices' next mini-batches, never from the model. So the
plan of a round is made before the round is trained, and ahead of the training (:mod:`fedgs.simulation.prefetch`).
One iteration is :func:`fedgs.selection.team.select_teams`; where nothing but the sticky streams changes between
iterations, whole rounds run in a compiled loop with the same result (:mod:`fedgs.simulation.compiled_rounds`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data import DeviceStreams, Drift, Federation
from fedgs.errors import DataError
from fedgs.selection.solve import Solver, resolve_solver
from fedgs.selection.team import TeamRule, select_teams
from fedgs.settings import Settings, StreamSettings
from fedgs.simulation.compiled_rounds import RoundArrays, Tally, make_rules, select_round
from fedgs.simulation.coverage import Coverage
from fedgs.simulation.dynamics import Dynamics
from fedgs.simulation.round_statistics import count_classes, view_round
from fedgs.simulation.turns import Turns
from fedgs.training.calibration import ClassMix
from fedgs.training.round_plan import RoundPlan

Devices = NDArray[np.int64]


class SelectionPlan:
    """Makes the plans of the rounds, one after the other."""

    def __init__(
        self,
        federation: Federation,
        settings: Settings,
        *,
        compiled: bool = True,
        solver: Solver | None = None,
        smallest_batch: int = 1,
    ) -> None:
        """``compiled``: select whole rounds in compiled loops where that is possible; the plans are the same without.

        ``solver``: one of the user's own instead of the settings'. ``smallest_batch``: samples a step needs at least;
        a device that gets fewer done in an iteration counts as lost.
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
        self._rule = TeamRule.of(selection, self.target, settings.seed, solver or resolve_solver(selection.solver))
        self._smallest = smallest_batch
        sizes = federation.train.sizes, federation.factory_sizes
        self._rules = make_rules(settings, self.target, *sizes) if compiled and solver is None else None

    def next_round(self) -> RoundPlan:
        """Select for the T iterations of the next round."""
        training = self.settings.training
        shape = (training.iterations, self.federation.factories, self.settings.selection.pick)
        devices = np.full(shape, -1, np.int32)
        samples = np.full((*shape, training.batch_size), -1, np.int32)
        sizes = np.zeros(shape, np.int32)
        divergence = np.full(shape[:2], np.nan)
        if self._rules is not None:
            turns, shares = self.turns, self.coverage.shares(self._everybody, self.streams)
            tally = Tally(turns.selected, turns.last, turns.longest_wait, self.coverage.queue, shares)
            arrays = RoundArrays(devices, samples, divergence)
            seconds = select_round(self._rules, self.streams, tally, arrays, self._everybody, self.settings.seed)
            sizes[:] = training.batch_size
        else:
            rows = zip(devices, samples, sizes, divergence, strict=True)
            seconds = sum(self._iterate(*row) for row in rows)
        self.round += 1
        classes = len(self.target)
        counts = seen = count_classes(samples, self.federation.labels, classes)
        view = view_round(counts, self.target)
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
            window_divergence=view.window_divergence,
            missing_classes=view.missing_classes,
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
            self._rule, iteration, self.streams.counts, available, self.coverage.queue, self._train_sizes
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
            "mix": {"shares": self.mix.shares.tolist(), "steps": self.mix.steps.tolist()} if self.mix.strength else {},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.round = int(state["round"])
        self.streams.load_state(state["streams"])
        self.dynamics.load_state(state["dynamics"])
        self.turns.load_state(state)
        self.coverage.queue = np.asarray(state["queue"], dtype=np.float64)
        if state.get("mix"):
            self.mix.shares = np.asarray(state["mix"]["shares"], dtype=np.float64)
            self.mix.steps = np.asarray(state["mix"]["steps"], dtype=np.int64)


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
