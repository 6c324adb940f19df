"""The whole state of a run between two rounds. A round is a function from one state to the next."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class RunState:
    """Everything that decides how a run goes on."""

    round: int
    """Rounds done."""
    weights: Tensor
    """The global model, flat."""
    plan: dict[str, Any]
    """Where the selection plan and the device streams have got to; plain data."""
    server: dict[str, Any] = field(default_factory=dict)
    """What the server rule remembers: whole numbers, and dicts of tensors."""
    momentum: Tensor | None = None
    """(factories, weights) velocities of this process's stations; None without momentum."""
    average: Tensor | None = None
    """The averaged global model that is tested; None without an average."""
    metrics: tuple[dict[str, Any], ...] = ()
    """One line a round, from round 0 on: what metrics.jsonl holds."""
    clock: tuple[dict[str, Any], ...] = ()
    """One line a round, from round 0 on: what clock.jsonl holds. It decides nothing."""

    @property
    def tested(self) -> Tensor:
        """The model that counts: the averaged one where there is one."""
        return self.weights if self.average is None else self.average
