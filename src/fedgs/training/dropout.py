"""Dropout from named random streams: the same seed gives the same run, whoever shares the processor.

torch's dropout draws from one generator for all threads, so what it drops would depend on who computes first. Here the
dropout layers of a network draw from a generator of their thread's copy of it, which is set by a key of (seed, round,
iteration, client) before every step.

Randomness that is not in a dropout layer of torch (``torch.nn.functional.dropout`` in a forward, dropout inside
attention or recurrent layers, a user's own dropout) cannot be set so; :mod:`fedgs.training.probe` finds it, and such
networks are trained in one thread.
"""

import copy

import torch
from torch import Tensor, nn

LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Dropout as torch has it; a child of one of these may do something else."""


class SeededDropout(nn.Module):
    """A dropout layer that draws from a generator of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.p = float(layer.p)  # type: ignore[arg-type]
        self.by_channel = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | nn.FeatureAlphaDropout)
        self.alpha = isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout)
        self.generator = torch.Generator()

    def __deepcopy__(self, memo: dict[int, object]) -> "SeededDropout":
        new = SeededDropout.__new__(SeededDropout)
        nn.Module.__init__(new)
        new.p, new.by_channel, new.alpha, new.generator = self.p, self.by_channel, self.alpha, torch.Generator()
        new.training = self.training
        return new

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop values, or whole channels, in training."""
        if not self.training or not self.p:
            return inputs
        if self.p >= 1:
            return inputs * 0
        shape = inputs.shape[:2] + (1,) * (inputs.ndim - 2) if self.by_channel and inputs.ndim > 2 else inputs.shape
        keep = torch.empty(shape, dtype=inputs.dtype).bernoulli_(1 - self.p, generator=self.generator)
        if not self.alpha:
            kept: Tensor = inputs * (keep / (1 - self.p))
            return kept
        # Klambauer et al. (2017): dropped units get α′, and an affine map keeps mean and variance.
        dropped = -1.7580993408473766
        scale = ((1 - self.p) * (1 + self.p * dropped**2)) ** -0.5
        changed: Tensor = (inputs * keep + dropped * (1 - keep)) * scale - scale * dropped * self.p
        return changed


def with_seeded_dropout(module: nn.Module) -> nn.Module:
    """Return the network with its dropout layers replaced; weights and names stay, and so does what is used twice."""
    new = {id(layer): SeededDropout(layer) for layer in module.modules() if type(layer) in LAYERS}
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if id(child) in new:
                part._modules[name] = new[id(child)]
    return new.get(id(module), module)


def seed_dropout(module: nn.Module, key: int) -> None:
    """Set the generators of a network's dropout layers."""
    layers = module.__dict__.get("_seeded_layers")
    if layers is None:
        layers = [layer for layer in module.modules() if isinstance(layer, SeededDropout)]
        module.__dict__["_seeded_layers"] = layers
    for number, layer in enumerate(layers):
        layer.generator.manual_seed((key * 1_000_003 + number) & 0x7FFF_FFFF_FFFF_FFFF)


def without_dropout(module: nn.Module) -> nn.Module:
    """Return a copy of a network in train mode whose dropout layers drop nothing."""
    found = copy.deepcopy(module).train()
    for layer in found.modules():
        if type(layer) in (*LAYERS, SeededDropout):
            layer.eval()
    return found
