"""Named weights as one flat float32 vector, and that vector as bytes: float32, bfloat16 or float16, little-endian.

Half the bytes cost little here: a device gets the station's weights rounded, but sends back only what its step moved
them by, and the station adds that to its own float32 weights. Rounding errors therefore do not pile up.

Neither a station nor a device without torch imports more than numpy and protobuf.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.errors import WireError
from fedgs.weights import WeightShapes

WireType = Literal["float32", "bfloat16", "float16"]
"""The names of pb.DType, as people write them."""
Flat = NDArray[np.float32]
MOST_TENSORS, MOST_DIMENSIONS, LONGEST_NAME = 4096, 8, 200
MOST_WEIGHTS = 2**31
"""Eight gigabytes of float32; more in one model is taken for a mistake."""


@dataclass(frozen=True)
class Shapes(WeightShapes):
    """Names and shapes of a model that may come over the wire: checked, with numpy views."""

    def __post_init__(self) -> None:
        if not 0 <= self.integers <= self.buffers < max(len(self.tensors), 1):
            raise WireError(
                f"{self.buffers} buffers, {self.integers} of whole numbers, among {len(self.tensors)} tensors"
            )
        if not 0 < len(self.tensors) <= MOST_TENSORS:
            raise WireError(f"{len(self.tensors)} tensors; a model has 1 to {MOST_TENSORS}")
        names = {name for name, _ in self.tensors}
        if len(names) != len(self.tensors):
            raise WireError("two tensors have the same name")
        for name, shape in self.tensors:
            if not name or len(name) > LONGEST_NAME or not name.isprintable():
                raise WireError(f"{name[:40]!r} is not the name of a tensor")
            if len(shape) > MOST_DIMENSIONS or any(not 0 < side < 2**31 for side in shape):  # () is a single number
                raise WireError(f"tensor {name!r} has shape {shape[:MOST_DIMENSIONS]}")
        if self.size > MOST_WEIGHTS:
            raise WireError(f"a model of {self.size} weights; {MOST_WEIGHTS} are the most")

    @classmethod
    def of(cls, weights: Mapping[str, Any], buffers: int = 0, integers: int = 0) -> "Shapes":
        """Return names and shapes of a dict of arrays or tensors, in its order."""
        tensors = tuple((name, tuple(int(side) for side in value.shape)) for name, value in weights.items())
        return cls(tensors, buffers, integers)

    def views(self, flat: Flat) -> dict[str, Flat]:
        """Return the named weights as views into a flat vector."""
        return {name: flat[self.places[name]].reshape(shape) for name, shape in self.tensors}

    def flatten(self, weights: Mapping[str, Any]) -> Flat:
        """Return the flat vector of named arrays."""
        flat = np.empty(self.size, np.float32)
        for name, view in self.views(flat).items():
            view[...] = weights[name]
        return flat

    def difference(self, other: "Shapes") -> str:
        """Say where another model differs; '' where it does not."""
        mine, theirs = dict(self.tensors), dict(other.tensors)
        for name in mine.keys() | theirs.keys():
            if name not in theirs:
                return f"lacks {name!r}"
            if name not in mine:
                return f"has {name[:40]!r}, which the model does not have"
            if mine[name] != theirs[name]:
                return f"has {name!r} of shape {theirs[name]}, the model has {mine[name]}"
        if (self.buffers, self.integers) != (other.buffers, other.integers):
            return f"has {other.buffers} buffers, the model has {self.buffers}"
        return "" if self.tensors == other.tensors else "has its tensors in another order"


_SIZES = {pb.FLOAT32: 4, pb.BFLOAT16: 2, pb.FLOAT16: 2}


def item_size(wire: int) -> int:
    """Return the bytes of one weight in a number format, a ``pb.DType``."""
    if wire not in _SIZES:
        raise WireError(f"a number format {wire}; known are {', '.join(map(wire_name, _SIZES))}")
    return _SIZES[wire]  # type: ignore[index]


def wire_name(wire: int) -> str:
    """Return the name of a number format."""
    return str(pb.DType.Name(wire)).lower()


def to_bytes(flat: Flat, wire: int) -> memoryview:
    """Return a flat vector as bytes; float32 without a copy."""
    if wire == pb.FLOAT32:
        coded: NDArray[Any] = np.ascontiguousarray(flat, dtype="<f4")
    elif wire == pb.BFLOAT16:
        # The upper half of a float32, rounded to nearest, ties to even.
        bits = np.ascontiguousarray(flat, dtype="<f4").view("<u4")
        coded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    else:
        with np.errstate(over="ignore"):  # the receiver refuses infinity
            coded = flat.astype("<f2")
    return coded.data.cast("B")


def from_bytes(data: bytes | bytearray | memoryview, wire: int) -> Flat:
    """Return the flat vector of bytes; float32 is a view into them."""
    if wire == pb.FLOAT32:
        return np.frombuffer(data, "<f4")
    if wire == pb.BFLOAT16:
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f2").astype(np.float32)


def norm(flat: Flat) -> float:
    """Return ‖flat‖₂; not finite where an entry is not, or where the square overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.dot(flat, flat), dtype=np.float64))
