"""The weights of a model as one flat vector: names, shapes and places, without torch.

    trained weights │ buffers (running statistics) │ whole-number buffers (counters)

Training (:class:`fedgs.training.layout.Layout`) and deployment (:class:`fedgs.deploy.tensors.Shapes`) build on it.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod


@dataclass(frozen=True)
class WeightShapes:
    """Names and shapes of a model's weights and buffers, in the order of the flat vector."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    buffers: int = 0
    """So many of the tensors are not trained, the last ones …"""
    integers: int = 0
    """… and so many of these hold whole numbers, the last of all."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(name for name, _ in self.tensors)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Their shapes."""
        return tuple(shape for _, shape in self.tensors)

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each of them has."""
        return [prod(shape) for shape in self.shapes]

    @property
    def trained(self) -> int:
        """How many tensors are trained, the first ones."""
        return len(self.tensors) - self.buffers

    @cached_property
    def size(self) -> int:
        """The length of the vector."""
        return sum(self.sizes)

    @cached_property
    def trained_size(self) -> int:
        """The length of its first part, the trained weights."""
        return sum(self.sizes[: self.trained])

    @cached_property
    def float_size(self) -> int:
        """The length of all but whole numbers: what is averaged."""
        return sum(self.sizes[: len(self.sizes) - self.integers])

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each tensor lies in the vector."""
        found, first = {}, 0
        for name, size in zip(self.names, self.sizes, strict=True):
            found[name] = slice(first, first + size)
            first += size
        return found

    def only(self, names: frozenset[str] | set[str]) -> "WeightShapes":
        """Return the part with these names."""
        kept = [name in names for name in self.names]
        return WeightShapes(
            tuple(tensor for tensor, here in zip(self.tensors, kept, strict=True) if here),
            sum(kept[self.trained :]),
            sum(kept[len(kept) - self.integers :]),
        )
