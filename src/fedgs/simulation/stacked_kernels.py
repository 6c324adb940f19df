"""The pieces of :mod:`fedgs.simulation.stacked_ops` as Triton kernels, with the same names and meaning.

The first convolution has one input channel and 25 weights a filter: as a library call it costs more in memory traffic
of its 28×28×32 outputs than in arithmetic. Here a program gathers the 5×5 windows of an image (bytes, padded from 25 to
32 taps), multiplies them with the filters on the tensor cores for the four places of a pooling window one after the
other, and writes only the maximum. Bytes are exact in bfloat16 and TF32; the 1/255 is in the filters.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

POSITIONS = 64
IMAGES_A_PROGRAM = 4


@triton.jit
def _windows(images, sample, position, quarter, taps, height: tl.constexpr, width: tl.constexpr):
    row = 2 * (position // (width // 2))[:, None] + quarter // 2 + taps[None, :] // 5 - 2
    column = 2 * (position % (width // 2))[:, None] + quarter % 2 + taps[None, :] % 5 - 2
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (taps[None, :] < 25)
    inside = inside & (position[:, None] < (height // 2) * (width // 2))
    return tl.load(images + sample * height * width + row * width + column, mask=inside, other=0)


@triton.jit
def _first_layer(
    images, kernels, biases, features, places, batch,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    station = sample // batch
    position = tl.program_id(1) * block + tl.arange(0, block)
    channel, taps = tl.arange(0, channels), tl.arange(0, 32)
    element = features.dtype.element_ty
    filters = tl.load(
        kernels + station * channels * 25 + channel[None, :] * 25 + taps[:, None], mask=taps[:, None] < 25, other=0.0
    )
    filters = (filters * (1.0 / 255.0)).to(element)
    best = tl.full((block, channels), -float("inf"), tl.float32)
    place = tl.zeros((block, channels), tl.int32)
    for quarter in tl.static_range(4):
        windows = _windows(images, sample, position, quarter, taps, height, width).to(element)
        value = tl.dot(windows, filters, input_precision=precision)
        place = tl.where(value > best, quarter, place)
        best = tl.maximum(value, best)
    best += tl.load(biases + station * channels + channel)[None, :]
    size: tl.constexpr = (height // 2) * (width // 2)
    where = sample * size * channels + position[:, None] * channels + channel[None, :]
    tl.store(features + where, tl.maximum(best, 0.0).to(element), mask=position[:, None] < size)
    tl.store(places + where, tl.where(best > 0, place, 4).to(tl.uint8), mask=position[:, None] < size)


@triton.jit
def _first_layer_back(
    images, steps, places, kernels, biases, batch,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, many: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    channel, taps = tl.arange(0, channels), tl.arange(0, 32)
    element = steps.dtype.element_ty
    size: tl.constexpr = (height // 2) * (width // 2)
    total = tl.zeros((channels, 32), tl.float32)
    passed = tl.zeros((channels,), tl.float32)
    for number in range(many):
        sample = (tl.program_id(0) * many + number).to(tl.int64)
        for start in range(0, size, block):
            position = start + tl.arange(0, block)
            where = sample * size * channels + position[:, None] * channels + channel[None, :]
            known = (position[:, None] < size) & (sample < batch)
            step = tl.load(steps + where, mask=known, other=0.0)
            place = tl.load(places + where, mask=known, other=4).to(tl.int32)
            passed += tl.sum(tl.where(place < 4, step, 0.0).to(tl.float32), axis=0)
            for quarter in tl.static_range(4):
                windows = _windows(images, tl.minimum(sample, batch - 1), position, quarter, taps, height, width)
                own = tl.where(place == quarter, step, 0.0).to(element)
                total = tl.dot(tl.trans(own), windows.to(element), total, input_precision=precision)
    where = channel[:, None] * 25 + taps[None, :]
    tl.atomic_add(kernels + where, total * (1.0 / 255.0), mask=taps[None, :] < 25)
    tl.atomic_add(biases + channel, passed)


@triton.jit
def _rectified_pool(
    features, biases, pooled, places, batch,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    position, channel = tl.arange(0, block), tl.arange(0, channels)
    size: tl.constexpr = (height // 2) * (width // 2)
    known = position[:, None] < size
    best = tl.full((block, channels), -float("inf"), tl.float32)
    place = tl.zeros((block, channels), tl.int32)
    for quarter in tl.static_range(4):
        at = (2 * (position // (width // 2)) + quarter // 2) * width + 2 * (position % (width // 2)) + quarter % 2
        where = sample * height * width * channels + at[:, None] * channels + channel[None, :]
        value = tl.load(features + where, mask=known, other=0.0).to(tl.float32)
        place = tl.where(value > best, quarter, place)
        best = tl.maximum(value, best)
    best += tl.load(biases + (sample // batch) * channels + channel)[None, :]
    where = sample * size * channels + position[:, None] * channels + channel[None, :]
    tl.store(pooled + where, tl.maximum(best, 0.0).to(pooled.dtype.element_ty), mask=known)
    tl.store(places + where, tl.where(best > 0, place, 4).to(tl.uint8), mask=known)


@triton.jit
def _spread(
    steps, places, full, biases, batch,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    position, channel = tl.arange(0, block), tl.arange(0, channels)
    known = position[:, None] < height * width
    where = sample * height * width * channels + position[:, None] * channels + channel[None, :]
    step = tl.load(steps + where, mask=known, other=0.0)
    place = tl.load(places + where, mask=known, other=4).to(tl.int32)
    for quarter in tl.static_range(4):
        at = (2 * (position // width) + quarter // 2) * 2 * width + 2 * (position % width) + quarter % 2
        target = full + sample * 4 * height * width * channels + at[:, None] * channels + channel[None, :]
        tl.store(target, tl.where(place == quarter, step, 0.0).to(full.dtype.element_ty), mask=known)
    passed = tl.sum(tl.where(place < 4, step, 0.0).to(tl.float32), axis=0)
    tl.atomic_add(biases + (sample // batch) * channels + channel, passed)


def first_layer(
    images: Tensor, kernels: Tensor, biases: Tensor, dtype: torch.dtype, tf32: bool
) -> tuple[Tensor, Tensor]:
    """Convolution 5×5, pooling and rectifier of (M, B, height, width) images; features (N, h₁, w₁, c₁) and places."""
    stations, batch, height, width = images.shape
    channels, size = kernels.shape[1], (height // 2) * (width // 2)
    features = torch.empty(stations * batch, height // 2, width // 2, channels, device=images.device, dtype=dtype)
    places = torch.empty_like(features, dtype=torch.uint8)
    _first_layer[(stations * batch, triton.cdiv(size, POSITIONS))](
        images, kernels, biases, features, places, batch, height, width, channels, POSITIONS, _precision(tf32)
    )
    return features, places


def first_layer_back(
    images: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, biases: Tensor, tf32: bool
) -> None:
    """Add to one station's kernels (c₁, 1, 5, 5) and biases (c₁,) what (B, h₁, w₁, c₁) sent back amounts to."""
    batch, height, width = images.shape
    _first_layer_back[(triton.cdiv(batch, IMAGES_A_PROGRAM),)](
        images.contiguous(), steps.contiguous(), places.contiguous(), kernels, biases, batch, height, width,
        steps.shape[-1], POSITIONS, IMAGES_A_PROGRAM,
        _precision(tf32),
    )  # fmt: skip


def rectified_pool(features: Tensor, biases: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pool (N, h, w, c) 2×2, add the stations' (M, c) biases, rectify; pooled features and winning places."""
    features = features.contiguous()
    samples, height, width, channels = features.shape
    pooled = torch.empty(samples, height // 2, width // 2, channels, device=features.device, dtype=dtype)
    places = torch.empty_like(pooled, dtype=torch.uint8)
    block = triton.next_power_of_2((height // 2) * (width // 2))
    batch = samples // len(biases)
    _rectified_pool[(samples,)](features, biases, pooled, places, batch, height, width, channels, block)
    return pooled, places


def spread(steps: Tensor, places: Tensor, biases: Tensor) -> Tensor:
    """Send (N, h, w, c) back through rectified pooling: (N, 2h, 2w, c); ``biases`` (M, c) gains what passed."""
    steps = steps.contiguous()
    samples, height, width, channels = steps.shape
    full = torch.empty(samples, 2 * height, 2 * width, channels, device=steps.device, dtype=steps.dtype)
    block = triton.next_power_of_2(height * width)
    _spread[(samples,)](steps, places, full, biases, samples // len(biases), height, width, channels, block)
    return full


def _precision(tf32: bool) -> Any:
    return "tf32" if tf32 else "ieee"
