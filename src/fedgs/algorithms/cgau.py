"""CGAU: a pre-trained network whose new classifier has a bias of its own for every device.

Rieger, Høegh, Hansen: "Client Adaptation improves Federated Learning with Simulated Non-IID Clients", 2020. The units
are in :mod:`fedgs.algorithms.cgau_network`. FedGS names "FineTuning+1×CGAU" and "+2×CGAU" with 256 units and without
dropout, and does not say how the network was pre-trained. Here: ``pretrain_rounds`` rounds of FedAvg on the same
federation, or the model of an earlier run (``pretrain_model``, its model.safetensors; trained on other writers it is
what the authors did). Then the last layer goes, the gated classifier comes, and FedAvg trains all of it
(``freeze_backbone=true``: the classifier alone, as the authors do).

``cond_aggregation="average"`` is the authors' code: column k moves on device k alone, so averaging shrinks its step to
n_k/Σn. ``"owner"`` is what their text says: the column of a device that took part is taken from it as it is, the others
stay. Every device is tested with its own id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.cgau_network import CLASSIFIER, CONDITION, CgauNetwork
from fedgs.algorithms.options import check_choice, check_decay, check_flag, check_whole
from fedgs.algorithms.state import State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.errors import AlgorithmError
from fedgs.training.network import Network


@dataclass(frozen=True)
class Cgau(Baseline):
    """Trains a classifier of conditional gated units."""

    layers: int = 1
    """Gated layers: 1 or 2 in FedGS."""
    units: int = 256
    """Units of a layer."""
    dropout: float = 0.0
    """Before each gated layer; the authors: 0.5. FedGS saw 3.3 points less with it."""
    cond_bias: bool = False
    """Biases of the V themselves, as in the authors' code."""
    cond_init: Literal["xavier", "zero"] = "xavier"
    """First columns: Xavier (the authors, as Keras does), or zero: all devices alike."""
    cond_aggregation: Literal["average", "owner"] = "average"
    """Who decides a device's column."""
    freeze_backbone: bool = False
    """Train the classifier alone."""
    pretrain_rounds: int = 50  # type: ignore[misc]
    """Rounds of FedAvg before; they do not count as rounds of the run, the summary names them."""
    pretrain_model: str | None = None  # type: ignore[misc]
    """A model.safetensors, or the folder of a finished run, to start from instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("layers", self.layers, 1)
        check_whole("units", self.units, 1)
        check_whole("pretrain_rounds", self.pretrain_rounds, 0)
        if self.pretrain_model is not None and not isinstance(self.pretrain_model, str):
            raise AlgorithmError(f"pretrain_model={self.pretrain_model!r} is not possible; it is the path of a model")
        check_decay("dropout", self.dropout)
        check_flag("cond_bias", self.cond_bias)
        check_flag("freeze_backbone", self.freeze_backbone)
        check_choice("cond_init", self.cond_init, ("xavier", "zero"))
        check_choice("cond_aggregation", self.cond_aggregation, ("average", "owner"))

    def network(self, base: Network, clients: int) -> CgauNetwork:
        """Give the network the gated classifier."""
        return CgauNetwork(
            base, clients, base.dtype, self.layers, self.units, self.dropout, self.cond_bias, self.cond_init,
            self.freeze_backbone,
        )  # fmt: skip

    def traffic(self, weights: Weights) -> tuple[int, int]:
        """A frozen backbone is sent to devices, which may be new, and never back."""
        down, up = super().traffic(weights)
        if self.freeze_backbone:
            up -= sum(weight.nbytes for name, weight in weights.items() if not name.startswith(CLASSIFIER))
        return down, up

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Average; columns by their owners where that is wanted."""
        new, memory = self.rule.update(state, weights, uploads)
        if self.cond_aggregation == "owner":
            for name in (name for name in new if name.endswith(CONDITION)):
                columns = weights[name].clone()
                for index, upload in enumerate(uploads):
                    owner = upload.metrics.get("device")
                    if owner is None:
                        raise AlgorithmError(f"uploads[{index}].metrics has no 'device', whose columns are its own")
                    columns[int(owner)] = upload.weights[name][int(owner)]
                new[name] = columns
        return new, memory
