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
from fedgs.algorithms.rule import ServerRule, State, check_rule, required_metrics, update_by
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
    """FedAvg, and the base class of all baselines: local training, then a server rule.

    A subclass overrides what differs from FedAvg; its fields are the options of the baseline.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> class Doubled(fedgs.Baseline):
        ...     def objective(self, network, weights, sent, batch):
        ...         loss, shown = super().objective(network, weights, sent, batch)
        ...         return 2 * loss, shown
        >>> len(fedgs.run(task, federation, algorithm=Doubled(), rounds=2, pick=2))
        2
    """

    rule: ServerRule = field(default_factory=FedAvg)
    """The server rule (aggregation)."""
    client_lr: Positive | None = None
    """The clients' learning rate η; None: ``training.learning_rate``."""

    kind: ClassVar[Literal["fedgs", "baseline"]] = "baseline"
    pretrain_rounds: ClassVar[int] = 0
    """Rounds of pre-training with FedAvg, on the plain network."""
    pretrain_model: ClassVar[str | None] = None
    """A trained model that replaces the pre-training: a model.safetensors, or the folder of a run."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_rule(self.rule)

    def bind(self, context: "Context") -> "ClientServer":
        """Return the object that runs the rounds."""
        from fedgs.algorithms.client_server import ClientServer

        return ClientServer(context, self)

    def init(self, weights: Weights) -> State:
        """Return the initial state of the server."""
        return self.rule.init(weights)

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next global weights and the next state of the server."""
        return update_by(self.rule, state, weights, uploads)

    def traffic(self, weights: Weights) -> tuple[int, int]:
        """Return the bytes a client receives and sends in a round: the model, and each number it reports."""
        model = sum(weight.nbytes for weight in weights.values())
        return model, model + NUMBER_BYTES * len(required_metrics(self.rule))

    def tests(self) -> Mapping[str, "Baseline"]:
        """Return additional tests that are logged next to the main one, by name."""
        return {}
