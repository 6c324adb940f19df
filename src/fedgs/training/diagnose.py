"""Why a loss is no finite number: a look at the data before the learning rate is blamed."""

import numpy as np
from numpy.typing import NDArray

from fedgs.data import Federation
from fedgs.data.arrays import leaves


def explain_loss(federation: Federation, samples: NDArray[np.integer]) -> str:
    """Return which of these samples hold NaN or infinity, and whose they are; "" where none does."""
    rows = np.asarray(samples, dtype=np.int64)
    for kind, tree in (("inputs", federation.inputs), ("targets", federation.targets)):
        for key, array in leaves(tree):
            if np.dtype(array.dtype).kind != "f" or not len(rows):
                continue
            values = np.asarray(array[rows]).reshape(len(rows), -1)
            bad = ~np.isfinite(values).all(axis=1)
            if bad.any():
                row = int(rows[int(np.argmax(bad))])
                name = f" {key!r}" if key else ""
                return f"{kind}{name} of sample {row} (device {federation.client_of(row)!r}) hold NaN or infinity"
    return ""
