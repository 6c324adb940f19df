"""Layers of many networks at once: every tensor has the device as its first dimension.

A layer takes inputs (D, B, …) and weights (D, …) and computes for each of the D devices with its own weights what the
torch layer of the same name computes for one. The sum of all devices' losses has each device's own gradient in its own
slice, so plain autograd trains D networks in one go. With D = 1 a layer is the torch layer itself.

Images are bytes (D, B, height, width, channels) and become numbers from 0 to 1 in the first layer.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from fedgs.training import stacked_ops
from fedgs.training.deferred import DeferredLayer


def convolution(inputs: Tensor, kernels: Tensor, biases: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Convolve (D, B, C, H, W) with (D, O, C, k, k) kernels: one grouped convolution, a group a device."""
    devices, batch = inputs.shape[:2]
    if devices == 1:
        return conv2d(inputs[0], kernels[0], biases[0], stride=stride, padding=padding)[None]
    grouped = inputs.transpose(0, 1).flatten(1, 2)
    outputs = conv2d(grouped, kernels.flatten(0, 1), biases.flatten(), stride=stride, padding=padding, groups=devices)
    return outputs.view(batch, devices, -1, *outputs.shape[2:]).transpose(0, 1)


def pool(inputs: Tensor) -> Tensor:
    """Take the maximum of every 2×2 window of (D, B, C, H, W)."""
    pooled = max_pool2d(inputs.flatten(0, 1), 2)
    return pooled.view(*inputs.shape[:2], *pooled.shape[1:])


def normalised(images: Tensor) -> Tensor:
    """Return bytes (D, B, H, W, C) as numbers from 0 to 1, (D, B, C, H, W)."""
    return images.permute(0, 1, 4, 2, 3).float() / 255


