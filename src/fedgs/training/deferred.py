"""Deferred low-rank updates of a large dense layer of many devices: every few steps are written at once.

A step of a dense layer is a product of two small matrices, the gradients of its outputs and its inputs:
w ← w − η δᵀx. With B samples a batch and O outputs it has rank B at most. Written out it takes O·I numbers, as factors
only B·(O + I); for the paper's layer of 3136 inputs and 2048 outputs, with batches of 32, a fortieth. A step of a
hundred devices spends most of its time on moving these weights through memory. So the factors are kept,

    w_s = w_0 − Σ_{r<s} η δ_rᵀ x_r                     r: the steps since w_0 was written
    x w_sᵀ = x w_0ᵀ − Σ_r (x x_rᵀ) (η δ_r)             forward
    δ w_s  = δ w_0  − Σ_r (δ (η δ_r)ᵀ) x_r             back

and w_0 is written anew, one batched product, only after some steps (``flush``). It is the same step but for rounding.

A pull μ towards the weights w* that were sent (FedProx), w ← w − η (g + μ (w − w*)), multiplies what a device is away
from w* by a = 1 − ημ in every step, the steps it has kept included. With A the product of these since w_0,

    w_s = w* + A (w_0 − w*) − Σ_r a^{s−1−r} η δ_rᵀ x_r

The length of a step that is not written out is that of its factors' products, (B, B) each: ‖δᵀx‖² = Σ (δδᵀ) ⊙ (xxᵀ).

In the weights of a network a :class:`DeferredLayer` stands where the layer's tensor would;
:func:`fedgs.training.stacked_layers.dense` knows what to do with it, and nothing else does.
"""

from typing import Any

import torch
from torch import Tensor


