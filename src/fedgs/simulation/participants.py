"""The plan of a baseline's rounds: who takes part, and every device's mini-batches (specification §1.1 and A.1).

In round t the participants are drawn uniformly without replacement from the stream (seed, "participants", t), whatever
the baseline: at one seed all baselines see the same devices in the same round, and their curves are paired. Another
``algorithm.sampling`` is a solver of FedGS's selection problem or a policy of another paper
(:mod:`fedgs.selection.solve`), for all devices of the park at once and the class counts of all their data. A device
shuffles its training samples anew in each local epoch, from (seed, "epochs", t, device), cuts them in order, and keeps
the last short batch.

Participants are sorted by their number of steps, most first: those still busy after s steps are then the first ones of
the list, and training together wastes nothing on those who are done.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs import rng
from fedgs.algorithms.client_server import participants
from fedgs.data import Federation
from fedgs.errors import DataError
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.solve import resolve_solver
from fedgs.settings import Settings
from fedgs.simulation.feedback import Lessons
from fedgs.simulation.selection_plan import Turns
from fedgs.training.round_plan import ClientPlan


class ParticipantPlan:
    """Makes the plans of a baseline's rounds, one after the other."""

    def __init__(self, federation: Federation, settings: Settings, purpose: str = "", smallest_batch: int = 1) -> None:
        """``purpose`` names other random streams than a run's own: those of pre-training.

        ``smallest_batch``: a last batch with fewer samples is left out, for the network cannot train on it.
        """
        self.federation, self.settings, self._smallest = federation, settings, smallest_batch
        least = int(federation.train.sizes.min())
        if least < smallest_batch:
            name = federation.device_names[int(np.argmin(federation.train.sizes))]
            raise DataError(
                f"{federation.name}: device {name!r} has {least} training samples; this network needs batches of at "
                f"least {smallest_batch} (batch normalisation)"
            )
        self._name = (purpose,) if purpose else ()
        self.round = 0
        devices = len(federation)
        self.participants = participants(settings, devices)
        self._target = federation.p_real()
        self._counts = federation.train_counts
        self.turns = Turns(devices)
        self.used = np.zeros(devices, np.int64)
        self._sampling = resolve_solver(settings.algorithm.sampling)
        self.lessons = Lessons(settings, self._sampling, len(self._target), federation.train.sizes)

    def next_round(self) -> ClientPlan:
        """Draw the participants of the next round and their batches."""
        began = time.perf_counter()
        seed, batch = self.settings.seed, self.settings.training.batch_size
        epochs, number = self.settings.algorithm.local_epochs, self.round + 1
        sizes = self.federation.train.sizes
        devices = self._sample(number)
        devices = devices[np.argsort(-sizes[devices], kind="stable")]
        short = sizes[devices] % batch
        used = sizes[devices] - np.where((short > 0) & (short < self._smallest), short, 0)
        epoch_steps = -(-used // batch)
        samples = np.full((epochs * int(epoch_steps[0]), len(devices), batch), -1, np.int32)
        for place, device in enumerate(devices.tolist()):
            own, steps = self.federation.train_indices(device), int(epoch_steps[place])
            draws = rng.stream(seed, *self._name, "epochs", number, device)
            padded = np.full((epochs, steps * batch), -1, np.int32)
            for epoch in range(epochs):
                padded[epoch, : used[place]] = draws.permutation(own)[: used[place]]
            samples[: epochs * steps, place] = padded.reshape(epochs * steps, batch)
        self.round = number
        self.turns.count(devices, number)
        self.used[devices] += epochs * used
        pooled = self._counts[devices].sum(axis=0)
        return ClientPlan(
            number, devices, samples, (samples >= 0).sum(axis=2, dtype=np.int32), epoch_steps, sizes[devices],
            np.array([rng.key(seed, *self._name, "dropout", number, int(device)) >> 34 for device in devices]),
            float(np.linalg.norm(pooled / pooled.sum() - self._target)),
            self.state_dict(), time.perf_counter() - began,
        )  # fmt: skip

    def _sample(self, number: int) -> NDArray[np.int64]:
        """Return the participants of a round, sorted."""
        name = (self.settings.seed, *self._name, "participants", number)
        if self._sampling == "random":
            return np.sort(rng.stream(*name).permutation(len(self.federation))[: self.participants])
        feedback = self.lessons.feedback(number, self.turns.selected, self.turns.last)
        problem = SelectionProblem(self._counts, self._target, self.participants, feedback=feedback)
        options = self.settings.algorithm.sampling_options
        return solve(problem, self._sampling, rng.key(*name), **options).chosen

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on later; turns are counted in rounds."""
        return {
            "round": self.round,
            **self.turns.state_dict(),
            "streams": {"iteration": self.round, "samples_used": self.used.tolist()},
            **self.lessons.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.round = int(state["round"])
        self.turns.load_state(state)
        self.used = np.asarray(state["streams"]["samples_used"], dtype=np.int64)
        self.lessons.load_state(state)
