"""The pieces of :mod:`fedgs.models.stacked_ops` as Triton kernels, with the same names and meaning.

The first convolution has one input channel and 25 weights a filter: as a library call it costs more in memory traffic
of its 28×28×32 outputs than in arithmetic. Here a program gathers the 5×5 windows of an image (bytes, padded from 25 to
32 taps), multiplies them with the filters on the tensor cores for the four places of a pooling window one after the
other, and writes only the maximum. Bytes are exact in bfloat16 and TF32; the 1/255 is in the filters.

The second convolution is a sum over its 25 taps of products (positions × c₁) · (c₁ × c₂), for all stations in one
launch: a library has no convolution whose filters differ from one group of samples to the next. The way back reads the
pooled steps where the winner stood; the tensor before pooling never exists. Kernels lie in memory channels-last,
(c₂, 5, 5, c₁).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

POSITIONS = 64
IMAGES_A_PROGRAM = 4
PROGRAMS = 1000


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
    station = tl.program_id(1).to(tl.int64)
    total = tl.zeros((channels, 32), tl.float32)
    passed = tl.zeros((channels,), tl.float32)
    for number in range(many):
        known_sample = tl.program_id(0) * many + number < batch
        sample = station * batch + tl.minimum(tl.program_id(0) * many + number, batch - 1)
        for start in range(0, size, block):
            position = start + tl.arange(0, block)
            where = sample * size * channels + position[:, None] * channels + channel[None, :]
            known = (position[:, None] < size) & known_sample
            step = tl.load(steps + where, mask=known, other=0.0)
            place = tl.load(places + where, mask=known, other=4).to(tl.int32)
            passed += tl.sum(tl.where(place < 4, step, 0.0).to(tl.float32), axis=0)
            for quarter in tl.static_range(4):
                windows = _windows(images, sample, position, quarter, taps, height, width)
                own = tl.where(place == quarter, step, 0.0).to(element)
                total = tl.dot(tl.trans(own), windows.to(element), total, input_precision=precision)
    where = station * channels * 25 + channel[:, None] * 25 + taps[None, :]
    tl.atomic_add(kernels + where, total * (1.0 / 255.0), mask=taps[None, :] < 25)
    tl.atomic_add(biases + station * channels + channel, passed)


@triton.jit
def _taps(features, image, row, column, known, channel, height: tl.constexpr, width: tl.constexpr):
    inside = known & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    where = (image + row * width + column)[:, None] * channel.shape[0] + channel[None, :]
    return tl.load(features + where, mask=inside[:, None], other=0.0)


@triton.jit
def _won(steps, places, image, row, column, known, channel, height: tl.constexpr, width: tl.constexpr):
    inside = known & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    window = image // 4 + (row // 2) * (width // 2) + column // 2
    where = window[:, None] * channel.shape[0] + channel[None, :]
    place = tl.load(places + where, mask=inside[:, None], other=4).to(tl.int32)
    step = tl.load(steps + where, mask=inside[:, None], other=0.0)
    return tl.where(place == ((row % 2) * 2 + column % 2)[:, None], step, 0.0)


@triton.jit
def _second_layer(
    features, kernels, biases, pooled, places, batch,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, block: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    station = tl.program_id(1).to(tl.int64)
    size: tl.constexpr = (height // 2) * (width // 2)
    number = tl.program_id(0) * block + tl.arange(0, block)
    known = number < batch * size
    image = (station * batch + number // size) * (height * width)
    row, column = 2 * ((number % size) // (width // 2)), 2 * (number % (width // 2))
    channel, output = tl.arange(0, inputs), tl.arange(0, outputs)
    element = features.dtype.element_ty
    filters = kernels + station * outputs * 25 * inputs + output[None, :] * (25 * inputs) + channel[:, None]
    first = tl.zeros((block, outputs), tl.float32)
    second = tl.zeros((block, outputs), tl.float32)
    third = tl.zeros((block, outputs), tl.float32)
    fourth = tl.zeros((block, outputs), tl.float32)
    for tap in range(25):
        own = tl.load(filters + tap * inputs).to(element)
        up, left = row + tap // 5 - 2, column + tap % 5 - 2
        window = _taps(features, image, up, left, known, channel, height, width)
        first = tl.dot(window, own, first, input_precision=precision)
        window = _taps(features, image, up, left + 1, known, channel, height, width)
        second = tl.dot(window, own, second, input_precision=precision)
        window = _taps(features, image, up + 1, left, known, channel, height, width)
        third = tl.dot(window, own, third, input_precision=precision)
        window = _taps(features, image, up + 1, left + 1, known, channel, height, width)
        fourth = tl.dot(window, own, fourth, input_precision=precision)
    best = first
    place = tl.zeros((block, outputs), tl.int32)
    place = tl.where(second > best, 1, place)
    best = tl.maximum(best, second)
    place = tl.where(third > best, 2, place)
    best = tl.maximum(best, third)
    place = tl.where(fourth > best, 3, place)
    best = tl.maximum(best, fourth)
    best += tl.load(biases + station * outputs + output)[None, :]
    where = (station * batch * size + number)[:, None] * outputs + output[None, :]
    tl.store(pooled + where, tl.maximum(best, 0.0).to(element), mask=known[:, None])
    tl.store(places + where, tl.where(best > 0, place, 4).to(tl.uint8), mask=known[:, None])


@triton.jit
def _second_layer_inputs(
    steps, places, kernels, back, batch,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, block: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    station = tl.program_id(1).to(tl.int64)
    size: tl.constexpr = height * width
    number = tl.program_id(0) * block + tl.arange(0, block)
    known = number < batch * size
    image = (station * batch + number // size) * size
    row, column = (number % size) // width, number % width
    channel, output = tl.arange(0, inputs), tl.arange(0, outputs)
    element = steps.dtype.element_ty
    filters = kernels + station * outputs * 25 * inputs + output[:, None] * (25 * inputs) + channel[None, :]
    total = tl.zeros((block, inputs), tl.float32)
    for tap in range(25):
        own = tl.load(filters + tap * inputs).to(element)
        step = _won(steps, places, image, row - tap // 5 + 2, column - tap % 5 + 2, known, output, height, width)
        total = tl.dot(step, own, total, input_precision=precision)
    where = (station * batch * size + number)[:, None] * inputs + channel[None, :]
    tl.store(back + where, total.to(element), mask=known[:, None])


@triton.jit
def _second_layer_back(
    features, steps, places, kernels, batch,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, block: tl.constexpr,
    many: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    station = tl.program_id(2).to(tl.int64)
    up = tl.program_id(1) - 2
    size: tl.constexpr = height * width
    channel, output = tl.arange(0, inputs), tl.arange(0, outputs)
    first = tl.zeros((outputs, inputs), tl.float32)
    second = tl.zeros((outputs, inputs), tl.float32)
    third = tl.zeros((outputs, inputs), tl.float32)
    fourth = tl.zeros((outputs, inputs), tl.float32)
    fifth = tl.zeros((outputs, inputs), tl.float32)
    for piece in range(many):
        number = (tl.program_id(0) * many + piece) * block + tl.arange(0, block)
        known = number < batch * size
        image = (station * batch + number // size) * size
        row, column = (number % size) // width, number % width
        step = tl.trans(_won(steps, places, image, row, column, known, output, height, width))
        window = _taps(features, image, row + up, column - 2, known, channel, height, width)
        first = tl.dot(step, window, first, input_precision=precision)
        window = _taps(features, image, row + up, column - 1, known, channel, height, width)
        second = tl.dot(step, window, second, input_precision=precision)
        window = _taps(features, image, row + up, column, known, channel, height, width)
        third = tl.dot(step, window, third, input_precision=precision)
        window = _taps(features, image, row + up, column + 1, known, channel, height, width)
        fourth = tl.dot(step, window, fourth, input_precision=precision)
        window = _taps(features, image, row + up, column + 2, known, channel, height, width)
        fifth = tl.dot(step, window, fifth, input_precision=precision)
    into = kernels + station * outputs * 25 * inputs + output[:, None] * (25 * inputs) + channel[None, :]
    into += (up + 2) * 5 * inputs
    tl.atomic_add(into, first)
    tl.atomic_add(into + inputs, second)
    tl.atomic_add(into + 2 * inputs, third)
    tl.atomic_add(into + 3 * inputs, fourth)
    tl.atomic_add(into + 4 * inputs, fifth)


@triton.jit
def _step_down(weights, gradients, start, size, rate, pull, block: tl.constexpr):
    device = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0) * block + tl.arange(0, block)
    known = number < size
    where = device * size + number
    weight = tl.load(weights + where, mask=known)
    gradient = tl.load(gradients + where, mask=known).to(tl.float32)
    anchor = tl.load(start + number, mask=known)
    tl.store(weights + where, weight - rate * (gradient + pull * (weight - anchor)), mask=known)


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
    """Add to the kernels (M, c₁, 1, 5, 5) and biases (M, c₁) what (N, h₁, w₁, c₁) sent back amounts to."""
    stations, batch, height, width = images.shape
    _first_layer_back[(triton.cdiv(batch, IMAGES_A_PROGRAM), stations)](
        images.contiguous(), steps.contiguous(), places, kernels, biases, batch, height, width,
        steps.shape[-1], POSITIONS, IMAGES_A_PROGRAM,
        _precision(tf32),
    )  # fmt: skip


def second_layer(
    features: Tensor, kernels: Tensor, biases: Tensor, dtype: torch.dtype, tf32: bool
) -> tuple[Tensor, Tensor]:
    """Convolution 5×5, pooling and rectifier of (M, B, h₁, w₁, c₁); (N, h₂, w₂, c₂) and winning places."""
    stations, batch, height, width, inputs = features.shape
    outputs, size = kernels.shape[1], (height // 2) * (width // 2)
    pooled = torch.empty(stations * batch, height // 2, width // 2, outputs, device=features.device, dtype=dtype)
    places = torch.empty_like(pooled, dtype=torch.uint8)
    _second_layer[(triton.cdiv(batch * size, POSITIONS), stations)](
        features.contiguous(), channels_last(kernels), biases, pooled, places, batch,
        height, width, inputs, outputs, POSITIONS, _precision(tf32), num_warps=8,
    )  # fmt: skip
    return pooled, places


def second_layer_inputs(features: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, tf32: bool) -> Tensor:
    """Send (N, h₂, w₂, c₂) back through pooling and convolution to the features, (M, B, h₁, w₁, c₁)."""
    stations, batch, height, width, inputs = features.shape
    back = torch.empty_like(features, memory_format=torch.contiguous_format)
    _second_layer_inputs[(triton.cdiv(batch * height * width, 2 * POSITIONS), stations)](
        steps.contiguous(), places, channels_last(kernels), back, batch,
        height, width, inputs, steps.shape[-1], 2 * POSITIONS, _precision(tf32), num_warps=8,
    )  # fmt: skip
    return back


def second_layer_back(
    features: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, biases: Tensor, tf32: bool
) -> None:
    """Add to the kernels (M, c₂, c₁, 5, 5) and biases (M, c₂) what (N, h₂, w₂, c₂) sent back amounts to."""
    stations, batch, height, width, inputs = features.shape
    pieces = triton.cdiv(batch * height * width, POSITIONS)
    # Enough programs to fill a GPU, each with enough work that adding up at the end does not matter.
    many = triton.next_power_of_2(max(1, min(pieces, pieces * stations * 5 // PROGRAMS)))
    _second_layer_back[(triton.cdiv(pieces, many), 5, stations)](
        features.contiguous(), steps.contiguous(), places, channels_last(kernels), batch,
        height, width, inputs, steps.shape[-1], POSITIONS, many, _precision(tf32), num_warps=8,
    )  # fmt: skip
    passed = torch.where(places < 4, steps, 0).view(stations, -1, steps.shape[-1])
    biases += passed.sum(1, dtype=biases.dtype)


def step_down(weights: Tensor, gradients: Tensor, start: Tensor, rate: float, pull: float) -> None:
    """Make one step, w ← w − η (g + μ (w − start)), in one pass over (D, …); ``start`` is the same for all."""
    size = start.numel()
    _step_down[(triton.cdiv(size, 1024), len(weights))](weights, gradients, start, size, rate, pull, 1024)


def channels_last(kernels: Tensor) -> Tensor:
    """Refuse kernels that do not lie in memory as these programs read and write them."""
    if not kernels.permute(0, 1, 3, 4, 2).is_contiguous():
        raise ValueError("kernels must lie channels-last in memory, as Layout.stacked makes them")
    return kernels


def _precision(tf32: bool) -> Any:
    return "tf32" if tf32 else "ieee"
