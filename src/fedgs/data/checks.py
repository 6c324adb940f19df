"""Checks of arguments that several files of this room share."""

from typing import Any

import numpy as np


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, Python's or numpy's; True and 4.0 are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
