"""A strided 1×1 convolution with few input channels, as in a shortcut of a small ResNet, must not end the process."""

import copy

import pytest
import torch
from torch import nn

from fedgs.tasks.strided import SubsampledConv2d, avoid_strided_kernel


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_computes_what_it_did_before_and_its_gradients_too(groups: int, bias: bool) -> None:
    plain = nn.Conv2d(6, 4, 1, (2, 3), bias=bias, groups=groups)
    mended = avoid_strided_kernel(copy.deepcopy(plain))
    images = torch.rand(3, 6, 9, 10)  # in this memory format another kernel serves the plain layer
    torch.testing.assert_close(mended(images), plain(images))
    for layer in (plain, mended):
        layer(images).square().sum().backward()
    for expected, found in zip(plain.parameters(), mended.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    assert mended.state_dict().keys() == plain.state_dict().keys()


def test_channels_last_images_train() -> None:
    layer = avoid_strided_kernel(nn.Conv2d(4, 8, 1, 2, bias=False))
    images = torch.randint(0, 8, (4, 32, 32, 4)).float().permute(0, 3, 1, 2)  # whole numbers: every sum is exact
    for _ in range(60):
        layer(images).sum().backward()
    expected = images[..., ::2, ::2].sum((0, 2, 3)).expand(8, 4) * 60
    torch.testing.assert_close(layer.weight.grad[..., 0, 0], expected)


def test_other_layers_stay_as_they_are() -> None:
    layers = [nn.Conv2d(8, 4, 1, 2), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, 2), nn.Conv2d(4, 4, 1, 2, padding=1)]
    assert not any(isinstance(layer, SubsampledConv2d) for layer in avoid_strided_kernel(nn.Sequential(*layers)))
