"""What a network trains and carries along, as one flat float32 vector, and the named views into it.

    trained weights │ buffers (running statistics) │ whole-number buffers (counters)

The stations of M factories are then an (M, size) array; averaging, optimisers and checkpoints need no loop over layers.
Weights that are frozen (``requires_grad`` false) are in no vector: they neither train nor travel. A weight that is used
twice is there once. Kernels of 2-D convolutions lie in channels-last order, which is what both processors and GPUs
compute fastest; the named views show the usual shape.

Buffers are averaged like weights, by numbers of samples; of whole numbers the greatest counts. Whole numbers lie in the
vector as float32, which is exact up to 2²⁴.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgs.errors import CheckpointError, ConfigError, DataError
from fedgs.files import write_bytes
from fedgs.weights import WeightShapes

WEIGHT_BYTES = 4
"""of a weight in memory and on the wire"""
LARGEST_INTEGER = 1 << 24
MODEL = "model.safetensors"
"""The name of a run's model file."""


@dataclass(frozen=True)
class Layout(WeightShapes):
    """Names and shapes of a network's weights and buffers, with the tensors that are views into the flat vector."""

    integer_types: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Types of the buffers that hold whole numbers."""
    local: frozenset[str] = frozenset()
    """Names that never leave a device."""

    @classmethod
    def of(cls, module: nn.Module, keep_local: Sequence[str] = ()) -> "Layout":
        """Return the layout of a network; ``keep_local``: patterns of names that stay on the devices."""
        weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        buffers = dict(persistent_buffers(module))
        floating = {name: value for name, value in buffers.items() if value.is_floating_point()}
        integers = {name: value for name, value in buffers.items() if name not in floating}
        for name, value in floating.items():
            if value.dtype != torch.float32:
                kind = str(value.dtype).removeprefix("torch.")
                raise ConfigError(f"buffer {name!r} of the network is {kind}; float32 is needed, call .float() on it")
        for name, value in integers.items():
            if value.is_complex() or (value.numel() and int(value.long().abs().max()) > LARGEST_INTEGER):
                raise ConfigError(
                    f"buffer {name!r} of the network holds numbers beyond {LARGEST_INTEGER}; register it with "
                    "persistent=False if it is a constant"
                )
        everything = {**weights, **floating, **integers}
        local = frozenset(name for name in everything if any(fnmatchcase(name, pattern) for pattern in keep_local))
        for pattern in keep_local:
            if not any(fnmatchcase(name, pattern) for name in everything):
                raise ConfigError(f"task.keep_local={pattern!r} fits no weight; there are {', '.join(everything)}")
        if set(weights) <= local:
            raise ConfigError("task.keep_local keeps every weight on its device, so nothing is left to learn together")
        return cls(
            tuple((name, tuple(value.shape)) for name, value in everything.items()),
            len(buffers),
            len(integers),
            {name: value.dtype for name, value in integers.items()},
            local,
        )

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor]) -> "Layout":
        """Return the layout of named weights, all of them trained."""
        return cls(tuple((name, tuple(weight.shape)) for name, weight in weights.items()))

    def changed(self, without: str, more: Mapping[str, Tensor]) -> "Layout":
        """Return the layout without the weights whose names begin with ``without``, and with more trained weights."""
        kept = self.only({name for name in self.names if not (without and name.startswith(without))})
        new = tuple((name, tuple(weight.shape)) for name, weight in more.items())
        tensors = kept.tensors[: kept.trained] + new + kept.tensors[kept.trained :]
        return Layout(tensors, kept.buffers, kept.integers, self.integer_types, self.local)

    @property
    def has_buffers(self) -> bool:
        """Whether anything travels that is not trained."""
        return self.buffers > 0

    @cached_property
    def local_places(self) -> NDArray[np.int64]:
        """The numbers of the vector that never leave a device, ascending."""
        mine = [np.arange(self.places[name].start, self.places[name].stop) for name in self.names if name in self.local]
        return np.concatenate(mine) if mine else np.empty(0, np.int64)

    @property
    def shared_size(self) -> int:
        """The numbers that travel."""
        return self.size - len(self.local_places)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the named weights and buffers as views into a flat vector, or into many: (networks, size)."""
        pieces = torch.split(flat, self.sizes, dim=-1)
        return {name: _view(piece, shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def trained_views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the trained weights as views into a flat vector, of the whole network or of these weights alone."""
        pieces = torch.split(flat[: self.trained_size], self.sizes[: self.trained])
        return {name: _view(piece, shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=False)}

    def one_client(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the views as networks take them: (1, …) each, of one client."""
        return {name: view[None] for name, view in self.views(flat).items()}

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return copies of weights and buffers, contiguous, of their own types and on the CPU: for files."""
        return {
            name: view.detach().cpu().to(self.integer_types.get(name, torch.float32)).contiguous().clone()
            for name, view in self.views(flat).items()
        }

    def flatten(self, weights: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """Return the flat vector of named weights and buffers."""
        if tuple(weights) != self.names and set(weights) != set(self.names):
            odd = sorted(set(weights) ^ set(self.names))[0]
            raise DataError(f"weight {odd!r} is missing or belongs to another network")
        flat = torch.empty(self.size) if out is None else out
        for name, view in self.views(flat).items():
            if weights[name].shape != view.shape:
                raise DataError(f"weight {name!r} has shape {tuple(weights[name].shape)}, not {tuple(view.shape)}")
            view.copy_(weights[name].detach())
        return flat

    def of_module(self, module: nn.Module) -> Tensor:
        """Return the flat vector of a network's weights and buffers."""
        known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return self.flatten({name: known[name] for name in self.names})

    def load(self, module: nn.Module, flat: Tensor) -> None:
        """Copy a flat vector into a network."""
        known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, view in self.views(flat).items():
                known[name].copy_(view)

    def stacked(self, stations: int, device: torch.device) -> dict[str, Tensor]:
        """Return room for the weights of many networks, one tensor (stations, …) a name, kernels channels-last."""
        return {name: _view(torch.zeros(stations, prod(shape), device=device), shape) for name, shape in self.tensors}

    def scatter(self, flats: Tensor, into: dict[str, Tensor]) -> None:
        """Copy (stations, weights) into the tensors of :meth:`stacked`."""
        for name, view in self.views(flats).items():
            into[name].copy_(view)

    def gather(self, stacked: dict[str, Tensor]) -> Tensor:
        """Return (stations, weights), the opposite of :meth:`scatter`."""
        parts = []
        for name, shape in self.tensors:
            weight = stacked[name]
            parts.append((weight.permute(0, 1, 3, 4, 2) if len(shape) == 4 else weight).reshape(len(weight), -1))
        return torch.cat(parts, dim=1)


def persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that are part of a network's state, each once; constants (``persistent=False``) are not."""
    seen = set()
    for prefix, part in module.named_modules():
        for name, value in part._buffers.items():
            if value is None or name in part._non_persistent_buffers_set or id(value) in seen:
                continue
            seen.add(id(value))
            yield (f"{prefix}.{name}" if prefix else name), value


def _view(pieces: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return (…, numbers) as (…, *shape), kernels of convolutions from their order in memory, channels last."""
    if len(shape) != 4:
        return pieces.view((*pieces.shape[:-1], *shape))
    out_channels, in_channels, height, width = shape
    return pieces.view(*pieces.shape[:-1], out_channels, height, width, in_channels).movedim(-1, -3)


def frozen_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the weights that neither train nor travel; a model file holds them, to be usable alone."""
    return {
        name: weight.detach().cpu().contiguous().clone()
        for name, weight in module.named_parameters()
        if not weight.requires_grad
    }


def save_model(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the named weights and buffers of a model as one safetensors file, whole or not at all."""
    from safetensors.torch import save

    write_bytes(path, save(dict(weights)), durable=True)


def load_model(path: Path, layout: Layout, frozen: Collection[str] = ()) -> Tensor:
    """Read the flat weights of a file that :func:`save_model` wrote, without the ``frozen`` ones."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return layout.flatten({name: weight for name, weight in load_file(path).items() if name not in frozen})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read as a model ({error})") from None


def model_file(path: str | Path) -> Path:
    """Return the model file that a path names: itself, or that of the run in this folder."""
    return Path(path) / MODEL if Path(path).is_dir() else Path(path)
