"""Anomaly detection on bearings: an autoencoder learns healthy machines, and what it reconstructs badly is odd.

Devices train on healthy windows alone. Selection balances the four operating modes, not classes: nobody has labels of
faults. The test samples are marked, so the score is the AUROC of the reconstruction error.

    python examples/anomaly_detection.py
"""

import torch
from torch import Tensor, nn

import fedgs
from fedgs.data import build_federation
from fedgs.data.bearings import WINDOW, load_bearings

data = load_bearings(machines=24, windows=30, plants=2, kind="anomaly")
federation = build_federation(data, None, "by-attribute", attribute="plant")


def spectrum(signals: Tensor) -> Tensor:
    """Network inputs: the logarithm of each axis's amplitude spectrum, (batch, 3, 64)."""
    amplitude = torch.fft.rfft(signals.float() * torch.hann_window(WINDOW), dim=-1).abs()
    return torch.log1p(nn.functional.avg_pool1d(amplitude, 8, 8))


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 8),
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 192), nn.Unflatten(1, (3, 64)),
    )  # fmt: skip


task = fedgs.reconstruction(autoencoder, by="mode", bins=4, prepare=spectrum)
history = fedgs.run(
    task, federation, rounds=6, iterations=20, batch_size=16, pick=4, optimizer="adam", learning_rate=0.003
)
print(history.frame()[["round", "auroc", "error", "divergence"]].iloc[::2].to_string(index=False))
print(f"AUROC {history.metrics[-1]['auroc']:.3f} of {len(federation.test.flat)} test windows")

rows = federation.test.flat
inputs = spectrum(torch.from_numpy(federation.inputs[rows]))
with torch.no_grad():
    errors = (history.model(inputs) - inputs).square().flatten(1).mean(1).numpy()
odd = federation.targets["anomalous"][rows] == 1
print(f"median error of healthy windows {sorted(errors[~odd])[sum(~odd) // 2]:.4f}, of anomalous ones "
      f"{sorted(errors[odd])[sum(odd) // 2]:.4f}")  # fmt: skip