def dense(
    inputs: Tensor, weights: Tensor | DeferredLayer, biases: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return inputs · weightsᵀ + biases of (D, B, I) with (D, O, I), computed in ``dtype``."""
    if isinstance(weights, DeferredLayer):
        return weights.product(inputs.to(dtype), biases)
    apply: Any = _Dense.apply
    outputs: Tensor = apply(inputs.to(dtype), weights, biases)
    return outputs


class _Dense(torch.autograd.Function):
    """A batched product whose gradient lies in memory as the weights do, which the step's speed depends on."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        context.save_for_backward(inputs, weights)
        dtype = inputs.dtype
        return torch.baddbmm(biases[:, None].to(dtype), inputs, weights.to(dtype).transpose(1, 2))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weights = context.saved_tensors
        back = gradients[0]
        wanted = context.needs_input_grad
        return (
            torch.bmm(back, weights.to(back.dtype)) if wanted[0] else None,
            torch.bmm(back.transpose(1, 2), inputs).to(weights.dtype) if wanted[1] else None,
            back.sum(1, dtype=weights.dtype) if wanted[2] else None,
        )


def dropout(inputs: Tensor, keys: Tensor, rate: float) -> Tensor:
    """Zero each of (D, B, features) with probability ``rate`` and scale the others up.

    Which ones follows from the device's key and the place alone (a hash, not a generator), so that it does not matter
    who is computed together with whom.
    """
    places = torch.arange(inputs[0].numel(), device=inputs.device).view(1, *inputs.shape[1:])
    mixed = keys.view(-1, 1, 1) * 0x9E3779B1 + places * 0x85EBCA6B
    for multiplier in (0x2C1B3C6D, 0x297A2D39):  # a finaliser of 32-bit hashes
        mixed = (mixed ^ (mixed >> 15)) * multiplier & 0xFFFFFFFF
    keep = (mixed ^ (mixed >> 15)) >= int(rate * 2**32)
    return inputs * keep / (1 - rate)


def paper_maps(
    images: Tensor, weights: dict[str, Tensor], dtype: torch.dtype = torch.float32, tf32: bool = True
) -> Tensor:
    """Return the feature maps (D, B, 64, h/4, w/4) after both convolutions of the paper's CNN, pooled and rectified.

    On a GPU with Triton a layer is one kernel forward and two back (:mod:`fedgs.training.stacked_kernels`).
    """
    kernels1, biases1 = weights["conv1.weight"], weights["conv1.bias"]
    kernels2, biases2 = weights["conv2.weight"], weights["conv2.bias"]
    ops = kernels_for(images, rounded=tf32 or dtype != torch.float32)
    if ops is stacked_ops:
        hidden = torch.relu(pool(convolution(normalised(images), kernels1, biases1, padding=2)))
        return torch.relu(pool(convolution(hidden, kernels2, biases2, padding=2)))
    first_layer: Any = _FirstLayer.apply
    second_layer: Any = _SecondLayer.apply
    features: Tensor = first_layer(ops, images[..., 0], kernels1, biases1, dtype, tf32)
    maps: Tensor = second_layer(ops, features, kernels2, biases2, dtype, tf32)
    return maps.permute(0, 1, 4, 2, 3)


def kernels_for(images: Tensor, rounded: bool) -> ModuleType:
    """Return the Triton kernels where they can be used on these images, the plain pieces elsewhere."""
    height, width, channels = images.shape[-3:]
    fitting = channels == 1 and height % 4 == 0 and width % 4 == 0
    return (triton_kernels(images.device, rounded) if fitting else None) or stacked_ops


def triton_kernels(device: torch.device, rounded: bool = True) -> ModuleType | None:
    """Return the kernels of a GPU that has Triton; they are for products of ``rounded`` numbers (TF32, bfloat16).

    Full float32 has no tensor cores: the kernels would take minutes to compile and be slower than the library.
    """
    if device.type != "cuda" or not rounded:
        return None
    try:
        from fedgs.training import stacked_kernels
    except ImportError:
        return None
    return stacked_kernels


class _FirstLayer(torch.autograd.Function):
    """Convolution 1 with its pooling and rectifier; images have no gradient."""

    @staticmethod
    def forward(context: Any, ops: ModuleType, images: Tensor, kernels: Tensor, biases: Tensor,
                dtype: torch.dtype, tf32: bool) -> Tensor:  # fmt: skip
        features, places = ops.first_layer(images, kernels, biases, dtype, tf32)
        context.save_for_backward(images, kernels, places)
        context.ops, context.tf32 = ops, tf32
        result: Tensor = features.view(*images.shape[:2], *features.shape[1:])
        return result

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, kernels, places = context.saved_tensors
        into, biases = torch.zeros_like(kernels), kernels.new_zeros(kernels.shape[:2])
        context.ops.first_layer_back(images, gradients[0].flatten(0, 1), places, into, biases, context.tf32)
        return None, None, into, biases, None, None


class _SecondLayer(torch.autograd.Function):
    """Convolution 2 with its pooling and rectifier."""

    @staticmethod
    def forward(context: Any, ops: ModuleType, features: Tensor, kernels: Tensor, biases: Tensor,
                dtype: torch.dtype, tf32: bool) -> Tensor:  # fmt: skip
        pooled, places = ops.second_layer(features, kernels, biases, dtype, tf32)
        context.save_for_backward(features, kernels, places)
        context.ops, context.tf32 = ops, tf32
        result: Tensor = pooled.view(*features.shape[:2], *pooled.shape[1:])
        return result

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features, kernels, places = context.saved_tensors
        steps = gradients[0].flatten(0, 1).contiguous()
        into, biases = torch.zeros_like(kernels), kernels.new_zeros(kernels.shape[:2])
        context.ops.second_layer_back(features, steps, places, into, biases, context.tf32)
        back = None
        if context.needs_input_grad[1]:
            back = context.ops.second_layer_inputs(features, steps, places, kernels, context.tf32)
        return None, back, into, biases, None, None
