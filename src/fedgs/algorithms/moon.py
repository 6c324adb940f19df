"""MOON: what a client's model sees stays nearer to the global model's view than to that of its own last model.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, eqs. 3 and 4. With z what the last layer is given
by the local model, z_glob by the model the round began with and z_prev by the client's model after its last round:

    ℓ_con = −log( exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ)) )        sim: cosine
    loss  = ℓ_sup + μ ℓ_con ,           the means over a batch

The paper puts a projection head of two layers before the last one; here the network is that of the other baselines. A
client that has not taken part yet has the first global model as its last one. Both frozen models are in eval mode, both
with the running statistics of the global model: clients remember weights alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fedgs.algorithms.baseline import Baseline, Batch, Sent
from fedgs.algorithms.client_memory import participants, rows_of
from fedgs.algorithms.options import NotNegative, Positive
from fedgs.algorithms.rule import State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.data.arrays import map_tree
from fedgs.training.network import Network

CLIENTS = "previous"


@dataclass(frozen=True)
class Moon(Baseline):
    """MOON: a contrastive term between the local, the global and the client's previous model."""

    mu: NotNegative = 1.0
    """μ, the weight of the contrastive term."""
    temperature: Positive = 0.5
    """τ."""

    runs_global_model = True

    def init_clients(self, weights: Weights, clients: int) -> State:
        """Return the first model as everybody's last one."""
        return {
            CLIENTS: {name: weight.detach().expand(clients, *weight.shape).clone() for name, weight in weights.items()}
        }

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss plus μ ℓ_con."""
        found = network.forward(weights, batch.inputs, batch.clients, batch.keys, hidden=True)
        assert found.hidden is not None
        local = found.hidden.float().flatten(2)
        with torch.no_grad():
            together = map_tree(lambda value: value.flatten(0, 1)[None], batch.inputs)
            shared = network.forward(sent.weights, together, batch.clients.flatten()[None], hidden=True).hidden
            frozen = {**sent.weights, **rows_of(sent.memory[CLIENTS], batch)}
            previous = network.forward(frozen, batch.inputs, batch.clients, hidden=True).hidden
            assert shared is not None
            assert previous is not None
        near, far = (other.float().view(local.shape) for other in (shared, previous))
        contrast = (contrasts(local, near, far, self.temperature) * batch.shares).sum(1)
        return network.loss(found.outputs, batch) + self.mu * contrast, found.outputs

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the mean of the uploads, and remember each as its client's last model."""
        memory: Any = dict(state)
        before = memory.pop(CLIENTS)
        new, memory = super().update(memory, weights, uploads)
        clients = {name: values.clone() for name, values in before.items()}
        for row, upload in zip(participants(uploads, before), uploads, strict=True):
            for name, values in clients.items():
                values[row] = upload.weights[name].to(values)
        return new, {**memory, CLIENTS: clients}


def contrasts(local: Tensor, shared: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """Return ℓ_con of each sample from z, z_glob and z_prev, (D, B, features) each."""
    near, far = (cosine_similarity(local, other, dim=-1) for other in (shared, previous))
    return softplus((far - near) / temperature)  # −log of a share of two
