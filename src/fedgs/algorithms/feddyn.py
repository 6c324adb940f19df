"""FedDyn: the local loss is changed from round to round so that clients and server agree where they come to rest.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic Regularization", ICLR 2021,
Algorithm 1. Client k keeps g_k, its gradient where it last came to, the server h; all are 0 at first. With m clients:

    θ_k = argmin_θ  L_k(θ) − ⟨g_k, θ⟩ + (α/2) ‖θ − θ_t‖²            by the local steps
    g_k ← g_k − α (θ_k − θ_t)
    h ← h − α (|P| / m) mean_{k∈P} (θ_k − θ_t) ,      θ_{t+1} = mean_{k∈P} θ_k − h / α

Means are plain ones, as in the paper: so h stays the mean of all g_k, and the model converges to the minimum of the
mean of the clients' losses. If they are weighted by n_k (``weighting="samples"``), it converges elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from fedgs.algorithms.baseline import Baseline, Batch, Sent
from fedgs.algorithms.client_memory import inner_product, participants, rows_of, weighted_sum, zeros
from fedgs.algorithms.fedavg import FedAvg
from fedgs.algorithms.options import Positive
from fedgs.algorithms.rule import ServerRule, State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.training.network import Network

SERVER, CLIENTS = "drift", "gradients"


@dataclass(frozen=True)
class FedDyn(Baseline):
    """FedDyn: a linear and a proximal term in the local loss, with a memory of every client."""

    rule: ServerRule = field(default_factory=partial(FedAvg, "uniform"))
    alpha: Positive = 0.01
    """α, the weight of the dynamic regularisation."""

    reads_weights = True

    @property
    def pull(self) -> float:  # type: ignore[override]
        """Return α; every engine applies it in its step."""
        return self.alpha

    def init_clients(self, weights: Weights, clients: int) -> State:
        """Return h and all g_k, 0."""
        return {SERVER: zeros(weights), CLIENTS: zeros(weights, clients)}

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss minus ⟨g_k, θ⟩."""
        loss, outputs = super().objective(network, weights, sent, batch)
        return loss - inner_product(rows_of(sent.memory[CLIENTS], batch), weights), outputs

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the mean of the uploads less h / α, and the new memory."""
        memory: Any = dict(state)
        server, before = memory.pop(SERVER), memory.pop(CLIENTS)
        new, memory = super().update(memory, weights, uploads)
        rows = participants(uploads, before)
        clients, drift = {name: values.clone() for name, values in before.items()}, {}
        for name, old in server.items():
            moves = [(upload.weights[name] - weights[name]).to(old) for upload in uploads]
            for row, move in zip(rows, moves, strict=True):
                clients[name][row] -= self.alpha * move
            share = self.alpha * len(uploads) / len(before[name])
            drift[name] = (old.double() - share * weighted_sum(moves, uploads, self.rule)).to(old.dtype)
            new[name] = new[name] - (drift[name] / self.alpha).to(new[name])
        return new, {**memory, SERVER: drift, CLIENTS: clients}
