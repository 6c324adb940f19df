"""The bearing data of Case Western Reserve University, where a user has the .mat files: loader alone, no download.

The Bearing Data Center publishes one .mat file a recording, named by a number: a motor with a seeded defect of some
diameter in one place, at one of four loads. Read here are the normal recordings and those of the drive end at 12,000
samples a second with the defect on the inner race, the ball, or the outer race at 6 o'clock. Each is cut into windows
of 1,024 samples of the drive-end and fan-end accelerometers; the windows of each load are split among some devices.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.errors import InputFileError

WINDOW = 1_024
FIRST_FILES = {
    "normal": 97,
    "inner race 0.007": 105,
    "ball 0.007": 118,
    "outer race 0.007": 130,
    "inner race 0.014": 169,
    "ball 0.014": 185,
    "outer race 0.014": 197,
    "inner race 0.021": 209,
    "ball 0.021": 222,
    "outer race 0.021": 234,
}
"""The number of the recording without load; those at 1, 2 and 3 horsepower follow it. Diameters are in inches."""
LOADS = 4


def load_cwru(folder: str | Path, devices_per_load: int = 5, window: int = WINDOW) -> DataSet:
    """Return the recordings in a folder, whatever its own layout, as windows (2, window) of float32.

    Args:
        folder: with files named by their numbers: ``97.mat``, ``105.mat``, …; missing recordings are left out.
        devices_per_load: devices that share the windows of one load.
        window: samples of a window.
    """
    root = Path(folder)
    known = {first + load: (kind, load) for kind, first in FIRST_FILES.items() for load in range(LOADS)}
    files = {int(path.stem): path for path in sorted(root.rglob("*.mat")) if path.stem.isdecimal()}
    wanted = {number: files[number] for number in sorted(known) if number in files}
    if not wanted:
        raise InputFileError(f"{root}: no recording of the CWRU bearing data in it (97.mat, 105.mat, …)")
    kinds = tuple(kind for kind in FIRST_FILES if any(known[number][0] == kind for number in wanted))
    signals, targets, clients = [], [], []
    for number, path in wanted.items():
        kind, load = known[number]
        windows = _windows(path, number, window)
        signals.append(windows)
        targets.append(np.full(len(windows), kinds.index(kind)))
        clients.append(load * devices_per_load + np.arange(len(windows)) % devices_per_load)
    client = np.concatenate(clients)
    present, client = np.unique(client, return_inverse=True)
    order = np.argsort(client, kind="stable")
    return DataSet(
        name="cwru",
        inputs=np.concatenate(signals)[order],
        targets=np.concatenate(targets)[order].astype(np.uint8),
        clients=client[order].astype(np.int32),
        client_names=tuple(f"load-{one // devices_per_load}-{one % devices_per_load}" for one in present),
        classes=kinds,
        attributes={"load": (present // devices_per_load).astype(np.int32)},
    )


def _windows(path: Path, number: int, window: int) -> NDArray[np.float32]:
    """Return the windows of one recording, (windows, 2, window)."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        stored: dict[str, Any] = loadmat(path)
    except (OSError, ValueError, NotImplementedError, TypeError, MatReadError) as error:
        raise InputFileError(f"{path}: cannot be read as a .mat file ({error})") from None
    channels = []
    for place in ("DE", "FE"):
        # A few files hold two recordings; the one with the file's own number counts.
        names = [f"X{number:03d}_{place}_time", *(name for name in stored if name.endswith(f"_{place}_time"))]
        found = next((stored[name] for name in names if name in stored), None)
        if found is None:
            raise InputFileError(f"{path}: has no signal X{number:03d}_{place}_time")
        channels.append(np.asarray(found, np.float32).ravel())
    length = min(map(len, channels)) // window * window
    if not length:
        raise InputFileError(f"{path}: is shorter than a window of {window} samples")
    cut = np.stack([channel[:length].reshape(-1, window) for channel in channels], axis=1)
    return np.ascontiguousarray(cut)
