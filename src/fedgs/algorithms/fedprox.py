"""FedProx: FedAvg whose devices are held near the model they started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    h_k(w) = F_k(w) + (μ/2) ‖w − w_t‖²            over all weights; the square, with its half
    w ← w − η (∇F_k(w; b) + μ (w − w_t))

FedGS tries μ ∈ {0.05, 0.1, 0.5, 1}; μ = 0 is FedAvg. The authors' text samples devices by their data and takes a plain
mean; their code, FedGS and we sample uniformly and weigh by n_k. Reported losses are without the penalty.
"""

from dataclasses import dataclass

from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.options import NotNegative


@dataclass(frozen=True)
class FedProx(Baseline):
    """FedProx: a proximal term (μ/2) ‖w − w_t‖² in the local loss, with w_t the global model.

    The term is added to the direction of a step, after what the optimizer makes of the gradient: with Adam it is
    the decoupled decay towards w_t, as AdamW's is towards 0.

    Examples:
        >>> import fedgs
        >>> fedgs.FedProx(mu=0.1).pull                       # algorithm=fedgs.FedProx(mu=0.1)
        0.1
        >>> fedgs.FedGS(objective=fedgs.FedProx(mu=0.1)).kind
        'fedgs'
    """

    mu: NotNegative = 0.1
    """μ, the weight of the proximal term."""

    @property
    def pull(self) -> float:  # type: ignore[override]
        """Return μ; every engine applies it in its step."""
        return self.mu
