"""The learning rate of every iteration: constant as in the paper, stepwise or cosine, with a warm-up."""

import math

import numpy as np
from numpy.typing import NDArray

from fedgs.settings import TrainingSettings


def learning_rates(settings: TrainingSettings, round_number: int) -> NDArray[np.float64]:
    """Return the rates of the T iterations of a round (1 is the first)."""
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
