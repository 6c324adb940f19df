"""The pieces of the paper's CNN for many stations at once, in plain torch: the oracle of the GPU kernels.

Shapes: M stations, B samples each, N = M·B; images (height, width) with one channel; c₁, c₂ channels of the two
convolutions; h₁ = height/2, h₂ = height/4 and so on. Images are uint8, features channels-last.

Rectifier and 2×2 pooling are one piece: the maximum of rectified values is the rectified maximum. What the way back
needs of it is one byte: which of the four places won (0 to 3), or 4 where the rectifier was shut.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

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


def spread(steps: Tensor, places: Tensor) -> Tensor:
    """Send (N, h, w, c) back through rectified pooling: (N, 2h, 2w, c), zero but where the winner stood."""
    samples, height, width, channels = steps.shape
    quarters = [torch.where(places == quarter, steps, 0) for quarter in range(4)]
    full = torch.stack(quarters, dim=-1).view(samples, height, width, channels, 2, 2)
    return full.permute(0, 1, 4, 2, 5, 3).reshape(samples, 2 * height, 2 * width, channels)


def first_layer_back(
    images: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, biases: Tensor, tf32: bool
) -> None:
    """Add to the kernels (M, c₁, 1, 5, 5) and biases (M, c₁) what (N, h₁, w₁, c₁) sent back amounts to."""
    pixels = images[..., None].to(steps.dtype) / 255
    second_layer_back(pixels, steps, places, kernels, biases, tf32)


def second_layer(
    features: Tensor, kernels: Tensor, biases: Tensor, dtype: torch.dtype, tf32: bool
) -> tuple[Tensor, Tensor]:
    """Convolution 5×5, pooling and rectifier of (M, B, h₁, w₁, c₁); (N, h₂, w₂, c₂) and winning places."""
    layers = [
        conv2d(own.permute(0, 3, 1, 2), kernel.to(own.dtype), padding=2)
        for own, kernel in zip(features, kernels, strict=True)
    ]
    return rectified_pool(torch.cat(layers).permute(0, 2, 3, 1), biases, dtype)


def second_layer_inputs(features: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, tf32: bool) -> Tensor:
    """Send (N, h₂, w₂, c₂) back through pooling and convolution to the features, (M, B, h₁, w₁, c₁)."""
    back = _by_station(spread(steps, places), features)
    layers = [conv_transpose2d(own, kernel.to(own.dtype), padding=2) for own, kernel in zip(back, kernels, strict=True)]
    return torch.stack(layers).permute(0, 1, 3, 4, 2)


def second_layer_back(
    features: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, biases: Tensor, tf32: bool
) -> None:
    """Add to the kernels (M, c₂, c₁, 5, 5) and biases (M, c₂) what (N, h₂, w₂, c₂) sent back amounts to."""
    full = _by_station(spread(steps, places), features)
    for station, back in enumerate(full):
        own = features[station].permute(0, 3, 1, 2)
        _, found, _ = torch.ops.aten.convolution_backward(
            back, own, kernels[station].to(own.dtype), None, [1, 1], [2, 2], [1, 1], False, [0, 0], 1,
            [False, True, False],
        )  # fmt: skip
        kernels[station] += found
        biases[station] += back.sum((0, 2, 3), dtype=biases.dtype)


def _by_station(full: Tensor, features: Tensor) -> Tensor:
    return full.view(*features.shape[:2], *full.shape[1:]).permute(0, 1, 4, 2, 3)


def step_down(weights: Tensor, gradients: Tensor, start: Tensor, rates: Tensor, pull: float) -> None:
    """Make one step, w ← w − η (g + μ (w − start)), on (D, …) with a rate a device; ``start`` is the same for all."""
    if pull:
        gradients = gradients.add(weights - start, alpha=pull)
    weights.addcmul_(gradients, rates.view(-1, *[1] * (weights.ndim - 1)), value=-1)
