"""1×1 convolutions with a stride, without the gradient kernel of oneDNN that writes outside of its memory.

On processors with AVX2 but not AVX-512, oneDNN 3.12 (torch 2.13) computes the weight gradient of such a layer with
``jit_1x1:avx2``. With fewer than 8 input channels and channels-last inputs this kernel ends the process with a
segmentation fault. A 1×1 convolution of stride s reads every s-th pixel alone, so it equals a convolution of stride 1
on those pixels, which another kernel computes.
"""

import torch
from torch import Tensor, nn

SAFE_CHANNELS = 8
"""The kernel takes so many input channels at a time; a multiple of them is computed right."""


class SubsampledConv2d(nn.Conv2d):
    """A 1×1 convolution with a stride that picks its pixels first."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of every s-th pixel."""
        down, right = self.stride
        pixels = input[..., ::down, ::right]
        return torch.conv2d(pixels, self.weight, self.bias, groups=self.groups)


def avoid_strided_kernel(module: nn.Module) -> nn.Module:
    """Let the 1×1 convolutions of a network that could meet the kernel pick their pixels themselves; in place."""
    for layer in module.modules():
        if type(layer) is not nn.Conv2d or layer.kernel_size != (1, 1) or layer.stride == (1, 1):
            continue
        if layer.padding in ((0, 0), "valid") and (layer.in_channels // layer.groups) % SAFE_CHANNELS:
            layer.__class__ = SubsampledConv2d
    return module
