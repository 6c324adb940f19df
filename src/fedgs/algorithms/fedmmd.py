"""FedMMD: the local model may not answer too differently from the global one it came from.

Yao, Huang, Sun: "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018. The received model stays as
a frozen second stream; what both say of the same batch is compared by the squared maximum mean discrepancy:

    loss = CE(f_w(X), Y) + γ max(floor, MMD²(f_{w_t}(X), f_w(X)))
    MMD² = mean k(x_i, x_j) + mean k(y_i, y_j) − 2 mean k(x_i, y_j)             all i, j, the diagonal too; at least 0
    k(u, v) = Σ_σ exp(−‖u − v‖² / 2σ),   σ ∈ {10⁻⁶, …, 0.1, 1, 5, 10, …, 35, 100, …, 10⁶}   (19 widths, not squared)

Choices: ``layer="logits"`` is what the authors' code compares, ``"hidden"`` the last but one layer.
``kernel="fixed19"`` are the authors' widths; ``"adaptive5"`` is a later re-implementation's: five widths around the
mean squared distance of the pooled samples. The authors average uploads plainly, for their devices have equal data;
here by n_k. Tested is the single stream. At the first step both streams agree, so the gradient is FedAvg's.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from fedgs.algorithms.baseline import Baseline, Batch, Sent
from fedgs.algorithms.options import NotNegative
from fedgs.algorithms.upload import Weights
from fedgs.data.arrays import map_tree
from fedgs.training.network import Network

WIDTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6)


@dataclass(frozen=True)
class FedMMD(Baseline):
    """FedMMD: the local loss plus γ · MMD², the maximum mean discrepancy of local and global outputs.

    Examples:
        >>> import fedgs
        >>> fedgs.FedMMD(gamma=0.2).gamma                    # algorithm=fedgs.FedMMD(gamma=0.2)
        0.2
    """

    gamma: NotNegative = 0.1
    """γ, the weight of the discrepancy."""
    layer: Literal["logits", "hidden"] = "logits"
    """Which outputs are compared: the logits, or the input of the last layer."""
    kernel: Literal["fixed19", "adaptive5"] = "fixed19"
    """The kernel widths."""
    floor: NotNegative = 1e-4
    """Below it the discrepancy is a constant without gradient."""

    per_sample = False
    runs_global_model = True

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss plus γ · MMD²."""
        by_hidden = self.layer == "hidden"
        found = network.forward(weights, batch.inputs, batch.clients, batch.keys, hidden=by_hidden)
        outputs = found.outputs if batch.shift is None else found.outputs + batch.shift
        local = _as_rows(found.hidden if by_hidden else found.outputs)
        with torch.no_grad():  # the global stream is the same network for all clients: one big batch
            together = map_tree(lambda value: value.flatten(0, 1)[None], batch.inputs)
            frozen = network.forward(sent.weights, together, batch.clients.flatten()[None], hidden=by_hidden)
            reference = _as_rows(frozen.hidden if by_hidden else frozen.outputs).view(local.shape)
        discrepancy = squared_mmd(reference, local, batch.shares, self.kernel).clamp(min=self.floor)
        return network.loss(outputs, batch) + self.gamma * discrepancy, outputs


def _as_rows(values: Tensor | None) -> Tensor:
    """Return (D, B, numbers) of what a network gives."""
    assert values is not None
    return values.float().flatten(2) if values.ndim > 2 else values.float()[..., None]


def squared_mmd(first: Tensor, second: Tensor, shares: Tensor, kernel: str = "fixed19") -> Tensor:
    """Return MMD² (D,) between (D, B, features) and (D, B, features) of the same samples.

    Means are taken with the samples' ``shares``, so what fills up a short batch does not count.
    """
    within_first = _squared_distances(first, first)
    within_second = _squared_distances(second, second)
    across = _squared_distances(first, second)
    pairs = shares[:, :, None] * shares[:, None, :]
    if kernel == "fixed19":
        scales = _fixed_scales(first.device)
    else:
        scales = _bandwidths(within_first, within_second, across, shares)
    mean_first, mean_second, mean_across = (
        (_kernel(distances, scales) * pairs).sum((1, 2)) for distances in (within_first, within_second, across)
    )
    return mean_first + mean_second - 2 * mean_across


@cache  # on a GPU once: nothing may come from the processor while a step is captured
def _fixed_scales(device: torch.device) -> Tensor:
    return 2 * torch.tensor([WIDTHS], device=device)


def _squared_distances(first: Tensor, second: Tensor) -> Tensor:
    # Differences, not ‖u‖² + ‖v‖² − 2uv: its rounding errors are as large as the smallest widths.
    return (first[:, :, None] - second[:, None]).square().sum(-1)


def _kernel(distances: Tensor, scales: Tensor) -> Tensor:
    return torch.exp(-distances[..., None] / scales[:, None, None]).sum(-1)


@torch.no_grad()
def _bandwidths(within_first: Tensor, within_second: Tensor, across: Tensor, shares: Tensor) -> Tensor:
    """Return (D, 5) widths, doubling from a quarter of the mean squared distance of the pooled samples."""
    there = (shares > 0).to(across.dtype)
    pairs = there[:, :, None] * there[:, None, :]
    pooled = ((within_first + within_second + 2 * across) * pairs).sum((1, 2))
    rows = 2 * there.sum(1)
    mean = pooled / (rows * (rows - 1)).clamp(min=1)
    return (mean / 4).clamp(min=1e-12)[:, None] * 2.0 ** torch.arange(5, device=across.device)
