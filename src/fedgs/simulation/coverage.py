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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgs.data import DeviceStreams, Federation
from fedgs.selection.coverage import fair_shares, queues_after
from fedgs.settings import SelectionSettings

Devices = NDArray[np.int64]


class Coverage:
    """The queues of all devices."""

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
