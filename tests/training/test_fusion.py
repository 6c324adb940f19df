"""Fusion of local and global feature maps: values worked out by hand, gradients, first weights."""

import pytest
import torch

from fedgs.algorithms import make_baseline
from fedgs.algorithms.fusion_network import BIAS, KERNEL, LAMBDA, FusionNetwork
from fedgs.training.stacked_networks import build_network

BASE = build_network("compact", 3, (8, 8))
LOCAL, GLOBAL = (torch.tensor(values).view(1, 1, 2, 1, 1) for values in ([1.0, 2.0], [3.0, 6.0]))


@pytest.mark.parametrize(
    ("operator", "weights", "expected"),
    [
        ("single", {LAMBDA: torch.tensor([[0.25]])}, [1.5, 3.0]),
        ("multi", {LAMBDA: torch.tensor([[0.25, 0.5]])}, [1.5, 4.0]),
        (
            "conv",
            {
                KERNEL: torch.tensor([[1, 0, 0.5, 0], [0, 1, 0, 0.5]]).view(1, 2, 4, 1, 1),
                BIAS: torch.tensor([[0.1, -0.1]]),
            },
            [2.6, 4.9],
        ),
    ],
)
def test_t_fus_1_operators(operator: str, weights: dict[str, torch.Tensor], expected: list[float]) -> None:
    """T-FUS-1: a = (1, 2), b = (3, 6), two channels of one pixel; local first, λ weighs the global maps."""
    network = FusionNetwork(base=BASE, operator=operator)  # type: ignore[arg-type]
    assert network.fuse(weights, LOCAL, GLOBAL).flatten().tolist() == pytest.approx(expected)


def test_the_gradient_of_lambda() -> None:
    """∂/∂λ = Σ g (b − a) over batch, channels and pixels, and nothing while both extractors agree."""
    network = FusionNetwork(base=BASE, operator="single")
    local, reference, back = torch.randn(3, 2, 3, 4, 5, 5, dtype=torch.float64)
    share = torch.tensor([[0.3], [0.6]], dtype=torch.float64, requires_grad=True)
    fused = network.fuse({LAMBDA: share}, local, reference)
    (found,) = torch.autograd.grad((fused * back).sum(), share)
    torch.testing.assert_close(found[:, 0], (back * (reference - local)).sum((1, 2, 3, 4)))
    (found,) = torch.autograd.grad((network.fuse({LAMBDA: share}, local, local) * back).sum(), share)
    assert float(found.abs().max()) < 1e-12


@pytest.mark.parametrize("operator", ["single", "multi"])
def test_lambda_of_zero_is_the_plain_network(operator: str) -> None:
    """§1.6: FedFusion single/multi with λ = 0 is FedAvg's network bit for bit, whatever the reference."""
    network = make_baseline(f"fedfusion+{operator}").network(BASE, 4)
    assert isinstance(network, FusionNetwork)
    weights = {name: weight[None] for name, weight in network.first_weights(0).items()}
    images = torch.randint(0, 256, (1, 4, 8, 8, 1), dtype=torch.uint8)
    owners = torch.zeros(1, 4, dtype=torch.int64)
    reference = torch.randn_like(network.features(weights, images))
    fused = network.fused(weights, images, reference, owners)
    assert torch.equal(fused, BASE(weights, images, owners))


@pytest.mark.parametrize(("operator", "expected"), [("conv", 8_256), ("multi", 64), ("single", 1)])
def test_t_fus_4_number_of_weights(operator: str, expected: int) -> None:
    """T-FUS-4: what the operator adds to the paper's network."""
    base = build_network("paper")
    network = make_baseline(f"fedfusion+{operator}").network(base, 350)
    added = {name: weight for name, weight in network.first_weights(0).items() if name.startswith("fusion")}
    assert sum(weight.numel() for weight in added.values()) == expected
    assert sum(weight.numel() for weight in network.first_weights(0).values()) == 6_603_710 + expected
    if operator != "conv":
        assert not any(weight.any() for weight in added.values())


@pytest.mark.parametrize("init", ["xavier", "torch_default"])
def test_first_kernels_of_conv(init: str) -> None:
    """Xavier: U(±√(6/192)), biases 0; torch: U(±1/√128), biases too."""
    network = make_baseline("fedfusion+conv", conv_init=init).network(build_network("paper"), 1)
    weights = network.first_weights(0)
    bound = (6 / 192) ** 0.5 if init == "xavier" else 128**-0.5
    assert 0.98 * bound < float(weights[KERNEL].abs().max()) <= bound
    assert bool(weights[BIAS].any()) == (init == "torch_default")
    assert float(weights[BIAS].abs().max()) <= bound
