"""What a client minimises, and what it is given to do so.

The objective here is the task's loss. Others override what differs, and nothing else:

    objective   the local loss                         FedMMD, FedFusion
    pull        a weight μ that holds w near w_t       FedProx
    network     the model itself                       CGAU, FedFusion

An objective is written for D clients at once: weights, inputs and targets have the client as their first dimension, a
loss is one number a client. Who trains how many of them together is not its business: a network of the user's own is
trained with D = 1 at a time, the built-in CNNs with all clients of a round in one stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedgs.data.arrays import leaves, map_tree

if TYPE_CHECKING:
    from fedgs.training.network import Network

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """The mini-batches of D clients, B samples each; short ones may be filled up with samples of no share."""

    inputs: Any
    """(D, B, …), or a tuple or dict of such: prepared inputs; bytes of images for the stacked networks."""
    targets: Any
    """(D, B, …)."""
    shares: Tensor
    """(D, B) 1/n for each of the n samples of a client's batch, 0 for what fills it up."""
    clients: Tensor
    """(D, B) the client a sample belongs to."""
    keys: Tensor
    """(D,) a number that only this client, round and step has: for whoever draws at random (dropout)."""
    full: bool = False
    """Whether nothing fills a batch up: then the loss is a plain mean."""
    shift: Tensor | None = None
    """(D, 1, classes) what is added to the outputs (:mod:`fedgs.training.calibration`)."""

    @classmethod
    def of_one(cls, inputs: Any, targets: Any, client: int = 0, key: int = 0, shift: Tensor | None = None) -> "Batch":
        """Return the batch of one client, D = 1; inputs and targets are (B, …)."""
        size, device = (1, len(next(leaves(targets))[1])), next(leaves(targets))[1].device
        inputs, targets = (map_tree(lambda value: value[None], tree) for tree in (inputs, targets))
        shares, clients = torch.full(size, 1 / size[1], device=device), torch.full(size, client, device=device)
        return cls(inputs, targets, shares, clients, torch.tensor([key]), True, shift)


@dataclass(frozen=True)
class Sent:
    """What is sent to all clients of a round; it stays as it is while they train."""

    weights: Weights
    """(1, …) each: the global model w_t."""
    memory: Mapping[str, Any]
    """What the algorithm remembers from round to round."""


@dataclass(frozen=True)
class Objective:
    """The task's own loss."""

    pull: ClassVar[float] = 0.0
    """μ of w ← w − η (g + μ (w − w_t))."""
    per_sample: ClassVar[bool] = True
    """Whether the loss is a mean of terms of single samples; then a team's step is one step on its union batch."""
    reads_weights: ClassVar[bool] = False
    """Whether the objective looks at weights other than through the network: then large layers are plain tensors on a
    GPU too, which takes longer (:mod:`fedgs.training.deferred`)."""
    plain_sgd: ClassVar[bool] = False
    """Whether clients must make plain SGD steps, without clipping."""
    runs_global_model: ClassVar[bool] = False
    """Whether clients run the global model beside their own; then no layer may stay on its client
    (``task.keep_local``)."""
    train_acc: ClassVar[Literal["final", "running"] | None] = None
    """Which training accuracy clients report: of the finished model, over the last epoch, or none."""

    def network(self, base: "Network", clients: int) -> "Network":
        """Return the network to train, given the plain one and the number of all clients."""
        return base

    def init_clients(self, weights: Weights, clients: int) -> dict[str, Any]:
        """Return what clients remember before the first round, (clients, …) a weight; part of ``Sent.memory``."""
        return {}

    def objective(self, network: "Network", weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Any]:
        """Return each client's loss (D,), and the outputs (D, B, …) it was made of.

        The loss is what a step minimises; reported is the task's loss of the outputs, without penalties.
        """
        outputs = network(weights, batch.inputs, batch.clients, batch.keys)
        if batch.shift is not None:
            outputs = outputs + batch.shift
        return network.loss(outputs, batch), outputs

    def outputs(
        self, network: "Network", weights: Weights, memory: Mapping[str, Any], inputs: Any, clients: Tensor
    ) -> Any:
        """Return the outputs for test samples, all (1, …)."""
        return network(weights, inputs, clients)
