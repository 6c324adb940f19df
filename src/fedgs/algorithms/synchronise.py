"""The external synchronisation: the stations' models become the next global model.

The paper (eq. external-aggr) takes the plain mean of all M stations, ω ← (1/M) Σ_m ω^m: summed in float64, factory by
factory; of whole-number buffers the greatest. A factory that made no step in the round sits it out: the mean is over
the others. With several processes each adds up its own stations, and one all-reduce gives the sum. With
``server.class_wise`` the classifier is averaged class by class (:mod:`fedgs.algorithms.class_wise`).

Any server rule of ``fedgs.algorithms`` can take the mean's place; every station counts as one sample. A rule sees the
trained weights alone: buffers are averaged whatever it does. A station reports the steps it made (FedNova) and, for
INTRAC, the accuracy of its model on the samples of its last iteration.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.class_wise import ClassRows, row_weights
from fedgs.algorithms.rule import ServerRule, begin_by, required_metrics, update_by
from fedgs.algorithms.server import rule_of
from fedgs.algorithms.upload import Upload
from fedgs.settings import ServerSettings
from fedgs.training.layout import Layout

if TYPE_CHECKING:
    from fedgs.simulation.process_group import ProcessGroup


class Synchroniser:
    """Applies the server rule of the settings, or one that is given."""

    def __init__(
        self, settings: ServerSettings, layout: Layout, group: "ProcessGroup", head: str | None = None,
        classes: int = 0, rule: ServerRule | None = None,
    ) -> None:  # fmt: skip
        self.layout, self.group = layout, group
        self._rows = ClassRows(layout, head, classes) if settings.class_wise else None
        self._rule = rule if rule is not None else rule_of(settings)

    @property
    def needs_accuracy(self) -> bool:
        """Whether stations must report their training accuracy (INTRAC)."""
        return self._rule is not None and "train_acc" in required_metrics(self._rule)

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the rule remembers before the first round."""
        if self._rule is None:
            return {}
        return begin_by(self._rule, self.layout.trained_views(weights))

    def update(
        self,
        memory: dict[str, Any],
        weights: Tensor,
        stations: Tensor,
        trained: NDArray[np.bool_],
        reports: Sequence[Mapping[str, float]] = (),
        seen: NDArray[np.int64] | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the next global weights and what to remember.

        ``stations`` are this process's; ``trained`` tells for all factories whether they made a step, ``reports`` what
        they measured: ``steps`` and, where the rule needs it, ``train_acc``. ``seen``: the samples of each class that
        the factories trained on, for ``server.class_wise``.
        """
        if not trained.any():
            return weights, memory
        mean = self._mean(stations, trained)
        if self._rule is None:
            if self._rows is not None and seen is not None:
                shares = row_weights(seen, trained)[self.group.shard(len(trained))]
                total = self._rows.average(stations, shares)
                self.group.add_up(total)
                self._rows.put(total, mean)
            return mean, memory
        everyone = self.group.gather_rows(stations, len(trained))
        uploads = [
            Upload(self.layout.trained_views(everyone[factory]), 1, reports[factory] if reports else {})
            for factory in np.flatnonzero(trained).tolist()
        ]
        new, memory = update_by(self._rule, memory, self.layout.trained_views(weights), uploads)
        for name, view in self.layout.trained_views(mean).items():
            view.copy_(new[name])
        return mean, memory

    def _mean(self, stations: Tensor, trained: NDArray[np.bool_]) -> Tensor:
        total = torch.zeros(stations.shape[1], dtype=torch.float64, device=stations.device)
        highest = torch.full_like(total[self.layout.float_size :], -torch.inf)
        for row, factory in enumerate(self.group.shard(len(trained)).tolist()):
            if trained[factory]:
                total += stations[row]
                highest = torch.maximum(highest, stations[row, self.layout.float_size :])
        self.group.add_up(total)
        mean = (total / int(trained.sum())).float()
        if self.layout.integers:
            self.group.greatest(highest)
            mean[self.layout.float_size :] = highest.float()
        return mean
