"""A flat approach: every round some devices train for a few epochs, and one server makes the next model of it.

As it stands this class is FedAvg (McMahan et al., 2017; the server's side is :mod:`fedgs.algorithms.fedavg`):

    S_t drawn at random;  for k ∈ S_t:  w_k ← w_t,  then for each batch b of each epoch  w_k ← w_k − η ∇CE(w_k; b)
    w_{t+1} = Σ_k (n_k / Σ n) w_k

Every other approach overrides what differs, and nothing else:

    network     the model itself                       CGAU, FedFusion
    objective   the local loss                         FedMMD, FedFusion
    pull        a weight μ that holds w near w_t       FedProx
    update      what the server does with uploads      CGAU, FedFusion; or only another ``rule`` (IDA, FedAdam, …)
    logits      what is tested                         FedFusion
    traffic     what is sent, in bytes                 CGAU with a frozen backbone

An approach is written for many devices at once: weights and batches have the device as their first dimension
(:mod:`fedgs.training.stacked_layers`), a loss is one number a device. Who trains how many of them together is not its business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedgs.algorithms.fedavg import FedAvg
from fedgs.algorithms.options import check_positive
from fedgs.algorithms.rule import ServerRule, asked_for
from fedgs.algorithms.state import State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.training.stacked_networks import Network

NUMBER_BYTES = 4
"""What a reported number takes on the wire, as every weight does."""


@dataclass(frozen=True)
class Batch:
    """The mini-batches of D devices, B samples each; short ones are filled up with samples of no share."""

    images: Tensor
    """(D, B, height, width, channels) bytes."""
    labels: Tensor
    """(D, B)."""
    shares: Tensor
    """(D, B) 1/n for each of the n samples of a device's batch, 0 for what fills it up."""
    owners: Tensor
    """(D, B) the device a sample belongs to."""
    keys: Tensor
    """(D,) a number that only this device, round and step has: for whoever draws at random (dropout)."""


@dataclass(frozen=True)
class Sent:
    """What the server sends to all participants of a round; it stays as it is while they train."""

    weights: Weights
    """(1, …) each: the global model w_t."""
    memory: State
    """What the approach remembers from round to round."""


@dataclass(frozen=True)
class Approach:
    """Local SGD on the cross-entropy, and a server rule; its fields are the options."""

    rule: ServerRule = field(default_factory=FedAvg)
    """The server's side."""
    client_lr: float | None = None
    """The devices' learning rate η; None: ``training.learning_rate``."""

    pull: ClassVar[float] = 0.0
    """μ of w ← w − η (g + μ (w − w_t))."""
    reads_weights: ClassVar[bool] = False
    """Whether the objective looks at weights other than through the network: then large layers are plain tensors on a
    GPU too, which takes longer (:mod:`fedgs.training.deferred`)."""
    train_acc: ClassVar[Literal["final", "running"] | None] = None
    """Which training accuracy devices report: of the finished model, over the last epoch, or none."""
    pretrain_rounds: ClassVar[int] = 0
    """Rounds of FedAvg on the plain network before the first one."""
    pretrain_model: ClassVar[str | None] = None
    """A plain network to start from instead: a model.safetensors, or the folder of a run."""

    def __post_init__(self) -> None:
        if self.client_lr is not None:
            check_positive("client_lr", self.client_lr)

    def network(self, base: Network, devices: int) -> Network:
        """Return the network to train, given the plain one and the number of all devices."""
        return base

    def init(self, weights: Weights) -> State:
        """Return what is remembered before the first round."""
        return self.rule.init(weights)

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return each device's loss (D,), and the logits (D, B, classes) it was made of.

        The loss is what a step minimises; reported is the cross-entropy of the logits, without penalties.
        """
        logits = network(weights, batch.images, batch.owners, batch.keys)
        return cross_entropy(logits, batch), logits

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next global weights and what to remember."""
        return self.rule.update(state, weights, uploads)

    def logits(self, network: Network, weights: Weights, state: State, images: Tensor, owners: Tensor) -> Tensor:
        """Return the logits of test images, all (1, …)."""
        return network(weights, images, owners)

    def traffic(self, weights: Weights) -> tuple[int, int]:
        """Return the bytes a participant receives and sends in a round: the model, and each number it reports."""
        model = sum(weight.nbytes for weight in weights.values())
        return model, model + NUMBER_BYTES * len(asked_for(self.rule))

    def tests(self) -> Mapping[str, "Approach"]:
        """Return other ways of testing that are logged beside the one that counts, by name."""
        return {}


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return each device's mean cross-entropy over the samples that count."""
    chances = torch.log_softmax(logits, dim=-1)
    return -(chances.gather(2, batch.labels[..., None])[..., 0] * batch.shares).sum(1)