class DeferredLayer:
    """The weights (D, O, I) of one layer, with the steps that are not yet in them."""

    def __init__(self, weights: Tensor, steps: int, batch: int, dtype: torch.dtype, pull: float = 0.0) -> None:
        """``weights`` are written to in place; there is room for ``steps`` times ``batch`` samples a device."""
        devices, outputs, inputs = weights.shape
        self.weights, self._batch, self._pull = weights, batch, pull
        self._rounded = weights if dtype == weights.dtype else torch.empty_like(weights, dtype=dtype)
        self.inputs = weights.new_zeros(devices, steps * batch, inputs, dtype=dtype)
        """x of the deferred steps."""
        self.scaled_grads = weights.new_zeros(devices, steps * batch, outputs, dtype=dtype)
        """η δ of them; 0 where there is none."""
        self.decay = weights.new_ones(devices, 1, 1)
        """A: the factor by which w_0 − w* has decayed."""
        self._start = torch.zeros_like(weights[0])
        self._rounded_start = self._start.to(dtype)
        self._place = torch.zeros(1, dtype=torch.int64, device=weights.device)
        self._pending: list[tuple[Tensor, Tensor]] = []
        self.uses = 1
        """How often a step goes through the layer."""

    @torch.no_grad()
    def begin(self, start: Tensor) -> None:
        """Go on from what ``weights`` hold now, pulled towards ``start`` (O, I); nothing is deferred."""
        self.scaled_grads.zero_()
        self.inputs.zero_()
        self.decay.fill_(1)
        self._start.copy_(start)
        self._rounded_start.copy_(start)
        if self._rounded is not self.weights:
            self._rounded.copy_(self.weights)

    def at(self, place: int) -> None:
        """Say where the next step is kept, in uses since the last :meth:`flush`."""
        self._place.fill_(place * self._batch)

    def __getattr__(self, name: str) -> Any:
        """Tell who takes it for a tensor what to do."""
        raise TypeError(
            f".{name} of weights whose updates are deferred; a baseline whose objective looks at weights other than "
            "through the network says so: reads_weights = True"
        )

    def product(self, inputs: Tensor, biases: Tensor) -> Tensor:
        """Return inputs · wᵀ + biases of the first devices, as many as there are inputs."""
        apply: Any = _Product.apply
        outputs: Tensor = apply(inputs, biases, self)
        return outputs

    def forward(self, inputs: Tensor, biases: Tensor) -> Tensor:
        """Compute the layer with the deferred steps."""
        count = len(inputs)
        outputs = torch.bmm(inputs, self._rounded[:count].transpose(1, 2))
        if self._pull:
            outputs = self._pulled(outputs, inputs @ self._rounded_start.T)
        alike = torch.bmm(inputs, self.inputs[:count].transpose(1, 2))
        return outputs.add_(biases[:, None]).baddbmm_(alike, self.scaled_grads[:count], alpha=-1)

    def back(self, inputs: Tensor, steps: Tensor) -> Tensor:
        """Return what goes back to the inputs, and note the layer's own step, not yet made."""
        count = len(inputs)
        self._pending.append((inputs.detach(), steps.detach()))
        result = torch.bmm(steps, self._rounded[:count])
        if self._pull:
            result = self._pulled(result, steps @ self._rounded_start)
        alike = torch.bmm(steps, self.scaled_grads[:count].transpose(1, 2))
        return result.baddbmm_(alike, self.inputs[:count], alpha=-1)

    def _pulled(self, own: Tensor, start: Tensor) -> Tensor:
        """Return A·own + (1 − A)·start, products with w_0 and with w*."""
        return torch.lerp(start, own, self.decay[: len(own)].to(own.dtype))

    @torch.no_grad()
    def norms(self, count: int) -> Tensor:
        """Return (count,) the lengths of the first devices' gradients that were noted since the last step."""
        if not self._pending:
            return self.weights.new_zeros(count)
        inputs = torch.cat([inputs for inputs, _ in self._pending], dim=1).float()
        steps = torch.cat([steps for _, steps in self._pending], dim=1).float()
        squares = torch.bmm(inputs, inputs.transpose(1, 2)) * torch.bmm(steps, steps.transpose(1, 2))
        return squares.sum((1, 2)).clamp(min=0).sqrt()

    @torch.no_grad()
    def step(self, rates: Tensor, factors: Tensor | None = None) -> None:
        """Keep what was noted since the last step, with a rate a device: from now on it counts.

        ``factors``: of the gradients (:mod:`fedgs.training.step`).
        """
        if self._pull:
            kept = 1 - self._pull * rates[:, None, None]
            self.decay[: len(rates)] *= kept
            self.scaled_grads[: len(rates)] *= kept
        for use, (inputs, steps) in enumerate(self._pending):
            count, batch = inputs.shape[:2]
            places = self._place + torch.arange(use * self._batch, use * self._batch + batch, device=inputs.device)
            self.inputs[:count].index_copy_(1, places, inputs.to(self.inputs.dtype))
            scaled = steps.to(rates.dtype) * (rates if factors is None else rates * factors)[:, None, None]
            self.scaled_grads[:count].index_copy_(1, places, scaled.to(self.scaled_grads.dtype))
        self.uses = max(1, len(self._pending))
        self._pending = []

    @torch.no_grad()
    def flush(self, count: int) -> None:
        """Write the deferred steps into the weights of the first ``count`` devices, who made them."""
        weights = self.weights[:count]
        if self._pull:
            torch.lerp(self._start.expand_as(weights), weights, self.decay[:count], out=weights)
            self.decay[:count] = 1
        went, came = self.scaled_grads[:count].to(weights.dtype), self.inputs[:count].to(weights.dtype)
        weights.baddbmm_(went.transpose(1, 2), came, alpha=-1)
        self.scaled_grads[:count].zero_()
        if self._rounded is not self.weights:
            self._rounded[:count].copy_(weights)


class _Product(torch.autograd.Function):
    """The layer for autograd: a gradient for inputs and biases, a note for the weights."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, biases: Tensor, layer: DeferredLayer) -> Tensor:
        context.save_for_backward(inputs)
        context.layer, context.dtype = layer, biases.dtype
        return layer.forward(inputs, biases)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (inputs,) = context.saved_tensors
        steps = gradients[0]
        return context.layer.back(inputs, steps), steps.sum(1, dtype=context.dtype), None
