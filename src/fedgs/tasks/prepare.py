"""From stored arrays to what a network takes: prepared inputs, targets as tensors, per-channel normalisation.

And a stand-in for data that nobody has here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgs.data import Federation
from fedgs.data.arrays import find_not_finite, leaves, map_tree, rows_of, take
from fedgs.data.dataset import IndexLists
from fedgs.errors import ConfigError

CHUNK = 512
"""Samples that statistics are taken of at a time."""
STATISTIC = re.compile(r"(mean|deviation)_\d+")
"""The buffers of :class:`NormalisedInputs`."""
Moments = NDArray[np.float64]
"""(3, channels) number, sum and sum of squares of some values."""


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor; a read-only one is copied, types that torch lacks are widened."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.kind == "U":
        raise TypeError("text")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def default_prepare(raw: Any) -> Any:
    """Return images of bytes as float CHW from 0 to 1, other numbers as float32 or int64."""
    return map_tree(_prepared, raw)


def _prepared(raw: Tensor) -> Tensor:
    if raw.dtype == torch.uint8 and raw.ndim in (3, 4):
        return as_input(raw)
    if raw.is_floating_point() or raw.dtype == torch.bool:
        return raw.float()
    if raw.is_complex():
        raise ValueError("complex numbers; give the task a prepare, for example prepare=lambda x: x.abs()")
    return raw.long()


def image_prepare(raw: Tensor) -> Tensor:
    """Return images (batch, height, width[, channels]) of bytes or floats as float CHW: for the built-in CNNs."""
    if raw.dtype == torch.uint8:
        return as_input(raw)
    return raw.float().view(len(raw), *full_shape(raw.shape[1:])).permute(0, 3, 1, 2)


def prepare_targets(raw: Any) -> Any:
    """Return classes as int64, other numbers as float32."""

    def prepared(value: Tensor) -> Tensor:
        if value.is_complex():
            raise TypeError("complex targets")
        return value.float() if value.is_floating_point() else value.long()

    return map_tree(prepared, raw)


def full_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return (height, width, channels) of images that may come without a channel dimension."""
    height, width, *rest = image_shape
    return int(height), int(width), int(rest[0]) if rest else 1


def as_input(images: Tensor) -> Tensor:
    """Return uint8 images (batch, height, width[, channels]) as float32 from 0 to 1, channels-last in memory."""
    return images.view(-1, *full_shape(images.shape[1:])).permute(0, 3, 1, 2).float().div_(255)


def call(module: nn.Module, inputs: Any) -> Any:
    """Call a network with one input, several (a tuple), or named ones (a dict)."""
    if isinstance(inputs, dict):
        outputs = module(**inputs)
    else:
        outputs = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
    for name, value in leaves(outputs):
        if not isinstance(value, Tensor):
            what = f"output {name!r} is" if name else "outputs are"
            raise ConfigError(
                f"task.model {type(module).__name__}: its {what} a {type(value).__name__}; give a tensor, or a tuple "
                "or dict of tensors"
            )
    return outputs


