"""``fedgs run --data``: the sizes of a run follow from a user's own data, and are said before it begins.

All devices take part. Factories are those of an attribute (the folder level above the devices is one), or ⌈√devices/2⌉
of equal size; each station picks a fifth of its devices, at least two. Large or unequal photos are resized, and photos
without devices are dealt to some. Whatever the user says himself, in a file or an option, stays.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from fedgs.config import checked_settings, given_values, load_settings
from fedgs.data import Clients, DataSet, Federation, clients_of
from fedgs.data.arrays import shapes_of
from fedgs.data.build import default_factories
from fedgs.data.sources import EMBEDDED, is_image_folder
from fedgs.data.user_data import ONE_CLIENT, image_files
from fedgs.errors import DataError
from fedgs.settings import Settings
from fedgs.simulation.federations import default_pick, load_data, load_federation, split_clients

PRESET = "own"
LARGEST, SIDE = 96, 64
"""Photos with a longer side, or of several sizes, are resized to squares of this side."""
FEWEST = 2
"""Samples of a device: one to train on, one to test on."""
SIGNAL = 512
"""Values that the network for signals needs of each channel."""
DEALT, EACH = 24, 20
"""Samples without devices are dealt to so many, with so many each at least."""


@dataclass(frozen=True)
class OwnData:
    """What a run on a user's own data begins with."""

    settings: Settings
    federation: Federation
    notes: tuple[str, ...]
    """What was decided for the user, in lines for him to read."""


def own_data(name: str, config: Path | None, overrides: Sequence[str], preset: str = PRESET) -> OwnData:
    """Load a user's data and find the settings of a run on it."""
    told = given_values(config, overrides)
    section = {"min_samples": FEWEST, **_section(told, "data"), "name": name}
    notes = []
    if section.get("size") is None and is_image_folder(name) and (side := _side(Path(name))) is not None:
        section["size"] = side
        notes.append(f"photos are resized to {side}×{side} pixels; --set data.size=128 keeps more of them")
    more = {key: value for key, value in told.items() if key in ("seed", "init")}
    first = checked_settings({"data": section, **more}, "settings" if config is None else str(config))
    dataset = load_data(first)
    if first.data.split is None and dataset.client_names == (ONE_CLIENT,) and dataset.classes:
        number = _dealt(dataset)
        section["split"] = {"kind": "dirichlet", "alpha": 1.0, "devices": number}
        notes.append(f"no folders of devices: the samples are dealt to {number} unlike devices; change it: data.split")
        first = checked_settings({"data": section, **more})
    notes += _twins(dataset.classes)
    sizes = _sizes(first, dataset, told, notes)
    if preset == PRESET and "task" not in told:
        sizes["task.model"] = _model(dataset)
    chosen = {f"data.{key}": value for key, value in section.items() if value is not None} | sizes
    every = [*(f"{key}={_toml(value)}" for key, value in chosen.items()), *overrides]
    other = () if preset == PRESET else ("data", "federation")  # another preset's are of its own data
    settings = load_settings(config, every, preset, given=overrides, without=other)
    if len(dataset.classes) == 1 and getattr(settings.task, "loss", None) == "cross_entropy":
        raise DataError(
            f"{name}: all samples are of one class ({dataset.classes[0]}): nothing to learn; give two classes or more"
        )
    federation = load_federation(settings, dataset)
    return OwnData(settings, federation, (_described(federation, settings), *notes))


