"""What selection learns from training: the loss and the gradient of every device that took part in a round.

Policies of other papers select by losses or gradients (``Solver.learns``). Engines make one step of a whole team and
know of no device's own loss. So after each round the new global model is asked once more, forward only, about the
samples each device of the round trained on last: a mini-batch of FedGS, all training data of a baseline's client. Kept
of a device are its mean loss, the root of its mean squared loss and, where a solver asks for it, the mean gradient of
the loss with respect to the outputs: for cross-entropy softmax − one-hot, which is the gradient of the last layer's
bias. It is known to the selections of the next round and stays until the device takes part again; so these policies
are not planned ahead of the training.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import one_hot

from fedgs.algorithms.algorithm import Forward
from fedgs.errors import ConfigError
from fedgs.network.clock import slowness
from fedgs.selection.feedback import Feedback
from fedgs.selection.solve import SOLVERS, Solver
from fedgs.settings import Settings
from fedgs.simulation.process_group import ProcessGroup
from fedgs.tasks.bind import BoundTask
from fedgs.training.precision import gpu_precision, one_thread_each
from fedgs.training.store import SampleStore

CHUNK = 4096
"""Samples that are looked at together."""


class Lessons:
    """What a plan has learnt of its devices."""

    def __init__(
        self, settings: Settings, solver: str | Solver, classes: int, sizes: NDArray[np.int64], turns_a_round: int = 1
    ) -> None:
        """``sizes``: samples of each device in a turn."""
        found = SOLVERS.get(solver) if isinstance(solver, str) else solver
        self.kind = "" if found is None else found.learns
        self.wanted = self.kind in ("loss", "gradient")
        """Whether training has to tell anything."""
        devices, width = len(sizes), 2 + classes * (self.kind == "gradient")
        self._rows = np.full((devices, width if self.wanted else 2), np.nan)
        """Mean loss, root mean squared loss, gradient."""
        self._utility: list[float] = []
        """Of each round; only Oort asks for it, but it costs nothing."""
        self._sizes, self._rounds, self._turns_a_round = sizes, settings.training.rounds, turns_a_round
        steps = -(-sizes // settings.training.batch_size)
        self._seconds = slowness(devices, settings.clock.slowness, settings.seed) * steps

    def feedback(self, turn: int, selected: NDArray[np.int64], last: NDArray[np.int64]) -> Feedback | None:
        """Return what the solver of this turn is told; None where it asks for nothing."""
        if not self.kind:
            return None
        a_turn = self._turns_a_round
        if self.wanted:  # who learns from rounds counts rounds
            turn, last, a_turn = -(-turn // a_turn), -(-last // a_turn), 1
        rows = self._rows
        turns = selected.astype(np.float64), last.astype(np.float64)
        return Feedback(
            turn, *turns, self._seconds, rows[:, 0], rows[:, 1], rows[:, 2:], np.array(self._utility),
            self._rounds * a_turn,
        )  # fmt: skip

    def learn(self, devices: NDArray[np.int64], rows: NDArray[np.float64]) -> None:
        """Take in what :func:`ask` found."""
        self._rows = self._rows.copy()  # feedback that was given stays as it is
        self._rows[devices] = rows
        self._utility.append(float((self._sizes[devices] * rows[:, 1]).sum()))

    def state_dict(self) -> dict[str, Any]:
        """Return what was learnt, in plain lists; nothing where nothing is."""
        if not self.wanted:
            return {}
        known = np.flatnonzero(~np.isnan(self._rows[:, 0]))
        return {
            "lessons": {"devices": known.tolist(), "rows": self._rows[known].tolist(), "utility": list(self._utility)}
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        if self.wanted:
            self._rows = np.full_like(self._rows, np.nan)
            self._utility = list(state["lessons"]["utility"])
            known = state["lessons"]["devices"]
            if known:
                self._rows[known] = state["lessons"]["rows"]


def check_learns(kind: str, task: BoundTask) -> None:
    """Refuse a solver that goes by gradients where outputs are no classes."""
    if kind == "gradient" and not task.classifies:
        raise ConfigError(
            "this way to select goes by the gradients of a classifier; it needs a task with cross-entropy, balanced by "
            "class"
        )


def ask(
    forward: Forward, task: BoundTask, store: SampleStore, group: ProcessGroup, precision: str, lessons: Lessons,
    devices: NDArray[np.int64], samples: NDArray[np.int64], by_device: bool = False,
) -> NDArray[np.float64]:  # fmt: skip
    """Return what ``lessons`` takes in of P devices from their samples (P, S), of which −1 is none.

    ``by_device``: devices have weights of their own, so each is asked by itself.
    """
    mine = group.shard(len(devices))
    own = samples[mine]
    there = own >= 0
    flat, ends = own[there], np.cumsum(there.sum(axis=1))
    who = np.repeat(devices[mine], there.sum(axis=1))
    cuts = ends[:-1].tolist() if by_device else list(range(CHUNK, len(flat), CHUNK))
    with gpu_precision(precision), one_thread_each():
        values = [
            _look(forward, task, store, flat[first:last], who[first:last], lessons.kind == "gradient")
            for first, last in pairwise([0, *cuts, len(flat)])
        ]
    starts = np.append(0, ends[:-1])
    found = np.add.reduceat(np.concatenate(values), starts) / there.sum(axis=1, keepdims=True)
    found[:, 1] = np.sqrt(found[:, 1])
    # The sum over processes is the same to the bit on all of them, so all select the same devices.
    rows = torch.from_numpy(found).to(store.device)
    result: NDArray[np.float64] = group.gather_rows(rows, len(devices)).cpu().numpy()
    return result


@torch.inference_mode()
def _look(
    forward: Forward, task: BoundTask, store: SampleStore, samples: NDArray[np.int64], devices: NDArray[np.int64],
    gradient: bool,
) -> NDArray[np.float64]:  # fmt: skip
    """Return loss, squared loss and gradient of each sample."""
    outputs = forward(samples, devices)
    inputs, targets = store.batch(samples) if task.loss.takes_inputs else (None, store.targets_of(samples))
    losses = task.loss(outputs, targets, inputs).double()
    columns = torch.stack([losses, losses.square()], dim=1)
    if gradient:
        apart = torch.softmax(outputs.double(), dim=1) - one_hot(targets, outputs.shape[1])
        columns = torch.cat([columns, apart[:, : len(task.classes)]], dim=1)
    found: NDArray[np.float64] = columns.cpu().numpy()
    return found
