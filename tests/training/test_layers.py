"""Layers of many networks at once against the torch layers of one, over random shapes, forwards and backwards."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fedgs.tasks.cnn import build_model
from fedgs.training.stacked_layers import convolution, dense, dropout, normalised, pool
from fedgs.training.stacked_networks import build_network

SMALL = st.integers(1, 4)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    draws = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=draws, dtype=torch.float64, requires_grad=True) for shape in shapes]


def assert_same_with_gradients(found: Tensor, expected: Tensor, *wanted: Tensor) -> None:
    torch.testing.assert_close(found, expected)
    back = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    mine = torch.autograd.grad((found * back).sum(), wanted, retain_graph=True)
    theirs = torch.autograd.grad((expected * back).sum(), wanted)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@examples(max_examples=30)
@given(SMALL, SMALL, SMALL, SMALL, st.sampled_from([1, 3, 5]), st.integers(5, 9), SMALL, st.integers(0, 2))
def test_convolution(
    devices: int, batch: int, inputs: int, outputs: int, kernel: int, side: int, stride: int, padding: int
) -> None:
    images, kernels, biases = tensors(
        (devices, batch, inputs, side, side + 1), (devices, outputs, inputs, kernel, kernel), (devices, outputs)
    )
    found = convolution(images, kernels, biases, stride=stride, padding=padding)
    each = [
        functional.conv2d(*own, stride=stride, padding=padding) for own in zip(images, kernels, biases, strict=True)
    ]
    assert_same_with_gradients(found, torch.stack(each), images, kernels, biases)


@examples(max_examples=20)
@given(SMALL, SMALL, st.integers(1, 9), st.integers(1, 9))
def test_dense(devices: int, batch: int, inputs: int, outputs: int) -> None:
    values, weights, biases = tensors((devices, batch, inputs), (devices, outputs, inputs), (devices, outputs))
    found = dense(values, weights, biases, torch.float64)
    each = [functional.linear(*own) for own in zip(values, weights, biases, strict=True)]
    assert_same_with_gradients(found, torch.stack(each), values, weights, biases)


@examples(max_examples=20)
@given(SMALL, SMALL, SMALL, st.integers(2, 9), st.integers(2, 9))
def test_pool(devices: int, batch: int, channels: int, height: int, width: int) -> None:
    (maps,) = tensors((devices, batch, channels, height, width))
    assert_same_with_gradients(pool(maps), torch.stack([functional.max_pool2d(own, 2) for own in maps]), maps)


def test_bytes_become_numbers_up_to_one_with_channels_first() -> None:
    images = torch.arange(2 * 3 * 4 * 5 * 2).remainder(256).to(torch.uint8).view(2, 3, 4, 5, 2)
    found = normalised(images)
    assert found.shape == (2, 3, 2, 4, 5)
    assert float(found[1, 2, 1, 3, 4]) == pytest.approx(int(images[1, 2, 3, 4, 1]) / 255)


@pytest.mark.parametrize("name", ["paper", "compact"])
@examples(max_examples=6)
@given(SMALL, SMALL, st.sampled_from([(8, 8), (9, 14), (12, 8, 3)]))
def test_stacked_networks_equal_the_modules(name: str, devices: int, batch: int, shape: tuple[int, ...]) -> None:
    network = build_network(name, 5, shape)
    models = [build_model(name, 5, shape, seed) for seed in range(devices)]
    each = [dict(model.named_parameters()) for model in models]
    stacked = {key: torch.stack([own[key].detach() for own in each]).requires_grad_() for key in each[0]}
    size = (devices, batch, *network.image_shape)
    images = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(batch))
    owners = torch.zeros(devices, batch, dtype=torch.int64)
    logits = network(stacked, images, owners)
    expected = torch.stack([model(own) for model, own in zip(models, normalised(images), strict=True)])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    # The sum of all losses has each device's own gradient in its own slice.
    stacks = torch.autograd.grad(logits.square().sum(), list(stacked.values()))
    for device, (model, own) in enumerate(zip(models, normalised(images), strict=True)):
        alone = torch.autograd.grad(model(own).square().sum(), list(model.parameters()))
        for mine, theirs in zip(stacks, alone, strict=True):
            torch.testing.assert_close(mine[device], theirs, rtol=1e-3, atol=1e-4)


def test_dropout_belongs_to_the_device_and_its_key() -> None:
    """Who is computed together with whom changes nothing; the share and the scale are right."""
    values, keys = torch.ones(3, 40, 50), torch.tensor([12, 99, 2**29])
    found = dropout(values, keys, 0.3)
    for device in range(3):
        assert torch.equal(dropout(values[device : device + 1], keys[device : device + 1], 0.3)[0], found[device])
    kept = found > 0
    assert torch.allclose(found[kept], torch.tensor(1 / 0.7))
    assert kept.float().mean((1, 2)).tolist() == pytest.approx([0.7] * 3, abs=0.04)
    # Two devices, and two steps of one, agree as often as chance has it: 0.7² + 0.3².
    assert float((kept[0] == kept[1]).float().mean()) == pytest.approx(0.58, abs=0.05)
    later = dropout(values[:1], keys[:1] + 16, 0.3)[0] > 0
    assert float((later == kept[0]).float().mean()) == pytest.approx(0.58, abs=0.05)
    # Neither whole rows nor whole columns go together.
    assert float(kept[0].float().mean(0).std()) < 0.15
    assert float(kept[0].float().mean(1).std()) < 0.15
