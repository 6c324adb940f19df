"""Clipping: however steep the loss, a step is no longer than the learning rate times c.

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

from collections.abc import Iterable

import torch
from torch import Tensor


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
