"""The external synchronisation: the stations' models become the next global model.

The paper (eq. external-aggr) takes the plain mean of all M stations, ω ← (1/M) Σ_m ω^m: summed in float64, factory by
factory. A factory that made no step in the round sits it out: the mean is over the others. With several processes
each adds up its own stations, and one all-reduce gives the sum. With ``server.by_class`` the classifier is averaged
class by class (:mod:`fedgs.algorithms.class_wise`).

Any server rule of ``fedgs.algorithms`` can take the mean's place; every station counts as one sample. A station
reports the steps it made (FedNova) and, for INTRAC, the accuracy of its model on the samples of its last iteration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import ServerRule, Upload, server_rule
from fedgs.algorithms.class_wise import ClassRows, row_weights
from fedgs.algorithms.rule import asked_for
from fedgs.errors import AlgorithmError, ConfigError
from fedgs.settings import ServerSettings
from fedgs.simulation.process_group import World
from fedgs.training.layout import Layout


class Synchroniser:
    """Applies the server rule of the settings."""

    def __init__(self, settings: ServerSettings, layout: Layout, world: World | None = None) -> None:
        self.layout, self.world = layout, world or World()
        self._rows = ClassRows(layout.shapes) if settings.by_class else None
        self._rule: ServerRule | None = None
        if settings.rule == "mean":
            if settings.options:
                raise ConfigError(
                    f"server.options={settings.options} has no meaning with server.rule='mean'; remove it"
                )
            return
        try:
            self._rule = server_rule(settings.rule, **settings.options)
        except AlgorithmError as error:
            raise ConfigError(f"server.rule={settings.rule!r}: {error}") from None

    @property
    def needs_accuracy(self) -> bool:
        """Whether stations must report their training accuracy (INTRAC)."""
        return self._rule is not None and "train_acc" in asked_for(self._rule)

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the rule remembers before the first round."""
        if self._rule is None:
            return {}
        return dict(self._rule.init(self.layout.views(weights)))

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
        the factories trained on, for ``server.by_class``.
        """
        if not trained.any():
            return weights, memory
        if self._rule is None:
            mean = self._mean(stations, trained)
            if self._rows is None or seen is None:
                return mean, memory
            return self._with_rows(self._rows, mean, stations, row_weights(seen, trained)), memory
        everyone = self.world.gather_rows(stations, len(trained))
        uploads = [
            Upload(self.layout.views(everyone[factory]), 1, reports[factory] if reports else {})
            for factory in np.flatnonzero(trained).tolist()
        ]
        new, memory = self._rule.update(memory, self.layout.views(weights), uploads)
        return self.layout.flatten(new, out=torch.empty_like(weights)), memory

    def _mean(self, stations: Tensor, trained: NDArray[np.bool_]) -> Tensor:
        total = torch.zeros(stations.shape[1], dtype=torch.float64, device=stations.device)
        for row, factory in enumerate(self.world.shard(len(trained)).tolist()):
            if trained[factory]:
                total += stations[row]
        self.world.add_up(total)
        return (total / int(trained.sum())).float()

    def _with_rows(self, rows: ClassRows, mean: Tensor, stations: Tensor, weights: NDArray[np.float64]) -> Tensor:
        total = rows.total(stations, weights[self.world.shard(len(weights))])
        self.world.add_up(total)
        mean[-rows.size :] = total.to(mean)
        return mean
