"""SCAFFOLD: control variates take out of every local step what pulls the client away from the others.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020, Algorithm 1 with option II. The server has a control variate c, client i has c_i, both 0 at first:

    y_i ← y_i − η_l (∇F_i(y_i; b) − c_i + c)                  in each of its K_i steps, from y_i = x
    c_i⁺ = c_i − c + (x − y_i) / (K_i η_l)                    option II: the mean gradient along the way
    x ← x + η_g mean_{i∈S} (y_i − x) ,      c ← c + (|S| / N) mean_{i∈S} (c_i⁺ − c_i)

The correction is a linear term ⟨c − c_i, y⟩ of the local loss. Means are plain ones, as in the paper: so c stays the
mean of all c_i, and the model converges to the minimum of the mean of the clients' losses, where every client counts
alike. If they are weighted by n_i (``weighting="samples"``), the weight of a client changes with who else takes part; c
is no mean of the c_i then, and the model converges elsewhere. Option II reads the gradient off the way a client went,
so steps must be plain SGD without clipping. Model and control variate travel in both directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgs.algorithms.baseline import Baseline, Batch, Sent
from fedgs.algorithms.client_memory import inner_product, participants, rows_of, weighted_sum, zeros
from fedgs.algorithms.fedavg import FedAvg
from fedgs.algorithms.options import Positive
from fedgs.algorithms.rule import ServerRule, State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.training.network import Network

SERVER, CLIENTS = "control", "controls"


@dataclass(frozen=True)
class Scaffold(Baseline):
    """SCAFFOLD: control variates of the server and of every client correct each local step."""

    rule: ServerRule = field(default_factory=partial(FedAvg, "uniform"))
    server_lr: Positive = 1.0
    """η_g, the server's learning rate."""

    reads_weights = True
    plain_sgd = True

    def init_clients(self, weights: Weights, clients: int) -> State:
        """Return control variates of 0."""
        return {SERVER: zeros(weights), CLIENTS: zeros(weights, clients)}

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss plus ⟨c − c_i, y⟩."""
        loss, outputs = super().objective(network, weights, sent, batch)
        own, server = rows_of(sent.memory[CLIENTS], batch), sent.memory[SERVER]
        return loss + inner_product({name: server[name] - own[name] for name in own}, weights), outputs

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the mean of the uploads, or ``server_lr`` times the way to it, and the new control variates."""
        memory: Any = dict(state)
        server, before = memory.pop(SERVER), memory.pop(CLIENTS)
        new, memory = super().update(memory, weights, uploads)
        rows = participants(uploads, before)
        lengths = [float(upload.metrics["steps"]) * float(upload.metrics["rate"]) for upload in uploads]
        clients, mean = {name: values.clone() for name, values in before.items()}, {}
        for name, control in server.items():
            changes = []
            for row, length, upload in zip(rows, lengths, uploads, strict=True):
                changes.append((weights[name] - upload.weights[name]).to(control) / length - control)
                clients[name][row] += changes[-1]
            share = len(uploads) / len(before[name])
            mean[name] = (control.double() + share * weighted_sum(changes, uploads, self.rule)).to(control.dtype)
            if self.server_lr != 1.0:
                new[name] = torch.lerp(weights[name], new[name], self.server_lr)
        return new, {**memory, SERVER: mean, CLIENTS: clients}

    def traffic(self, weights: Weights) -> tuple[int, int]:
        """Return the bytes of model and control variate, both ways."""
        down, up = super().traffic(weights)
        return 2 * down, up + down