class NormalisedInputs(nn.Module):
    """A network behind (x − mean) / deviation of every channel; both are buffers, so they travel and are exported."""

    def __init__(self, network: nn.Module, statistics: Sequence[tuple[Tensor, Tensor] | None]) -> None:
        """``statistics``: mean and deviation of each input; None: it is taken as it is."""
        super().__init__()
        self.network = network
        for number, found in enumerate(statistics):
            if found is not None:
                self.register_buffer(f"mean_{number}", found[0])
                self.register_buffer(f"deviation_{number}", found[1])

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Normalise the inputs and call the network."""
        values = [self._normalised(number, value) for number, value in enumerate((*inputs, *named.values()))]
        return self.network(*values[: len(inputs)], **dict(zip(named, values[len(inputs) :], strict=True)))

    def _normalised(self, number: int, value: Any) -> Any:
        mean = getattr(self, f"mean_{number}", None)
        if mean is None:
            return value
        shape = (1, -1, *[1] * (value.ndim - 2))
        return (value - mean.view(shape)) / getattr(self, f"deviation_{number}").view(shape)


def normalised(module: nn.Module, federation: Federation, prepare: Any) -> nn.Module:
    """Return a network behind the normalisation of its inputs; as it is where no input can be normalised."""
    statistics = channel_statistics(federation, prepare)
    return NormalisedInputs(module, statistics) if any(one is not None for one in statistics) else module


def channel_statistics(federation: Federation, prepare: Any) -> list[tuple[Tensor, Tensor] | None]:
    """Return mean and standard deviation of every channel of every input, over all training samples.

    Computed as a federation would: every device gives the number, the sum and the sum of squares of its own values, and
    only these are added up. Channels are dimension 1: features of a table, channels of a signal or an image.
    """
    parts = []
    for device, name in enumerate(federation.device_names):
        samples = federation.train[device]
        pieces = (samples[first : first + CHUNK] for first in range(0, len(samples), CHUNK))
        parts.append(device_moments((take(federation.inputs, piece) for piece in pieces), prepare, name, samples))
    totals = _added_up(parts)
    return [None if total is None else _mean_and_deviation(total) for total in totals]


def device_moments(
    pieces: Iterable[Any], prepare: Any, device: str, samples: NDArray[np.integer] | None = None
) -> list[Moments | None]:
    """Return the moments of a device's values, for each of its inputs.

    ``pieces``: stored inputs of some samples; ``samples``: which ones they are, for messages.
    """

    def by_piece() -> Iterator[list[Moments | None]]:
        before = 0
        for piece in pieces:
            prepared = prepare(map_tree(as_tensor, piece))
            found = [_moments(value) for _, value in leaves(prepared)]
            if not all(one is None or np.isfinite(one).all() for one in found):
                places = (find_not_finite(value.double().numpy()) for _, value in leaves(prepared))
                row = before + next((place for place in places if place is not None), 0)
                row = row if samples is None else int(samples[row])
                raise ConfigError(f"task.prepare: makes NaN or infinity of inputs of device {device!r}, sample {row}")
            before += rows_of(piece)
            yield found

    return _added_up(by_piece())


def _added_up(parts: Iterable[list[Moments | None]]) -> list[Moments | None]:
    """Return the sums over the parts, of each input by itself."""
    totals: list[Moments | None] = []
    for part in parts:
        pairs = zip(totals, part, strict=True)
        totals = [None if old is None or new is None else old + new for old, new in pairs] if totals else part
    return totals


def _moments(values: Tensor) -> Moments | None:
    if not isinstance(values, Tensor):
        raise ConfigError(f"task.prepare: gives a {type(values).__name__}; torch tensors are needed")
    if not values.is_floating_point() or values.ndim < 2:
        return None
    by_channel = values.double().transpose(0, 1).flatten(1)
    count = torch.full((len(by_channel),), float(by_channel.shape[1]), dtype=torch.float64)
    found: Moments = torch.stack([count, by_channel.sum(1), by_channel.square().sum(1)]).numpy()
    return found


def statistics_from(total: Moments, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the buffers of :class:`NormalisedInputs` from the moments of all its channels, input after input."""
    means = [name for name in statistics_of(buffers) if name.startswith("mean")]
    ends = np.cumsum([len(buffers[name]) for name in means])
    found = {}
    for name, part in zip(means, np.split(total, ends[:-1], axis=1), strict=True):
        found[name], found[name.replace("mean", "deviation")] = _mean_and_deviation(part)
    return found


def statistics_of(weights: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return the statistics among a network's weights, by name."""
    return {name: value.tolist() for name, value in weights.items() if STATISTIC.fullmatch(name)}


def _mean_and_deviation(total: Moments) -> tuple[Tensor, Tensor]:
    count, first, second = total
    mean = first / count
    deviation = np.sqrt(np.maximum(second / count - mean**2, 0.0))
    deviation[deviation <= 1e-7 * np.abs(mean)] = 1.0  # a channel that never changes, but for rounding
    return torch.from_numpy(mean).float(), torch.from_numpy(deviation).float()


def stand_in(inputs: Any, classes: int | Sequence[str]) -> Federation:
    """Return a federation of one sample with these shapes: networks are built to them, without any data.

    ``inputs``: shape and type of one sample, a list of both; or a list or dict of such; None: nobody knows.
    """

    def array(described: Any) -> Any:
        return np.zeros((1, *described[0]), np.dtype(described[1]))

    if inputs is None:
        found: Any = np.zeros((1, 1), np.float32)
    elif isinstance(inputs, Mapping):
        found = {key: array(one) for key, one in inputs.items()}
    elif isinstance(inputs[1], str):
        found = array(inputs)
    else:
        found = tuple(array(one) for one in inputs)
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    none, one = IndexLists.of([np.empty(0, np.int64)]), IndexLists.of([np.zeros(1, np.int64)])
    return Federation(
        "stand-in", found, np.zeros(1, np.int64), np.zeros(1, np.int32), names, ("one",), ("one",),
        np.zeros(1, np.int32), one, none,
    )  # fmt: skip
