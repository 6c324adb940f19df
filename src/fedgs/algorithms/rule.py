"""What a server rule is; the table of those there are is in :mod:`fedgs.algorithms.server`."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedgs.algorithms.state import State
from fedgs.algorithms.upload import Upload, Weights


def required_metrics(rule: "ServerRule") -> tuple[str, ...]:
    """Return what a rule wants participants to report beside their weights: its ``reports``, where it has any."""
    found: tuple[str, ...] = getattr(rule, "reports", ())
    return found


class ServerRule(Protocol):
    """How the uploads of a round become the next global weights."""

    def init(self, weights: Weights) -> State:
        """Return what the rule remembers before the first round."""
        ...

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next weights, in the dtypes and on the devices of the old ones, and what to remember."""
        ...
