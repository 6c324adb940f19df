"""Deferred updates, against plain steps on weights that are written every time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedgs.training.deferred import DeferredLayer
from fedgs.training.stacked_layers import dense

DEVICES, OUTPUTS, INPUTS, BATCH, ROOM = 3, 5, 4, 2, 4


def play(
    seed: int, counts: list[int], pull: float, uses: int, dtype: torch.dtype, exact: torch.dtype
) -> tuple[Tensor, Tensor, float]:
    """Make steps of the first so many devices both ways; weights of both and the largest difference of outputs."""
    draws = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64).to(exact)

    start, biases = draw(OUTPUTS, INPUTS), draw(DEVICES, OUTPUTS)
    plain = start.repeat(DEVICES, 1, 1)
    layer = DeferredLayer(plain.clone(), ROOM, BATCH, dtype, pull)
    layer.begin(start)
    kept, first, gap = 0, 0, 0.0
    for count in counts:
        if kept + uses > ROOM:
            layer.flush(first)
            kept = 0
        if kept == 0:
            first = count
        layer.at(kept)
        rates = 0.1 * (draw(count).abs() + 0.1)
        rates[-1] = 0.0 if count == DEVICES else rates[-1]  # one who is done takes part with nothing
        gradient = torch.zeros_like(plain[:count])
        for _ in range(uses):
            inputs, steps = draw(count, BATCH, INPUTS).requires_grad_(), draw(count, BATCH, OUTPUTS)
            outputs = dense(inputs, layer, biases[:count], dtype)
            expected = inputs.detach() @ plain[:count].transpose(1, 2) + biases[:count, None]
            (back,) = torch.autograd.grad((outputs * steps.to(dtype)).sum(), inputs)
            gap = max(gap, float((outputs.detach().to(exact) - expected).abs().max()))
            gap = max(gap, float((back.to(exact) - steps @ plain[:count]).abs().max()))
            gradient += steps.transpose(1, 2) @ inputs.detach()
        layer.step(rates)
        kept += uses
        plain[:count] -= rates[:, None, None] * (gradient + pull * (plain[:count] - start))
    layer.flush(first)
    return layer.weights, plain, gap


@given(
    seed=st.integers(0, 10**6),
    counts=st.lists(st.integers(1, DEVICES), min_size=1, max_size=12).map(lambda found: sorted(found, reverse=True)),
    pull=st.sampled_from([0.0, 0.5]),
    uses=st.sampled_from([1, 2]),
)
def test_they_are_the_same_steps(seed: int, counts: list[int], pull: float, uses: int) -> None:
    weights, plain, gap = play(seed, counts, pull, uses, torch.float64, torch.float64)
    torch.testing.assert_close(weights, plain, rtol=1e-9, atol=1e-9)
    assert gap < 1e-8


@pytest.mark.parametrize("pull", [0.0, 0.5])
def test_in_bfloat16_they_are_the_same_but_for_rounding(pull: float) -> None:
    weights, plain, gap = play(3, [3, 3, 2, 2, 1, 1], pull, 1, torch.bfloat16, torch.float32)
    assert weights.dtype == torch.float32
    moved = float((plain - plain.mean()).abs().max())
    assert float((weights - plain).abs().max()) < 0.02 * moved
    assert 0 < gap < 0.2


def test_a_step_that_notes_nothing_changes_nothing() -> None:
    start = torch.ones(OUTPUTS, INPUTS)
    layer = DeferredLayer(start.repeat(2, 1, 1), ROOM, BATCH, torch.float32)
    layer.begin(start)
    layer.at(0)
    layer.step(torch.ones(2))
    layer.flush(2)
    assert torch.equal(layer.weights, start.repeat(2, 1, 1))


def test_deferred_weights_are_no_tensor() -> None:
    """Whoever looks at them other than through the network is told, and says ``reads_weights``."""
    layer: Tensor = DeferredLayer(torch.ones(1, OUTPUTS, INPUTS), ROOM, BATCH, torch.float32)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="reads_weights = True"):
        layer.square().sum()


@pytest.mark.parametrize("uses", [0, 1, 2])
def test_the_length_of_a_step_that_is_not_written_out(uses: int) -> None:
    """As that of the gradient itself; and half of it is kept where half is asked for."""
    draws = torch.Generator().manual_seed(1)
    start = torch.randn(OUTPUTS, INPUTS, generator=draws)
    layer = DeferredLayer(start.repeat(2, 1, 1), ROOM, BATCH, torch.float32)
    layer.begin(start)
    layer.at(0)
    gradient = torch.zeros(2, OUTPUTS, INPUTS)
    for _ in range(uses):
        inputs, steps = (torch.randn(2, BATCH, size, generator=draws) for size in (INPUTS, OUTPUTS))
        inputs.requires_grad_()
        (layer.product(inputs, torch.zeros(2, OUTPUTS)) * steps).sum().backward()
        gradient += steps.transpose(1, 2) @ inputs.detach()
    torch.testing.assert_close(layer.norms(2), gradient.flatten(1).norm(dim=1), rtol=1e-5, atol=1e-6)
    factors = torch.tensor([0.5, 1.0])
    layer.step(torch.full((2,), 0.1), factors)
    layer.flush(2)
    torch.testing.assert_close(layer.weights, start - 0.1 * factors[:, None, None] * gradient)
