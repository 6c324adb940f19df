"""Learning rates and optimisers: from a mean gradient to a step. On tensors and on numpy arrays alike.

A station applies the mean gradient ḡ of its team, so an optimiser there is exact: it sees what it would see if all data
of the team lay in one place. Clients of the baselines have one each, fresh in every round. With w the weights, λ the
weight decay and t the steps made so far, this one included,

    sgd        d = g + λw
    momentum   v ← μv + g + λw ,  d = v
    adam       m ← β₁m + (1−β₁)(g + λw) ,  s ← β₂s + (1−β₂)(g + λw)² ,  d = m̂ / (√ŝ + ε)
    adamw      as adam with λ = 0, and d = m̂ / (√ŝ + ε) + λw                    (Loshchilov and Hutter, 2019)

with m̂ = m / (1 − β₁ᵗ), ŝ = s / (1 − β₂ᵗ) (Kingma and Ba, 2015). The step is w ← w − η d. These are torch.optim's rules
(momentum without dampening); a station without torch makes them with numpy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgs.settings import TrainingSettings

Name = Literal["sgd", "momentum", "adam", "adamw"]
NAMES: tuple[str, ...] = ("sgd", "momentum", "adam", "adamw")
USUAL_MOMENTUM = 0.9
"""μ of ``momentum`` where none is given."""
Memory = Mapping[str, Any]
"""What an optimiser remembers: arrays like the weights, by name, and ``steps``."""


@dataclass(frozen=True)
class Optimizer:
    """One of the four rules."""

    name: str = "sgd"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @classmethod
    def of(cls, settings: TrainingSettings) -> "Optimizer":
        """Return the optimiser of the settings; SGD with a momentum is ``momentum``."""
        name, momentum = settings.optimizer, settings.momentum
        if name == "sgd" and momentum:
            name = "momentum"
        if name == "momentum" and not momentum:
            momentum = USUAL_MOMENTUM
        return cls(name, momentum, (settings.betas[0], settings.betas[1]), settings.epsilon, settings.weight_decay)

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the arrays it remembers, each like the weights."""
        return {"sgd": (), "momentum": ("velocity",)}.get(self.name, ("first", "second"))

    @property
    def plain(self) -> bool:
        """Whether the direction is the gradient itself."""
        return self.name == "sgd" and not self.weight_decay

    @property
    def counts_steps(self) -> bool:
        """Whether the number of steps matters."""
        return self.name in ("adam", "adamw")

    def direction(self, gradient: Any, weights: Any, memory: Memory, steps: Any) -> tuple[Any, dict[str, Any]]:
        """Return d and what to remember.

        ``steps``: t, a number, or an array that goes with the weights.
        """
        decay = self.weight_decay
        if decay and self.name != "adamw":
            gradient = gradient + decay * weights
        if self.name == "sgd":
            return gradient, {}
        if self.name == "momentum":
            velocity = self.momentum * memory["velocity"] + gradient
            return velocity, {"velocity": velocity}
        beta1, beta2 = self.betas
        first = beta1 * memory["first"] + (1 - beta1) * gradient
        second = beta2 * memory["second"] + (1 - beta2) * (gradient * gradient)
        direction = (first / (1 - beta1**steps)) / ((second / (1 - beta2**steps)) ** 0.5 + self.epsilon)
        if decay and self.name == "adamw":
            direction = direction + decay * weights
        return direction, {"first": first, "second": second}


def learning_rates(settings: TrainingSettings, round_number: int) -> NDArray[np.float64]:
    """Return the rates of the T iterations of a round (1 is the first).

    They are constant as in the paper, stepwise or cosine, with a warm-up.
    """
    schedule = settings.schedule
    # Time in rounds at the beginning of each iteration.
    times = (round_number - 1) + np.arange(settings.iterations) / settings.iterations
    rates = np.full(settings.iterations, settings.learning_rate)
    if schedule.kind == "step":
        rates *= schedule.factor ** ((round_number - 1) // schedule.every)
    elif schedule.kind == "cosine":
        share = np.minimum(times / max(settings.rounds, 1), 1.0)
        rates *= schedule.floor + (1 - schedule.floor) * 0.5 * (1 + np.cos(math.pi * share))
    if schedule.warmup:
        # The first step is already a small one, not none at all.
        rates *= np.minimum((times + 1 / settings.iterations) / schedule.warmup, 1.0)
    return rates
