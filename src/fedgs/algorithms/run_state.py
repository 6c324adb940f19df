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
    """The global model, flat: what is trained, then its buffers."""
    plan: dict[str, Any]
    """Where the selection plan and the device streams have got to; plain data."""
    server: dict[str, Any] = field(default_factory=dict)
    """What the server rule remembers: whole numbers, and dicts of tensors."""
    stations: dict[str, Tensor] = field(default_factory=dict)
    """What the optimisers of this process's stations remember: (factories, …) each."""
    local: Tensor | None = None
    """(devices, …) what devices keep to themselves (``Task.keep_local``); None where all travels."""
    average: Tensor | None = None
    """The averaged global model that is tested; None without an average."""
    metrics: tuple[dict[str, Any], ...] = ()
    """One line a round, from round 0 on: what metrics.jsonl holds."""
    clock: tuple[dict[str, Any], ...] = ()
    """One line a round, from round 0 on: what clock.jsonl holds. It decides nothing."""

    confusion: dict[str, Tensor] = field(default_factory=dict)
    """Confusion matrices of the ``last`` and the ``best`` test, where there are classes; they decide nothing."""

    @property
    def tested(self) -> Tensor:
        """The model that counts: the averaged one where there is one."""
        return self.weights if self.average is None else self.average
