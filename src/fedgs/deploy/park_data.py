"""The data of a park on this machine, as files: what each device holds, and what the top server tests on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data import DataSet, Federation
from fedgs.data.arrays import take
from fedgs.data.dataset import ONE_BIN
from fedgs.data.federation import FEDERATION
from fedgs.data.npz import save_npz
from fedgs.files import make_folder, write_text
from fedgs.settings import Settings

SETTINGS = "config.json"


def data_file(name: str) -> str:
    """Return the file of a device's samples; what follows a comma would be an option of the source."""
    return f"data/{name.replace('%', '%25').replace(',', '%2C')}.npz"


def write_files(folder: Path, settings: Settings, federation: Federation) -> None:
    """Write what a park reads: its settings, who there is, and the data of each device."""
    make_folder(folder)
    write_text(folder / SETTINGS, json.dumps(settings.model_dump(), indent=1) + "\n")
    write_text(folder / FEDERATION, json.dumps(federation.facts()) + "\n")
    write_data(federation, folder / "data")


def write_data(federation: Federation, folder: Path) -> None:
    """Write what each device holds, what the top server tests on, and P_real."""
    make_folder(folder)
    for device, name in enumerate(federation.device_names):
        save_npz(dataset_of(federation, name, [name], [federation.train[device]]), folder.parent / data_file(name))
    tests = [federation.test[device] for device in range(len(federation))]
    # A data set lists its clients by name; the federation has them by factory.
    order = sorted(range(len(federation)), key=lambda device: federation.device_names[device])
    names = [federation.device_names[device] for device in order]
    save_npz(dataset_of(federation, "held-out", names, [tests[device] for device in order]), folder / "held-out.npz")
    write_text(folder / "target.json", json.dumps(federation.p_real().tolist()) + "\n")


def dataset_of(federation: Federation, name: str, clients: Sequence[str], samples: Sequence[Any]) -> DataSet:
    """Return the data set of these clients, each with its samples."""
    rows = np.concatenate(samples)
    return DataSet(
        name,
        take(federation.inputs, rows),
        take(federation.targets, rows),
        np.repeat(np.arange(len(clients), dtype=np.int32), [len(part) for part in samples]),
        tuple(clients),
        classes_of(federation),
    )


def classes_of(federation: Federation) -> tuple[str, ...]:
    """Return the classes of a federation whose targets are classes; none of others."""
    same = isinstance(federation.targets, np.ndarray) and np.array_equal(federation.targets, federation.labels)
    return federation.classes if same and federation.classes != ONE_BIN else ()
