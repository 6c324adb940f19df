"""The pieces of :mod:`fedgs.training.stacked_ops` as Triton kernels, with the same names and meaning.

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
    where = (image * (height * width) + row * width + column) * channel.shape[0]
    return tl.load(features + (where[:, None] + channel[None, :]), mask=inside[:, None], other=0.0)


@triton.jit
def _second_layer(
    features, kernels, biases, pooled, places, batch,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, block: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    station = tl.program_id(1).to(tl.int64)
    size: tl.constexpr = (height // 2) * (width // 2)
    # Pointers go to the station once; what is counted from there fits into 32 bits.
    features += station * batch * (height * width * inputs)
    kernels += station * (outputs * 25 * inputs)
    pooled += station * batch * (size * outputs)
    places += station * batch * (size * outputs)
    number = tl.program_id(0) * block + tl.arange(0, block)
    known = number < batch * size
    image = number // size
    row, column = 2 * ((number % size) // (width // 2)), 2 * (number % (width // 2))
    channel, output = tl.arange(0, inputs), tl.arange(0, outputs)
    element = features.dtype.element_ty
    filters = kernels + (output[None, :] * (25 * inputs) + channel[:, None])
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
    where = (number * outputs)[:, None] + output[None, :]
    tl.store(pooled + where, tl.maximum(best, 0.0).to(element), mask=known[:, None])
    tl.store(places + where, tl.where(best > 0, place, 4).to(tl.uint8), mask=known[:, None])


@triton.jit
def _filter(filters, row, column: tl.constexpr, inputs: tl.constexpr, element: tl.constexpr):
    # A row beyond the filter is asked for now and then, and is all zeros.
    return tl.load(filters + (row * 5 + column) * inputs, mask=(row >= 0) & (row < 5), other=0.0).to(element)


@triton.jit
def _second_layer_inputs(
    steps, places, kernels, back, batch,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, block: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    # A program makes the four inputs under each of its pooling windows. What reaches them comes from the 3×3 windows
    # around, read once each; the winner's place in a window and the input's place decide which tap connects them.
    station = tl.program_id(1).to(tl.int64)
    size: tl.constexpr = (height // 2) * (width // 2)
    steps += station * batch * (size * outputs)
    places += station * batch * (size * outputs)
    kernels += station * (outputs * 25 * inputs)
    back += station * batch * (4 * size * inputs)
    number = tl.program_id(0) * block + tl.arange(0, block)
    known = number < batch * size
    image = number // size
    row, column = (number % size) // (width // 2), number % (width // 2)
    channel, output = tl.arange(0, inputs), tl.arange(0, outputs)
    element = steps.dtype.element_ty
    filters = kernels + (output[:, None] * (25 * inputs) + channel[None, :])
    first = tl.zeros((block, inputs), tl.float32)
    second = tl.zeros((block, inputs), tl.float32)
    third = tl.zeros((block, inputs), tl.float32)
    fourth = tl.zeros((block, inputs), tl.float32)
    for down in range(-1, 2):
        for right in tl.static_range(-1, 2):
            there_row, there_column = row + down, column + right
            inside = known & (there_row >= 0) & (there_row < height // 2)
            inside = inside & (there_column >= 0) & (there_column < width // 2)
            where = ((image * size + there_row * (width // 2) + there_column) * outputs)[:, None] + output[None, :]
            place = tl.load(places + where, mask=inside[:, None], other=4).to(tl.int32)
            step = tl.load(steps + where, mask=inside[:, None], other=0.0)
            for quarter in tl.static_range(4):
                own = tl.where(place == quarter, step, 0.0)
                up = 2 - 2 * down - quarter // 2
                # Conditions are written out: only such are decided when the kernel is compiled.
                if 2 - 2 * right - quarter % 2 >= 0 and 2 - 2 * right - quarter % 2 < 5:
                    taps = _filter(filters, up, 2 - 2 * right - quarter % 2, inputs, element)
                    first = tl.dot(own, taps, first, input_precision=precision)
                    taps = _filter(filters, up + 1, 2 - 2 * right - quarter % 2, inputs, element)
                    third = tl.dot(own, taps, third, input_precision=precision)
                if 3 - 2 * right - quarter % 2 >= 0 and 3 - 2 * right - quarter % 2 < 5:
                    taps = _filter(filters, up, 3 - 2 * right - quarter % 2, inputs, element)
                    second = tl.dot(own, taps, second, input_precision=precision)
                    taps = _filter(filters, up + 1, 3 - 2 * right - quarter % 2, inputs, element)
                    fourth = tl.dot(own, taps, fourth, input_precision=precision)
    where = (((image * height + 2 * row) * width + 2 * column) * inputs)[:, None] + channel[None, :]
    tl.store(back + where, first.to(element), mask=known[:, None])
    tl.store(back + where + inputs, second.to(element), mask=known[:, None])
    tl.store(back + where + width * inputs, third.to(element), mask=known[:, None])
    tl.store(back + where + (width + 1) * inputs, fourth.to(element), mask=known[:, None])


@triton.jit
def _second_layer_back(
    features, steps, places, kernels, batch,
    height: tl.constexpr, width: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr, block: tl.constexpr,
    many: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    # A program makes one row of taps. A pooling window's step is read once; it counts where the winner stood, and the
    # inputs two to the left up to three to the right are read once for both columns of the window.
    station = tl.program_id(2).to(tl.int64)
    size: tl.constexpr = (height // 2) * (width // 2)
    features += station * batch * (4 * size * inputs)
    steps += station * batch * (size * outputs)
    places += station * batch * (size * outputs)
    up = tl.program_id(1) - 2
    channel, output = tl.arange(0, inputs), tl.arange(0, outputs)
    first = tl.zeros((outputs, inputs), tl.float32)
    second = tl.zeros((outputs, inputs), tl.float32)
    third = tl.zeros((outputs, inputs), tl.float32)
    fourth = tl.zeros((outputs, inputs), tl.float32)
    fifth = tl.zeros((outputs, inputs), tl.float32)
    for piece in range(many):
        number = (tl.program_id(0) * many + piece) * block + tl.arange(0, block)
        known = number < batch * size
        image = number // size
        row, column = 2 * ((number % size) // (width // 2)) + up, 2 * (number % (width // 2))
        where = (number * outputs)[:, None] + output[None, :]
        place = tl.load(places + where, mask=known[:, None], other=4).to(tl.int32)
        step = tl.load(steps + where, mask=known[:, None], other=0.0)
        for down in tl.static_range(2):
            left = tl.trans(tl.where(place == 2 * down, step, 0.0))
            right = tl.trans(tl.where(place == 2 * down + 1, step, 0.0))
            window = _taps(features, image, row + down, column - 2, known, channel, height, width)
            first = tl.dot(left, window, first, input_precision=precision)
            window = _taps(features, image, row + down, column - 1, known, channel, height, width)
            second = tl.dot(left, window, second, input_precision=precision)
            first = tl.dot(right, window, first, input_precision=precision)
            window = _taps(features, image, row + down, column, known, channel, height, width)
            third = tl.dot(left, window, third, input_precision=precision)
            second = tl.dot(right, window, second, input_precision=precision)
            window = _taps(features, image, row + down, column + 1, known, channel, height, width)
            fourth = tl.dot(left, window, fourth, input_precision=precision)
            third = tl.dot(right, window, third, input_precision=precision)
            window = _taps(features, image, row + down, column + 2, known, channel, height, width)
            fifth = tl.dot(left, window, fifth, input_precision=precision)
            fourth = tl.dot(right, window, fourth, input_precision=precision)
            window = _taps(features, image, row + down, column + 3, known, channel, height, width)
            fifth = tl.dot(right, window, fifth, input_precision=precision)
    into = kernels + station * (outputs * 25 * inputs) + (output[:, None] * (25 * inputs) + channel[None, :])
    into += (up + 2) * 5 * inputs
    tl.atomic_add(into, first)
    tl.atomic_add(into + inputs, second)
    tl.atomic_add(into + 2 * inputs, third)
    tl.atomic_add(into + 3 * inputs, fourth)
    tl.atomic_add(into + 4 * inputs, fifth)


@triton.jit
def _step_down(weights, gradients, start, rates, size, pull, pulled: tl.constexpr, block: tl.constexpr):
    device = tl.program_id(0)  # devices run fastest, so that all read the same piece of the start from the cache
    number = tl.program_id(1) * block + tl.arange(0, block)
    known = number < size
    weights += device.to(tl.int64) * size
    gradients += device.to(tl.int64) * size
    weight = tl.load(weights + number, mask=known)
    step = tl.load(gradients + number, mask=known).to(tl.float32)
    if pulled:
        step += pull * (weight - tl.load(start + number, mask=known))
    tl.store(weights + number, weight - tl.load(rates + device) * step, mask=known)


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
        height, width, inputs, outputs, POSITIONS, _precision(tf32), num_warps=4,
    )  # fmt: skip
    return pooled, places


def second_layer_inputs(features: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, tf32: bool) -> Tensor:
    """Send (N, h₂, w₂, c₂) back through pooling and convolution to the features, (M, B, h₁, w₁, c₁)."""
    stations, batch, height, width, inputs = features.shape
    back = torch.empty_like(features, memory_format=torch.contiguous_format)
    _second_layer_inputs[(triton.cdiv(batch * (height // 2) * (width // 2), POSITIONS), stations)](
        steps.contiguous(), places, channels_last(kernels), back, batch,
        height, width, inputs, steps.shape[-1], POSITIONS, _precision(tf32), num_warps=4, num_stages=1,
    )  # fmt: skip
    return back


def second_layer_back(
    features: Tensor, steps: Tensor, places: Tensor, kernels: Tensor, biases: Tensor, tf32: bool
) -> None:
    """Add to the kernels (M, c₂, c₁, 5, 5) and biases (M, c₂) what (N, h₂, w₂, c₂) sent back amounts to."""
    stations, batch, height, width, inputs = features.shape
    pieces = triton.cdiv(batch * (height // 2) * (width // 2), POSITIONS)
    # Enough programs to fill a GPU, each with enough work that adding up at the end does not matter.
    many = triton.next_power_of_2(max(1, min(pieces, pieces * stations * 5 // PROGRAMS)))
    _second_layer_back[(triton.cdiv(pieces, many), 5, stations)](
        features.contiguous(), steps.contiguous(), places, channels_last(kernels), batch,
        height, width, inputs, steps.shape[-1], POSITIONS, many, _precision(tf32), num_warps=4,
        num_stages=1 if features.dtype == torch.float32 else 2,
    )  # fmt: skip
    passed = torch.where(places < 4, steps, 0).view(stations, -1, steps.shape[-1])
    biases += passed.sum(1, dtype=biases.dtype)


def step_down(weights: Tensor, gradients: Tensor, start: Tensor, rates: Tensor, pull: float) -> None:
    """Make one step, w ← w − η (g + μ (w − start)), in one pass over (D, …); ``start`` is the same for all."""
    size = start.numel()
    block = min(1024, triton.next_power_of_2(size))
    _step_down[(len(weights), triton.cdiv(size, block))](weights, gradients, start, rates, size, pull, pull != 0, block)


def channels_last(kernels: Tensor) -> Tensor:
    """Refuse kernels that do not lie in memory as these programs read and write them."""
    if not kernels.permute(0, 1, 3, 4, 2).is_contiguous():
        raise ValueError("kernels must lie channels-last in memory, as Layout.stacked makes them")
    return kernels


def _precision(tf32: bool) -> Any:
    return "tf32" if tf32 else "ieee"
