"""Your own algorithm: clients are held near the global model's answers; and your own server rule.

A baseline derives from fedgs.Baseline, which is FedAvg as it stands, and overrides what differs. Tensors have the
client as their first dimension; a loss is one number a client.

    python examples/own_algorithm.py
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import fedgs


@dataclass(frozen=True)
class Distilled(fedgs.Baseline):
    """FedAvg with β KL(global ‖ local) in the local loss, in the manner of FedGKD (Yao et al., 2021)."""

    beta: float = 0.2

    def objective(self, network, weights, sent, batch):
        loss, outputs = super().objective(network, weights, sent, batch)
        with torch.no_grad():  # the global model, in eval mode because it gets no keys
            taught = torch.log_softmax(network(sent.weights, batch.inputs, batch.clients), dim=-1)
        away = (taught.exp() * (taught - torch.log_softmax(outputs, dim=-1))).sum(-1)
        return loss + self.beta * (away * batch.shares).sum(1), outputs


@dataclass(frozen=True)
class Trimmed:
    """A server rule: the mean without the lowest and the highest value of each weight."""

    def init(self, weights):
        return {"round": 0}

    def update(self, state, weights, uploads):
        new = {}
        for name in weights:
            stack = torch.stack([upload.weights[name] for upload in uploads]).sort(0).values
            new[name] = (stack[1:-1] if len(stack) > 2 else stack).double().mean(0).to(weights[name].dtype)
        return new, {"round": state["round"] + 1}


draws = np.random.default_rng(0)
machines = np.arange(1_200) % 20
faults = (machines + draws.integers(0, 2, 1_200)) % 4
readings = (draws.normal(size=(1_200, 8)) + 1.5 * np.eye(4, 8)[faults]).astype(np.float32)
federation = fedgs.Federation.from_arrays(readings, faults, devices=machines, factories=4)
task = fedgs.classification(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), 4)
options = {"rounds": 5, "iterations": 10, "batch_size": 16, "pick": 2, "learning_rate": 0.1}

print(
    fedgs.compare(
        fedgs.run(task, federation, algorithm="fedavg", **options),
        fedgs.run(task, federation, algorithm=Distilled(beta=0.5), **options),
        fedgs.run(task, federation, algorithm=Distilled(rule=Trimmed()), **options),
        fedgs.run(task, federation, algorithm=fedgs.FedGS(rule=Trimmed()), **options),
        fedgs.run(task, federation, algorithm=fedgs.FedGS(objective=fedgs.FedProx(mu=0.1)), **options),
        names=["fedavg", "distilled", "distilled, trimmed", "fedgs, trimmed", "fedgs + fedprox"],
    )
)
