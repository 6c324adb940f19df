"""What clients remember from round to round (SCAFFOLD, FedDyn, MOON): tensors (clients, …) in the state of the run.

A baseline makes them in ``init_clients``, reads those of the clients of a batch in its objective, and writes those of
the participants in ``update``. They are checkpointed like all the server remembers. Each takes as much memory as the
models of all clients together: 350 clients with the paper's CNN take 9.2 GB, on a GPU three times that.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedgs.algorithms.mean import Weighting, sample_shares
from fedgs.algorithms.upload import Upload, Weights
from fedgs.errors import AlgorithmError
from fedgs.training.objective import Batch

Memory = dict[str, Tensor]
"""By the names of weights."""


def zeros(weights: Weights, clients: int | None = None) -> Memory:
    """Return zeros like the weights, or (clients, …) like the weights of so many clients."""
    size = () if clients is None else (clients,)
    return {name: weight.new_zeros((*size, *weight.shape)) for name, weight in weights.items()}


def rows_of(memory: Mapping[str, Tensor], batch: Batch) -> Memory:
    """Return what the D clients of a batch remember, (D, …) each, kernels in memory as those of the weights."""
    who = batch.clients[:, 0]
    return {name: _channels_last(values.index_select(0, who)) for name, values in memory.items()}


def _channels_last(values: Tensor) -> Tensor:
    if values.ndim != 5:
        return values
    return values.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(values.shape)


def inner_product(terms: Mapping[str, Tensor], weights: Weights) -> Tensor:
    """Return (D,) the inner products of terms, (D, …) or (1, …) each, with the weights of D clients."""
    products = [(term * weights[name]).flatten(1).sum(1) for name, term in terms.items()]
    return torch.stack(products).sum(0)


def participants(uploads: Sequence[Upload], memory: Mapping[str, Tensor]) -> list[int]:
    """Return the rows of memory that belong to the uploads."""
    clients = len(next(iter(memory.values())))
    rows = [upload.metrics.get("device", -1.0) for upload in uploads]
    for index, row in enumerate(rows):
        if not 0 <= row < clients or row != int(row):
            raise AlgorithmError(f"uploads[{index}].metrics['device'] is {row!r}; it must be from 0 to {clients - 1}")
    return [int(row) for row in rows]


def weighted_sum(values: Sequence[Tensor], uploads: Sequence[Upload], rule: object) -> Tensor:
    """Return the mean of one tensor per upload with the weights of the server rule, in float64."""
    weighting: Weighting = getattr(rule, "weighting", "samples")
    shares = sample_shares(uploads, weighting)
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for value, share in zip(values, shares, strict=True):
        total += value.double() * share
    return total
