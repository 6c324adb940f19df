"""What INTRAC asks of devices: they report their training accuracy (the coefficient itself is in ``ida``).

The paper does not say which accuracy. ``train_acc="final"``: of the finished local model on all its training samples;
``"running"``: over the batches of the last local epoch, as they were trained on, for nothing.
"""

from dataclasses import dataclass
from typing import Literal

from fedgs.algorithms.approach import Approach
from fedgs.algorithms.options import check_choice


@dataclass(frozen=True)
class WithAccuracy(Approach):
    """FedAvg's local training, and a report."""

    train_acc: Literal["final", "running"] = "final"  # type: ignore[misc]
    """Which accuracy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("train_acc", self.train_acc, ("final", "running"))
