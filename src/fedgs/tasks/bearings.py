"""The three tasks of the embedded bearings: which fault, how severe, and whether anything is odd at all.

fedgs run --preset bearings                                                         # which fault
fedgs run --preset bearings --set task=fedgs.tasks.bearings:severity --set data.name=bearings-severity
fedgs run --preset bearings --set task=fedgs.tasks.bearings:anomaly --set data.name=bearings-anomaly
"""

import torch
from torch import Tensor, nn

from fedgs.data.bearings import CLASSES, WINDOW
from fedgs.tasks.signals import SignalAutoEncoder, VibrationNet
from fedgs.tasks.task import Task, classification, reconstruction, regression

BINS = WINDOW // 2 + 1


def faults() -> Task:
    """Return the task that names the fault, one of eleven classes."""
    return classification(VibrationNet, CLASSES, options={"outputs": len(CLASSES)}, head="head", features="features")


def severity() -> Task:
    """Return the task that tells how severe a defect is, from 0 to 1; balanced by five quantiles."""
    return regression(_Severity, bins=5)


def anomaly() -> Task:
    """Return the task that reconstructs the spectrum of healthy machines; balanced by operating mode."""
    return reconstruction(SpectrumAutoEncoder, by="mode", prepare=log_spectrum)


class _Severity(VibrationNet):
    """The 1-D CNN with one output, between 0 and 1."""

    def __init__(self) -> None:
        super().__init__(outputs=1)

    def forward(self, signals: Tensor) -> Tensor:
        """Return the severity of each window."""
        return torch.sigmoid(super().forward(signals))[:, 0]


def log_spectrum(signals: Tensor) -> Tensor:
    """Return the logarithm of the amplitude spectrum of each axis, smoothed by four neighbours."""
    amplitude = torch.fft.rfft(signals.float() * torch.hann_window(WINDOW, device=signals.device), dim=-1).abs()
    return torch.log1p(nn.functional.avg_pool1d(amplitude, 4, 4))


class SpectrumAutoEncoder(SignalAutoEncoder):
    """Squeezes a spectrum through a few numbers and draws it again."""

    def __init__(self, axes: int = 3, bins: int = BINS // 4, code: int = 12, width: int = 96) -> None:
        super().__init__(axes, bins, code, width)
