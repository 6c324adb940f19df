"""One training step, in one place: the gradient of clients, and what an optimiser makes of a gradient.

    w ← w − η (d(g) + μ (w − w_t))       g shortened to c, d the optimiser's direction

Engines differ in whose gradient it is (a client's own, or the mean of a team) and in who computes beside whom. They all
take the gradient from :func:`gradient_of` and make the step with :func:`descend`.

Clipping: however steep the loss, a step is no longer than the learning rate times c.

Now and then a mini-batch has a gradient many times as long as usual. With short steps that is nothing; after one long
step along it, it seems, what was learnt can be gone: with long steps some runs collapse from 84 % to 5 % within a
round. So the length of a gradient is bounded, its direction kept (Pascanu et al., 2013, "On the difficulty of training
recurrent neural networks"):

    g ← g · min(1, c / ‖g‖)          ‖g‖ over all weights of the network together

Under FedGS g is the mean gradient of a super node, (ω^m − average) / η, before a station's momentum: one bound for a
synchronisation, which the station keeps by itself (:mod:`fedgs.deploy.rounds`); devices need not know. Under a
baseline g is the gradient of a device's own objective in each of its steps, before momentum and FedProx's pull.

A gradient that is not finite, or too long for a number, becomes NaN: a run that diverges ends with an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgs.tasks.task import users_own
from fedgs.training.network import Network
from fedgs.training.objective import Batch, Objective, Sent, Weights
from fedgs.training.optimizers import Optimizer


@dataclass(frozen=True)
class Gradient:
    """What a forward and a backward pass give."""

    losses: Tensor
    """(D,) the task's loss, without penalties."""
    outputs: Any
    """(D, B, …), without a gradient."""
    values: list[Tensor | None]
    """(D, …) each, of the trained weights in the order of the layout; None: the loss does not depend on it."""


def gradient_of(
    network: Network, objective: Objective, weights: Weights, trained: int, sent: Sent, batch: Batch
) -> Gradient:
    """Return the gradient of D clients' losses; ``weights`` (D, …) each, the first ``trained`` of them are trained.

    Buffers among the weights are updated in place.
    """
    # .data, because autograd would otherwise see other threads step down in their parts of the same tensor.
    everything = {name: weight.data for name, weight in weights.items()}
    own = {name: everything[name].requires_grad_() for name in list(weights)[:trained]}
    with users_own(f"the objective of {type(objective).__name__}: fails on a batch"):
        losses, outputs = objective.objective(network, everything, sent, batch)
    found = torch.autograd.grad(losses, list(own.values()), torch.ones_like(losses), allow_unused=True)
    with torch.no_grad():
        plain = type(objective).objective is Objective.objective
        told = losses.detach() if plain else network.loss(outputs, batch).detach()
    return Gradient(told, outputs, list(found))


@torch.no_grad()
def descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    rate: float | Tensor,
    optimizer: Optimizer,
    memory: Mapping[str, Sequence[Tensor]],
    steps: Any,
    clip: float | None = None,
    pull: float = 0.0,
    start: Sequence[Tensor] = (),
    active: Tensor | None = None,
) -> None:
    """Make one step in place; ``memory`` holds what the optimiser remembers, tensor by tensor, and is updated.

    ``start`` are the weights that ``pull`` pulls towards. In a captured graph the rate is a tensor, and so is
    ``active``: 1, or 0 where nothing moves and nothing is remembered.
    """
    there = [place for place, gradient in enumerate(gradients) if gradient is not None]
    own = [weights[place] for place in there]
    found: list[Tensor] = [gradients[place] for place in there]  # type: ignore[misc]
    if clip is not None:
        factor = clip_factor(found, clip)
        if active is not None:
            factor = torch.where(active > 0, factor, torch.zeros_like(factor))
        found = list(torch._foreach_mul(found, factor))
    if active is not None:
        rate = rate * active
    if optimizer.plain and not pull:
        if isinstance(rate, Tensor):
            _sgd_step(own, found, rate)
        else:
            torch._foreach_add_(own, found, alpha=-rate)
        return
    for place, weight, gradient in zip(there, own, found, strict=True):
        held = {entry: memory[entry][place] for entry in optimizer.entries}
        direction, new = optimizer.direction(gradient, weight, held, steps)
        for entry, value in new.items():
            held[entry].copy_(value) if active is None else held[entry].lerp_(value, active)
        direction = held.get("velocity", direction)  # as it lies in memory, like the weights
        if pull:
            direction = direction + pull * (weight - start[place])
        if isinstance(rate, Tensor):
            weight.sub_(direction * rate)
        else:
            weight.add_(direction, alpha=-rate)


def with_unused(
    gradients: Sequence[Tensor | None], weights: Sequence[Tensor], optimizer: Optimizer, pull: float
) -> list[Tensor | None]:
    """Return gradients with zeros for weights that a loss does not use, where they move all the same.

    They may decay, have momentum from a step that used them, or be pulled: a station knows no others.
    """
    moves = not optimizer.plain or pull
    return [
        torch.zeros_like(weight) if moves and gradient is None else gradient
        for gradient, weight in zip(gradients, weights, strict=True)
    ]


def _sgd_step(weights: list[Tensor], gradients: list[Tensor], rate: Tensor) -> None:
    """Make w ← w − η g in one kernel, which reads and writes each weight once."""
    if all(one.stride() == other.stride() for one, other in zip(weights, gradients, strict=True)):
        torch._fused_sgd_(
            weights, gradients, [], weight_decay=0.0, momentum=0.0, lr=rate, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False,
        )  # fmt: skip
    else:
        torch._foreach_add_(weights, torch._foreach_mul(gradients, -rate))  # two weights may share a gradient


def clip_scale(norms: Tensor, most: float) -> Tensor:
    """Return min(1, c / ‖g‖) for each norm; 1 where a gradient is nothing, NaN where its norm is not finite."""
    return torch.where(norms.isfinite(), (most / norms).clamp(max=1.0), torch.nan)


def clip_factor(gradients: tuple[Tensor, ...] | list[Tensor], most: float) -> Tensor:
    """Return what the gradients of one network are to be multiplied by."""
    return clip_scale(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))), most)


def clip_factors(gradients: Iterable[Tensor], most: float, further: Iterable[Tensor] = ()) -> Tensor:
    """Return (networks,) what the gradients, (networks, …) each, are to be multiplied by: each by its own norm.

    ``further`` norms (networks,) are of gradients that are not written out.
    """
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    return clip_scale(torch.linalg.vector_norm(torch.stack([*norms, *further]), dim=0), most)
