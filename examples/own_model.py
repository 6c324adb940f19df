"""Your own 1-D network on your own float arrays: FedGS and FedAvg, compared.

python examples/own_model.py
"""

import numpy as np
import torch
from torch import nn

import fedgs

# The data: vibration of 16 machines in 2 plants. Every machine sees two of four faults, as real machines do.
draws = np.random.default_rng(0)
machines = np.arange(960) % 16
faults = (machines + draws.integers(0, 2, 960)) % 4
signals = np.sin(np.arange(64) * (0.3 + 0.2 * faults)[:, None, None] + draws.uniform(0, 6, (960, 2, 1)))
signals = (signals + 0.5 * draws.normal(size=signals.shape)).astype(np.float32)  # (samples, channels, length)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 16, 9), nn.GroupNorm(4, 16), nn.ReLU())
        self.fc = nn.Linear(16, 4)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(signals).mean(-1))


task = fedgs.classification(Net, classes=["healthy", "inner race", "outer race", "ball"])
federation = fedgs.Federation.from_arrays(signals, faults, devices=machines, factories=2)
options = {"rounds": 8, "iterations": 10, "batch_size": 16, "pick": 4, "learning_rate": 0.3}
history = fedgs.run(task, federation, **options)  # 10 iterations × 8 machines × 16 samples a round, FedAvg as many:
baseline = fedgs.run(task, federation, algorithm="fedavg", **options, settings={"algorithm": {"local_epochs": 3}})
comparison = fedgs.compare(history, baseline)
print(comparison)
comparison.plot("own_model.png")
with torch.no_grad():
    print("predicted", history.model(torch.from_numpy(signals[:8])).argmax(1).tolist(), "true", faults[:8].tolist())
