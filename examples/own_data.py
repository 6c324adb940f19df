"""Your own data: one torch Dataset a device, and a table with a number to predict.

python examples/own_data.py
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedgs

draws = np.random.default_rng(0)

# 1. One map-style Dataset a device; who belongs to which plant is a dict.
datasets = {}
for press in range(12):
    kinds = torch.from_numpy((press + draws.integers(0, 2, 80)) % 3)  # a press makes two of three kinds of part
    images = torch.from_numpy(draws.normal(size=(80, 1, 8, 8))).float()
    images[torch.arange(80), 0, 2 * kinds] += 2.0  # a bright line whose place tells the kind
    datasets[f"press-{press}"] = TensorDataset(images, kinds)
plants = {name: "north" if number < 6 else "south" for number, name in enumerate(datasets)}
parts = fedgs.Federation.from_datasets(datasets, factories=plants, test=0.2, classes=["bolt", "nut", "washer"])
network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
history = fedgs.run(fedgs.classification(network), parts, rounds=8, iterations=10, batch_size=16, pick=3)
print(f"parts: {len(parts)} presses in {parts.factories} plants, accuracy {history.metrics[-1]['accuracy']:.3f}")

# 2. A table with a target to predict: the wear of a tool. Columns have different units, so they are normalised.
spindles = np.arange(1_500) % 20
hours = draws.uniform(0, 400, 1_500) * (1 + spindles % 4) / 4  # some spindles have new tools only
table = np.column_stack([hours, draws.normal(60, 5, 1_500), draws.normal(0, 1e-3, 1_500)]).astype(np.float32)
wear = (0.002 * hours + 0.01 * (table[:, 1] - 60) + 0.02 * draws.normal(size=1_500)).astype(np.float32)
tools = fedgs.Federation.from_arrays(table, wear, devices=spindles, factories=2, test=draws.random(1_500) < 0.2)


def wear_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))


task = fedgs.regression(wear_network, bins=5)  # teams of spindles have all five quantiles of wear
settings = {"data": {"normalise": "per-channel"}, "eval": {"target": 0.05}}
regression = fedgs.run(
    task, tools, rounds=12, iterations=10, pick=4, optimizer="adam", learning_rate=0.02, settings=settings
)
print(f"wear: mean absolute error {regression.metrics[0]['mae']:.3f} before, {regression.metrics[-1]['mae']:.3f} after")
print(regression.frame()[["round", "mae", "rmse", "divergence"]].tail(3).to_string(index=False))
with torch.no_grad():  # the returned model takes raw columns: mean and deviation are buffers in it
    print("predicted", regression.model(torch.from_numpy(table[:3])).ravel().tolist(), "true", wear[:3].tolist())