def _sizes(first: Settings, dataset: DataSet, told: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the settings of sizes, as they are told or as they follow from the data."""
    data, federation = first.data, _section(told, "federation")
    clients = clients_of(dataset)
    if data.split is not None:
        wanted = data.split.devices or federation.get("devices", _dealt(dataset))
        clients = split_clients(dataset, data.split, wanted, first.seed)
    elif data.name not in EMBEDDED:
        clients = _large_enough(clients, data.min_samples, notes)
    devices = federation.get("devices", len(clients))
    found: dict[str, Any] = {}
    attribute = data.attribute or _attribute(clients, told)
    smallest = None
    if attribute is not None and devices == len(clients) and attribute in clients.attributes:
        values, counts = np.unique(clients.attributes[attribute], return_counts=True)
        if federation.get("factories", len(values)) == len(values) and "partition" not in _section(told, "data"):
            found |= {"data.partition": "one-per-value", "data.attribute": attribute}
            found["federation.factories"], smallest = len(values), int(counts.min())
    factories = found.get("federation.factories", federation.get("factories", default_factories(devices)))
    pick = default_pick(devices // max(1, factories) if smallest is None else smallest)
    found |= {"federation.devices": devices, "federation.factories": factories}
    return found | {"selection.pick": _section(told, "selection").get("pick", pick)}


def _dealt(dataset: DataSet) -> int:
    """Return how many devices samples are dealt to where nobody says."""
    return max(1, min(DEALT, len(dataset) // EACH))


def _large_enough(clients: Clients, fewest: int, notes: list[str]) -> Clients:
    """Return the clients with enough samples; who is left out is named."""
    small = np.flatnonzero(clients.samples.sizes < fewest)
    if len(small):
        named = ", ".join(clients.names[row] for row in small[:3]) + (", …" if len(small) > 3 else "")
        notes.append(f"left out, with fewer than {fewest} samples (data.min_samples): {named}")
    return clients.pick(np.flatnonzero(clients.samples.sizes >= fewest))


def _attribute(clients: Clients, told: dict[str, Any]) -> str | None:
    """Return the attribute that says the factories: the one of this name, or the only one."""
    if "partition" in _section(told, "data"):
        return None
    names = list(clients.attributes)
    return "factory" if "factory" in names else names[0] if len(names) == 1 else None


def _twins(classes: Sequence[str]) -> list[str]:
    """Return a line for classes whose names look alike: ok and OK, or an umlaut written as one character or as two."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(normalize("NFKC", name).casefold().split()), []).append(name)
    found = []
    for names in alike.values():
        show = (
            repr if len({normalize("NFC", name) for name in names}) == len(names) else ascii
        )  # which tells umlauts apart
        if len(names) > 1:
            found.append(
                f"warning: classes {' and '.join(map(show, names))} are counted as {len(names)}; rename the folders if "
                "they are one"
            )
    return found


def _side(folder: Path) -> int | None:
    """Return the side that photos are resized to; None where they are small and of one size."""
    from PIL import Image, UnidentifiedImageError

    shapes = set()
    for file in image_files(folder):
        try:
            with Image.open(folder / file) as picture:  # reads no more than its head
                shapes.add(picture.size)
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError):
            continue  # it is named when it is read
    return SIDE if len(shapes) > 1 or any(max(shape) > LARGEST for shape in shapes) else None


def _model(dataset: DataSet) -> str:
    """Return the built-in network for inputs of this shape: of photos, of signals (channels, length), of tables."""
    shape = shapes_of(dataset.inputs)
    sides = len(shape) if isinstance(shape, tuple) else 0
    if sides == 2 and dataset.inputs.dtype.kind == "f" and shape[0] < 16:
        return "vibration" if shape[1] >= SIGNAL else "linear"
    return "linear" if sides == 1 else "photo"


def _described(federation: Federation, settings: Settings) -> str:
    shape = shapes_of(federation.inputs)
    samples = len(federation.train.flat) + len(federation.test.flat)
    several = isinstance(shape, dict) or (shape and not isinstance(shape[0], int))
    each = "" if several or not shape else f" of {'×'.join(map(str, shape))}"
    classes = ", ".join(federation.classes[:8]) + (", …" if len(federation.classes) > 8 else "")
    sizes = f"{_counted(len(federation), 'devices')} in {_counted(federation.factories, 'factories')}"
    return (
        f"{federation.name}: {_counted(samples, 'samples')}{each}, {_counted(len(federation.classes), 'classes')} "
        f"({classes}); {sizes}, each station picks {settings.selection.pick} (--devices, --factories, --pick)"
    )


def _counted(number: int, what: str) -> str:
    one = {"classes": "class", "factories": "factory"}.get(what, what.removesuffix("s"))
    return f"{number} {one if number == 1 else what}"


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name, {})
    return dict(found) if isinstance(found, dict) else {}


def _toml(value: Any) -> str:
    """Return a value as it stands in a settings file."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items() if one is not None) + "}"
    return json.dumps(value, ensure_ascii=False)
