"""FedFusion: its operators, and what its server does with λ and the global extractor, by hand; first weights."""

import pytest
import torch
from torch import Tensor

from fedgs.algorithms import Batch, Sent, Upload, make_baseline
from fedgs.algorithms.fedfusion import BIAS, KERNEL, LAMBDA, FusionNetwork
from fedgs.training.stacked_networks import build_network

BASE = build_network("compact", 4, (8, 8))
IMAGES = torch.randint(0, 256, (1, 3, 8, 8, 1), dtype=torch.uint8)
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
    owners = torch.zeros(1, 3, dtype=torch.int64)
    reference = torch.randn_like(network.features(weights, IMAGES))
    fused = network.fused(weights, IMAGES, reference, owners)
    assert torch.equal(fused, BASE(weights, IMAGES, owners))


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


def test_t_fus_2_lambda_is_smoothed_at_the_server() -> None:
    """T-FUS-2: means 0.3, 0.13 and 0.5 become 0.03, 0.04 and 0.086."""
    baseline = make_baseline("fedfusion+single")
    weights = {"conv1.weight": torch.zeros(1), LAMBDA: torch.zeros(1)}
    state, seen = baseline.init(weights), []
    for mean in (0.3, 0.13, 0.5):
        uploads = [
            Upload({"conv1.weight": torch.ones(1), LAMBDA: torch.tensor([mean + away])}, samples)
            for away, samples in ((0.3, 10), (-0.1, 30))
        ]
        weights, state = baseline.update(state, weights, uploads)
        seen.append(float(weights[LAMBDA]))
        assert float(weights["conv1.weight"]) == 1  # all else is the plain mean
    assert seen == pytest.approx([0.03, 0.04, 0.086], abs=1e-6)


def test_conv_is_not_smoothed() -> None:
    baseline = make_baseline("fedfusion+conv")
    weights = {"conv1.weight": torch.zeros(1), "fusion.bias": torch.zeros(1)}
    uploads = [Upload({"conv1.weight": torch.ones(1), "fusion.bias": torch.ones(1)}, 5)]
    assert float(baseline.update(baseline.init(weights), weights, uploads)[0]["fusion.bias"]) == 1


@pytest.mark.parametrize("operator", ["conv", "multi", "single"])
def test_t_fus_3_the_reference_has_no_gradient_and_is_not_uploaded(operator: str) -> None:
    """T-FUS-3: what is trained and sent has one extractor; the server itself remembers the one before."""
    baseline = make_baseline(f"fedfusion+{operator}")
    network = baseline.network(BASE, 3)
    first = network.first_weights(0)
    sent = Sent({name: weight[None].clone().requires_grad_() for name, weight in first.items()}, {})
    own = {name: weight[None] + 0.01 for name, weight in first.items()}
    for weight in own.values():
        weight.requires_grad_()
    batch = Batch.of_one(IMAGES[0], torch.tensor([0, 1, 2]))
    loss, _ = baseline.objective(network, own, sent, batch)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is None for weight in sent.weights.values())
    assert all(weight.grad is not None for weight in own.values())
    assert sorted(name for name in first if "conv" in name) == [
        "conv1.bias", "conv1.weight", "conv2.bias", "conv2.weight",
    ]  # fmt: skip


def test_the_test_sees_through_the_old_and_the_new_extractor() -> None:
    """eval_reference: previous takes E_t as the global one, current E_{t+1}, with which single is the plain network."""
    baseline = make_baseline("fedfusion+single")
    network = baseline.network(BASE, 3)
    assert isinstance(network, FusionNetwork)
    old, new = (network.first_weights(seed) for seed in (0, 1))
    new[LAMBDA] = torch.tensor([0.4])
    _, state = baseline.update(baseline.init(old), old, [Upload(new, 1)])
    stacked = {name: weight[None] for name, weight in new.items()}
    owners = torch.zeros(1, 3, dtype=torch.int64)

    def fused(reference: dict[str, Tensor]) -> Tensor:
        global_maps = network.features({name: weight[None] for name, weight in reference.items()}, IMAGES)
        return network.fused(stacked, IMAGES, global_maps, owners)

    assert torch.equal(baseline.outputs(network, stacked, state, IMAGES, owners), fused(old))
    ((name, other),) = baseline.tests().items()
    assert name == "current_reference"
    found = other.outputs(network, stacked, state, IMAGES, owners)
    torch.testing.assert_close(found, BASE(stacked, IMAGES, owners))
    assert not torch.allclose(found, fused(old))
    ((name, _),) = make_baseline("fedfusion+multi", eval_reference="current").tests().items()
    assert name == "previous_reference"
