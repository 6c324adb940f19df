"""What INTRAC asks of devices: they report their training accuracy (the coefficient itself is in ``ida``).

The paper does not say which accuracy. ``train_acc="final"``: of the finished local model on all its training samples;
``"running"``: over the batches of the last local epoch, as they were trained on, for nothing. Without ``intrac``
nobody looks at it, and devices do not measure it.
"""

from dataclasses import dataclass
from typing import Literal

from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.ida import Ida
from fedgs.algorithms.options import check_choice


@dataclass(frozen=True)
class WithAccuracy(Baseline):
    """FedAvg's local training, and a report where the server's rule wants it."""

    train_acc: Literal["final", "running"] | None = "final"  # type: ignore[misc]
    """Which accuracy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("train_acc", str(self.train_acc), ("final", "running"))
        if isinstance(self.rule, Ida) and not self.rule.intrac:
            object.__setattr__(self, "train_acc", None)
