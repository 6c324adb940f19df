"""How often each device was selected, and how long it had to wait: counted by iterations of FedGS, or by rounds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Turns:
    """The turns of all devices."""

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
