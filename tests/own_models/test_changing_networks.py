"""Networks that change between calls are refused: nobody would train, average or save what they make on the way."""

import pytest
import torch
from torch import Tensor, nn

import fedgs
from fedgs.errors import ConfigError
from tests.own_models.networks import CASES, CLASSES, Table
from tests.own_models.test_semantics import QUICK


class ReplacesBuffer(Table):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * rows.mean(0).detach()
        return super().forward(rows - self.centre)


class ReplacesWeight(Table):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, rows: Tensor) -> Tensor:
        self.scale = nn.Parameter(self.scale.detach().clone())
        return super().forward(rows * self.scale)


class MakesLayer(nn.Module):
    """A common way to avoid counting sizes; with batch normalisation, so that other checks say nothing before it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.late: nn.Module | None = None

    def forward(self, rows: Tensor) -> Tensor:
        features = self.body(rows)
        if self.late is None:
            self.late = nn.Linear(features.shape[1], CLASSES)
        outputs: Tensor = self.late(features)
        return outputs


@pytest.mark.parametrize(
    ("network", "does"),
    [
        (ReplacesBuffer, r"replaces buffer 'centre'; .*copy_"),
        (ReplacesWeight, "replaces weight 'scale'"),
        (MakesLayer, r"adds weight 'late.weight'; make every layer in __init__, .*nn\.LazyLinear"),
    ],
)
@pytest.mark.parametrize("algorithm", ["fedgs", "fedavg"])
def test_a_network_that_changes_is_refused(network: type[nn.Module], does: str, algorithm: str) -> None:
    with pytest.raises(ConfigError, match=f"changes between calls: its forward {does}"):
        fedgs.run(
            fedgs.classification(network, CLASSES), CASES["mlp on tables"].federation(), algorithm=algorithm, **QUICK
        )


class ForgetsClasses(Table):
    """Gives fewer outputs from its fourth call on, whichever copy of it is called."""

    calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        ForgetsClasses.calls += 1
        outputs: Tensor = super().forward(rows)
        return outputs if ForgetsClasses.calls < 4 else outputs[:, :1]


def test_a_network_that_gives_other_outputs_later_ends_in_a_line() -> None:
    federation = CASES["mlp on tables"].federation()
    for algorithm in ("fedgs", "fedavg"):
        ForgetsClasses.calls = 0
        with pytest.raises(ConfigError, match=r"take one batch and fail on another \(IndexError"):
            fedgs.run(fedgs.classification(ForgetsClasses, CLASSES), federation, algorithm=algorithm, **QUICK)
