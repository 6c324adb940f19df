"""A baseline: every round some clients train for a few epochs, and one server makes the next model of it.

As it stands this class is FedAvg (McMahan et al., 2017; the server's side is :mod:`fedgs.algorithms.fedavg`):

    S_t drawn at random;  for k ∈ S_t:  w_k ← w_t,  then for each batch b of each epoch  w_k ← w_k − η ∇L(w_k; b)
    w_{t+1} = Σ_k (n_k / Σ n) w_k

Every other baseline overrides what differs, and nothing else. What clients minimise is an objective
(:class:`fedgs.training.objective.Objective`): ``network``, ``objective``, ``pull``. Beside it there is

    rule        the server's side                      IDA, FedAdam, …
    update      … or more than a rule                  CGAU, FedFusion
    outputs     what is tested                         FedFusion
    traffic     what is sent, in bytes                 CGAU with a frozen backbone
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from fedgs.algorithms.fedavg import FedAvg
from fedgs.algorithms.options import Positive, check_fields
from fedgs.algorithms.rule import ServerRule, State, required_metrics
from fedgs.algorithms.upload import Upload, Weights
from fedgs.training.objective import Batch, Objective, Sent

if TYPE_CHECKING:
    from fedgs.algorithms.algorithm import Context
    from fedgs.algorithms.client_server import ClientServer

__all__ = ["Baseline", "Batch", "Sent"]

NUMBER_BYTES = 4
"""What a reported number takes on the wire, as every weight does."""


@dataclass(frozen=True, kw_only=True)
class Baseline(Objective):
    """Local training on an objective, and a server rule; its fields are the options."""

    rule: ServerRule = field(default_factory=FedAvg)
    """The server's side."""
    client_lr: Positive | None = None
    """The clients' learning rate η; None: ``training.learning_rate``."""

    kind: ClassVar[Literal["fedgs", "baseline"]] = "baseline"
    pretrain_rounds: ClassVar[int] = 0
    """Rounds of FedAvg on the plain network before the first one."""
    pretrain_model: ClassVar[str | None] = None
    """A plain network to start from instead: a model.safetensors, or the folder of a run."""

    def __post_init__(self) -> None:
        check_fields(self)

    def bind(self, context: "Context") -> "ClientServer":
        """Return what runs its rounds."""
        from fedgs.algorithms.client_server import ClientServer

        return ClientServer(context, self)

    def init(self, weights: Weights) -> State:
        """Return what is remembered before the first round."""
        return self.rule.init(weights)

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next global weights and what to remember."""
        return self.rule.update(state, weights, uploads)

    def traffic(self, weights: Weights) -> tuple[int, int]:
        """Return the bytes a participant receives and sends in a round: the model, and each number it reports."""
        model = sum(weight.nbytes for weight in weights.values())
        return model, model + NUMBER_BYTES * len(required_metrics(self.rule))

    def tests(self) -> Mapping[str, "Baseline"]:
        """Return other ways of testing that are logged beside the one that counts, by name."""
        return {}
