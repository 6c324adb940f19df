"""What FedFusion's server does with λ and with the extractor devices saw as the global one."""

import pytest
import torch
from torch import Tensor

from fedgs.algorithms import Batch, Sent, Upload, make_baseline
from fedgs.algorithms.fusion_network import LAMBDA, FusionNetwork
from fedgs.training.stacked_networks import build_network

BASE = build_network("compact", 4, (8, 8))


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
    labels = torch.tensor([[0, 1, 2]])
    images = torch.randint(0, 256, (1, 3, 8, 8, 1), dtype=torch.uint8)
    batch = Batch(images, labels, torch.full((1, 3), 1 / 3), torch.zeros_like(labels), torch.zeros(1))
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
    images, owners = torch.randint(0, 256, (1, 3, 8, 8, 1), dtype=torch.uint8), torch.zeros(1, 3, dtype=torch.int64)

    def fused(reference: dict[str, Tensor]) -> Tensor:
        global_maps = network.features({name: weight[None] for name, weight in reference.items()}, images)
        return network.fused(stacked, images, global_maps, owners)

    assert torch.equal(baseline.outputs(network, stacked, state, images, owners), fused(old))
    ((name, other),) = baseline.tests().items()
    assert name == "current_reference"
    found = other.outputs(network, stacked, state, images, owners)
    torch.testing.assert_close(found, BASE(stacked, images, owners))
    assert not torch.allclose(found, fused(old))
    ((name, _),) = make_baseline("fedfusion+multi", eval_reference="current").tests().items()
    assert name == "previous_reference"
