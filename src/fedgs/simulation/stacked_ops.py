"""The pieces of :mod:`fedgs.simulation.stacked` in plain torch: oracle of the GPU kernels, and where there are none.

Shapes: M stations, B samples each, N = M·B; images (height, width) with one channel; c₁, c₂ channels of the two
convolutions; h₁ = height/2, h₂ = height/4 and so on. Images are uint8, features channels-last.

Rectifier and 2×2 pooling are one piece: the maximum of rectified values is the rectified maximum. What the way back
needs of it is one byte: which of the four places won (0 to 3), or 4 where the rectifier was shut.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

SHUT = 4


def first_layer(
    images: Tensor, kernels: Tensor, biases: Tensor, dtype: torch.dtype, tf32: bool
) -> tuple[Tensor, Tensor]:
    """Convolution 5×5, pooling and rectifier of (M, B, height, width) images; features (N, h₁, w₁, c₁) and places."""
    layers = [
        conv2d(own[:, None].to(kernels.dtype) / 255, kernel, padding=2)
        for own, kernel in zip(images, kernels, strict=True)
    ]
    features = torch.stack(layers).permute(0, 1, 3, 4, 2).flatten(0, 1)
    return rectified_pool(features, biases, dtype)


def rectified_pool(features: Tensor, biases: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pool (N, h, w, c) 2×2, add the stations' (M, c) biases, rectify; pooled features and winning places."""
    samples, height, width, channels = features.shape
    quarters = features.view(samples, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 5, 2, 4).flatten(4)
    best, place = quarters.max(dim=4)
    best = best + biases.repeat_interleave(samples // len(biases), 0)[:, None, None, :]
    open_ = best > 0
    return torch.where(open_, best, 0).to(dtype), torch.where(open_, place, SHUT).to(torch.uint8)


def spread(steps: Tensor, places: Tensor, biases: Tensor) -> Tensor:
    """Send (N, h, w, c) back through rectified pooling: (N, 2h, 2w, c), zero but where the winner stood.

    ``biases`` (M, c) is changed in place by the sum of what passed.
    """
    samples, height, width, channels = steps.shape
    passed = torch.where(places < SHUT, steps, 0)
    biases += passed.view(len(biases), -1, channels).sum(dim=1, dtype=biases.dtype)
    quarters = [torch.where(places == quarter, passed, 0) for quarter in range(4)]
    full = torch.stack(quarters, dim=-1).view(samples, height, width, channels, 2, 2)
    return full.permute(0, 1, 4, 2, 5, 3).reshape(samples, 2 * height, 2 * width, channels)


def first_layer_back(
    images: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, biases: Tensor, tf32: bool
) -> None:
    """Add to one station's kernels (c₁, 1, 5, 5) and biases (c₁,) what (B, h₁, w₁, c₁) sent back amounts to."""
    full = spread(steps, places, biases[None]).permute(0, 3, 1, 2)
    pixels = images[:, None].to(full.dtype) / 255
    padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
    height, width = images.shape[-2:]
    for row in range(5):
        for column in range(5):
            window = padded[:, :, row : row + height, column : column + width]
            kernels[:, 0, row, column] += (full * window).sum(dim=(0, 2, 3), dtype=kernels.dtype)
