"""All weights of a network as one flat float32 vector, and the named views into it.

The stations of M factories are then an (M, weights) array; averaging, momentum and checkpoints need no loop over
layers. Kernels of convolutions lie in the vector in channels-last order, which is what both processors and GPUs
compute fastest; the named views show the usual shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgs.errors import DataError

WEIGHT_BYTES = 4
"""of a weight in memory and on the wire"""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a network's weights, in the order of the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """Return the layout of a network; it must not have buffers (running statistics), which nobody averages."""
        buffers = [name for name, _ in model.named_buffers()]
        if buffers:
            raise DataError(f"the network has buffers that are not weights ({buffers[0]}); use layers without them")
        named = dict(model.named_parameters())
        return cls(tuple(named), tuple(weight.shape for weight in named.values()))

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor]) -> "Layout":
        """Return the layout of named weights."""
        return cls(tuple(weights), tuple(weight.shape for weight in weights.values()))

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(shape.numel() for shape in self.shapes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the named weights as views into a flat vector."""
        pieces = torch.split(flat, [shape.numel() for shape in self.shapes])
        return {name: _view(piece, shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return copies of the named weights, contiguous and on the CPU: for files."""
        return {name: view.detach().cpu().contiguous().clone() for name, view in self.views(flat).items()}

    def flatten(self, weights: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """Return the flat vector of named weights."""
        if tuple(weights) != self.names and set(weights) != set(self.names):
            odd = sorted(set(weights) ^ set(self.names))[0]
            raise DataError(f"weight {odd!r} is missing or belongs to another network")
        flat = torch.empty(self.size) if out is None else out
        for name, view in self.views(flat).items():
            if weights[name].shape != view.shape:
                raise DataError(f"weight {name!r} has shape {tuple(weights[name].shape)}, not {tuple(view.shape)}")
            view.copy_(weights[name].detach())
        return flat

    def stacked(self, stations: int, device: torch.device) -> dict[str, Tensor]:
        """Return room for the weights of many networks, one tensor (stations, …) a name, kernels channels-last."""
        return {
            name: _view_many(torch.zeros(stations, shape.numel(), device=device), shape)
            for name, shape in zip(self.names, self.shapes, strict=True)
        }

    def scatter(self, flats: Tensor, into: dict[str, Tensor]) -> None:
        """Copy (stations, weights) into the tensors of :meth:`stacked`."""
        pieces = torch.split(flats, [shape.numel() for shape in self.shapes], dim=1)
        for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True):
            into[name].copy_(_view_many(piece, shape))

    def gather(self, stacked: dict[str, Tensor]) -> Tensor:
        """Return (stations, weights), the opposite of :meth:`scatter`."""
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            weight = stacked[name]
            parts.append((weight.permute(0, 1, 3, 4, 2) if len(shape) == 4 else weight).reshape(len(weight), -1))
        return torch.cat(parts, dim=1)

    def bind(self, model: nn.Module, flat: Tensor) -> None:
        """Let the parameters of ``model`` be views into ``flat``: what changes one changes the other."""
        views = self.views(flat)
        for name, parameter in model.named_parameters():
            parameter.data = views[name]


def _view(piece: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return piece.view(shape)
    out_channels, in_channels, height, width = shape
    return piece.view(out_channels, height, width, in_channels).permute(0, 3, 1, 2)


def _view_many(pieces: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return pieces.view(len(pieces), *shape)
    out_channels, in_channels, height, width = shape
    return pieces.view(len(pieces), out_channels, height, width, in_channels).permute(0, 1, 4, 2, 3)
