"""The squared maximum mean discrepancy: values worked out by hand, its edges, and the loss it becomes a part of."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from fedgs.algorithms import Batch, Sent, make_baseline
from fedgs.algorithms.fedmmd import WIDTHS, _bandwidths, _squared_distances, squared_mmd
from fedgs.training.stacked_networks import build_network


def evenly(values: Tensor) -> Tensor:
    return torch.full(values.shape[:2], 1 / values.shape[1], dtype=values.dtype)


def mmd(first: list[list[float]], second: list[list[float]], kernel: str = "fixed19") -> float:
    one, other = (torch.tensor([values], dtype=torch.float64) for values in (first, second))
    return float(squared_mmd(one, other, evenly(one), kernel))


def test_t_mmd_1_one_sample_each() -> None:
    """T-MMD-1: {0} against {1}; the widths are not squared."""
    kernels = torch.exp(-1 / (2 * torch.tensor(WIDTHS, dtype=torch.float64)))
    assert float(kernels.sum()) == pytest.approx(12.355805, abs=1e-6)
    assert mmd([[0]], [[1]]) == pytest.approx(13.288391, abs=1e-6)


def test_t_mmd_2_two_samples_in_the_plane() -> None:
    """T-MMD-2: a V-statistic, the diagonals count."""
    first, second = [[0, 0], [1, 0]], [[0, 0], [1, 1]]
    assert mmd(first, second) == pytest.approx(3.322098, abs=1e-6)
    assert mmd(first, second, "adaptive5") == pytest.approx(1.452272, abs=1e-6)
    one, other = (torch.tensor([values], dtype=torch.float64) for values in (first, second))
    distances = (_squared_distances(one, one), _squared_distances(other, other), _squared_distances(one, other))
    expected = [0.291667 * 2**power for power in range(5)]
    assert _bandwidths(*distances, evenly(one))[0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kernel", ["fixed19", "adaptive5"])
def test_t_mmd_3_identical_inputs(kernel: str) -> None:
    """T-MMD-3: nothing, and no gradient."""
    frozen = torch.randn(3, 5, 7)
    local = frozen.clone().requires_grad_()
    found = squared_mmd(frozen, local, evenly(frozen), kernel)
    assert found.tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), local)
    assert float(gradient.abs().max()) < 1e-6


@pytest.mark.parametrize("kernel", ["fixed19", "adaptive5"])
@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_t_mmd_4_large_logits(kernel: str, scale: float) -> None:
    """T-MMD-4: no NaN and no infinity, forwards or backwards."""
    frozen, local = scale * torch.randn(2, 2, 8, 62, generator=torch.Generator().manual_seed(0))
    local.requires_grad_()
    found = squared_mmd(frozen, local, evenly(frozen), kernel)
    (gradient,) = torch.autograd.grad(found.sum(), local)
    assert bool(torch.isfinite(found).all())
    assert bool(torch.isfinite(gradient).all())


@examples(max_examples=20)
@given(st.integers(1, 6), st.integers(0, 3), st.integers(1, 5), st.sampled_from(["fixed19", "adaptive5"]))
def test_what_fills_up_a_batch_does_not_count(size: int, more: int, features: int, kernel: str) -> None:
    draws = torch.Generator().manual_seed(size + 10 * more)
    first, second = torch.randn(2, 1, size + more, features, generator=draws, dtype=torch.float64)
    shares = torch.zeros(1, size + more, dtype=torch.float64)
    shares[:, :size] = 1 / size
    alone = squared_mmd(first[:, :size], second[:, :size], shares[:, :size], kernel)
    torch.testing.assert_close(squared_mmd(first, second, shares, kernel), alone)


def some_batch(network_seed: int = 0) -> tuple[dict[str, Tensor], Batch]:
    network = build_network("compact", 4, (8, 8))
    weights = {name: weight[None].clone() for name, weight in network.first_weights(network_seed).items()}
    images = torch.randint(0, 256, (1, 6, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[0, 1, 2, 3, 0, 1]])
    return weights, Batch(images, labels, torch.full((1, 6), 1 / 6), torch.zeros_like(labels), torch.zeros(1))


@pytest.mark.parametrize("layer", ["logits", "hidden"])
def test_the_loss_has_a_floor_and_no_gradient_below_it(layer: str) -> None:
    """At the first local step both streams agree: the penalty is γ · floor, the gradient exactly FedAvg's."""
    network = build_network("compact", 4, (8, 8))
    weights, batch = some_batch()
    sent = Sent(weights, {})
    losses, gradients = [], []
    for baseline in (make_baseline("fedavg"), make_baseline("fedmmd", gamma=0.1, layer=layer)):
        own = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        loss, _ = baseline.objective(network, own, sent, batch)
        losses.append(float(loss.detach()))
        gradients.append(torch.autograd.grad(loss.sum(), list(own.values())))
    assert losses[1] - losses[0] == pytest.approx(1e-5, rel=0.05)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("layer", ["logits", "hidden"])
def test_the_loss_is_cross_entropy_plus_gamma_times_the_discrepancy(layer: str) -> None:
    network = build_network("compact", 4, (8, 8))
    (global_weights, batch), (weights, _) = some_batch(0), some_batch(1)
    sent = Sent({name: weight.requires_grad_() for name, weight in global_weights.items()}, {})
    loss, _ = make_baseline("fedmmd", gamma=0.3, layer=layer).objective(network, weights, sent, batch)
    assert not loss.requires_grad  # nothing flows into the frozen stream
    plain, _ = make_baseline("fedavg").objective(network, weights, sent, batch)
    streams = []
    for own in (global_weights, weights):
        hidden = network.hidden(own, network.maps(own, batch.inputs))
        streams.append((network.logits(own, hidden) if layer == "logits" else hidden).detach())
    assert float(loss - plain) == pytest.approx(0.3 * float(squared_mmd(*streams, batch.shares)), rel=1e-4)
