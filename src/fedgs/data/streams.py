"""Device streams: what every device will train on next, known before it is selected and gone once used.

The paper's devices hold a FIFO stream. Before each iteration a device reports the class counts of its next
mini-batch of exactly n samples; the selected devices train on theirs, once (Algorithm 1, client selection).

Finite data become an endless sequence of samples per device: its train samples in a random order, then in another
one, and so on, cut every n samples. So no sample comes twice within an epoch, the remainder of an epoch opens the
next batch (the released code's way), and a device with fewer than n samples gives batches that span
epochs. Sample number p of device k is a function of (seed, name of k, p): whatever the other devices do, and
however often a run is resumed, the sequence is the same. The modes differ only in how the read position moves:

============  =============================================================================================
``sticky``    a selected device moves on by n; the others keep their batch until they are selected (default)
``fresh``     every device moves on by n at each iteration; batches that were not selected are lost
``buffer``    a device keeps the last ``capacity`` samples; ``arrival`` new ones come in at each iteration and
              push the oldest out when the buffer is full; a selected device uses its oldest n. Buffers start full.
              With ``arrival`` below n a buffer can run short: then ``ready`` is False and the counts are 0
============  =============================================================================================

``drift`` changes the sequence itself (:mod:`fedgs.data.drift`) and goes with every mode.

How it is fast: the order of the next few epochs of all devices lies in one flat array; moving on is one gather of
(devices, n) indices and one ``bincount``. The state to save is one read position a device.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import is_whole
from fedgs.data.drift import Drift
from fedgs.data.federation import Federation
from fedgs.errors import ConfigError, DataError
from fedgs.rng import stream

Mode = Literal["sticky", "fresh", "buffer"]
MODES: tuple[str, ...] = get_args(Mode)
EPOCHS_PER_BLOCK = 8
"""Epochs drawn from one random stream: making a stream costs as much as shuffling a few epochs."""


class DeviceStreams:
    """The streams of all devices of a federation, advanced together."""

    def __init__(
        self,
        federation: Federation,
        batch_size: int = 32,
        seed: int = 0,
        mode: str = "sticky",
        *,
        capacity: int | None = None,
        arrival: float | None = None,
        drift: Drift | None = None,
    ) -> None:
        """``capacity`` (default 4 batches) and ``arrival`` (default one batch), in samples, belong to ``buffer``."""
        if mode not in MODES:
            raise ConfigError(f"no stream mode {mode!r}; choose one of {', '.join(MODES)}")
        if not is_whole(batch_size) or batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size!r}; it must be a whole number of at least 1")
        if mode != "buffer" and (capacity is not None or arrival is not None):
            raise ConfigError(f"capacity and arrival belong to stream mode 'buffer', not to {mode!r}")
        self.federation, self.batch_size, self.seed, self.mode, self.drift = federation, batch_size, seed, mode, drift
        self.capacity = 4 * batch_size if capacity is None else capacity
        if not is_whole(self.capacity):
            raise ConfigError(f"capacity is {capacity!r}; it must be a whole number of samples")
        self.arrival = float(batch_size if arrival is None else arrival)
        if not isfinite(self.arrival):
            raise ConfigError(f"arrival is {arrival}; it must be a finite number of samples")
        # The fraction that was meant: as floats, 100 times 0.29 is less than 29.
        self._rate = Fraction(self.arrival).limit_denominator(10**9)
        if self.capacity < batch_size or not self._rate > 0:
            raise ConfigError(
                f"a buffer of {self.capacity} samples with {self.arrival:g} arriving each iteration cannot serve "
                f"batches of {batch_size}"
            )
        self._sizes = federation.train.sizes
        if not self._sizes.all():
            device = federation.device_names[int(np.argmin(self._sizes))]
            raise DataError(f"{federation.name}: device {device!r} has no train sample, so it has no stream")
        self.iteration = 0
        devices, classes = len(federation), len(federation.classes)
        self._position = np.zeros(devices, np.int64)
        self._used = np.zeros(devices, np.int64)
        self._ready = np.ones(devices, bool)
        self._next = np.zeros((devices, batch_size), np.int64)
        self._counts = np.zeros((devices, classes), np.int64)
        # The window of device k holds samples [start, end) of its sequence, from window[base] on.
        self._block = EPOCHS_PER_BLOCK * self._sizes
        room = batch_size + self._block * -(-batch_size // self._block)
        self._base = np.concatenate([[0], np.cumsum(room)[:-1]])
        self._window = np.zeros(int(room.sum()), np.int32)
        self._start = np.zeros(devices, np.int64)
        self._end = np.zeros(devices, np.int64)
        self._span = np.arange(batch_size)
        self._all = np.arange(devices)
        self._drifts = None if drift is None else _DriftTable(federation, drift, seed, batch_size)
        self._look(self._all)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(devices, classes) class counts of the next batches: a read-only view, valid until ``advance``."""
        view = self._counts.view()
        view.flags.writeable = False
        return view

    @property
    def ready(self) -> NDArray[np.bool_]:
        """(devices,) whether a device has a whole batch to offer; always, except in mode ``buffer``."""
        return self._ready.copy()

    @property
    def samples_used(self) -> NDArray[np.int64]:
        """(devices,) samples handed out to training."""
        return self._used.copy()

    @property
    def samples_lost(self) -> NDArray[np.int64]:
        """(devices,) samples that passed unused."""
        return self._position - self._used

    @property
    def unused(self) -> NDArray[np.int64]:
        """(devices,) samples on hand that no turn has used: the rest of a device's epoch (``sticky``), what its buffer
        holds (``buffer``), or the one batch that is passing by (``fresh``)."""
        if self.mode == "sticky":
            return self._sizes - self._position % self._sizes
        if self.mode == "buffer":
            return self._arrived() - self._position
        return np.full(len(self._all), self.batch_size)

    @property
    def epochs(self) -> NDArray[np.int64]:
        """(devices,) times a device's whole train set has left its stream."""
        return self._position // self._sizes

    def next_indices(self, devices: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the sample indices (len(devices), n) of the next batches, of all devices by default.

        Each must be ``ready``: what has not arrived yet is not shown.
        """
        return self._next[self._check(self._all if devices is None else devices)]

    def advance(self, selected: Sequence[int] | NDArray[np.int64]) -> None:
        """End an iteration in which ``selected`` trained on their next batches."""
        chosen = self._check(selected)
        if len(np.unique(chosen)) != len(chosen):
            raise DataError("a device was selected twice in one iteration; its next batch can be used only once")
        self.iteration += 1
        self._used[chosen] += self.batch_size
        if self.mode == "sticky":
            self._position[chosen] += self.batch_size
            self._look(chosen)
            return
        if self.mode == "fresh":
            self._position += self.batch_size
        else:
            self._position[chosen] += self.batch_size
            np.maximum(self._position, self._arrived() - self.capacity, out=self._position)
        self._look(self._all)

    def take(self, selected: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next batches of ``selected`` and advance."""
        indices = self.next_indices(selected)
        self.advance(selected)
        return indices

    def distributions(self) -> NDArray[np.float64]:
        """(devices, classes) the class distribution each device draws from now: its own, or where drift has got to."""
        counts = self.federation.train_counts
        own = counts / counts.sum(axis=1, keepdims=True)
        return own if self._drifts is None else self._drifts.mix(own, self._position)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on later, in plain numbers, lists and text (JSON takes it)."""
        return {
            "stream": self._identity,
            "iteration": self.iteration,
            "position": self._position.tolist(),
            "samples_used": self._used.tolist(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; it must come from the same devices, seed, batch size, mode and drift."""
        try:
            identity, iteration = str(state["stream"]), int(state["iteration"])
            position, used = (np.array(state[key], dtype=np.int64) for key in ("position", "samples_used"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the saved stream state is broken ({error}); take another one") from None
        if identity != self._identity:
            raise DataError(
                "the saved stream state belongs to other devices, another seed, batch size, mode or drift; "
                "resume with the settings of the run that saved it"
            )
        shapes = position.shape == used.shape == self._position.shape
        if not shapes or iteration < 0 or np.any(used < 0) or np.any(position < used):
            raise DataError("the saved stream state is broken (numbers of samples that cannot be); take another one")
        self.iteration, self._position, self._used = iteration, position, used
        self._look(self._all)

    @cached_property
    def _identity(self) -> str:
        """Digest of everything but the position that determines the batches to come."""
        settings = f"{self.seed} {self.batch_size} {self.mode} {self.capacity} {self.arrival} {self.drift}"
        digest = blake2b("\x1f".join((settings, *self.federation.device_names)).encode(), digest_size=16)
        digest.update(self.federation.train.offsets.tobytes() + self.federation.train.flat.tobytes())
        return digest.hexdigest()

    def _arrived(self) -> int:
        return self.capacity + int(self._rate * self.iteration)

    def _check(self, devices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        chosen = np.asarray(devices)
        if not chosen.size:
            return np.empty(0, np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise DataError("devices are selected by a list of their numbers")
        absent = (chosen < 0) | (chosen >= len(self._all))
        if absent.any():
            number = int(chosen[np.argmax(absent)])
            raise DataError(f"there is no device {number}; they are numbered 0 to {len(self._all) - 1}")
        if not self._ready.all() and not self._ready[chosen].all():
            device = int(chosen[np.argmin(self._ready[chosen])])
            raise DataError(
                f"device {self.federation.device_names[device]!r} has less than a batch in its buffer; select among "
                "the ready ones"
            )
        return chosen.astype(np.int64, copy=False)

    def _look(self, devices: NDArray[np.int64]) -> None:
        """Bring next batches and counts of ``devices`` up to their positions."""
        position = self._position[devices]
        for device in devices[(position < self._start[devices]) | (position + self.batch_size > self._end[devices])]:
            self._refill(int(device))
        first = self._base[devices] + position - self._start[devices]
        samples = self._window.take(first[:, None] + self._span)
        classes = self._counts.shape[1]
        cells = self.federation.labels.take(samples) + (np.arange(len(devices)) * classes)[:, None]
        self._next[devices] = samples
        self._counts[devices] = np.bincount(cells.ravel(), minlength=len(devices) * classes).reshape(-1, classes)
        if self.mode == "buffer":
            self._ready = self._arrived() - self._position >= self.batch_size
            self._counts[~self._ready] = 0

    def _refill(self, device: int) -> None:
        """Let the window of a device begin at its position and hold at least one batch."""
        position, base, length = int(self._position[device]), int(self._base[device]), int(self._block[device])
        start, end = int(self._start[device]), int(self._end[device])
        if start <= position <= end:
            pieces: list[NDArray[Any]] = [self._window[base + position - start : base + end - start].copy()]
        else:
            number, skipped = divmod(position, length)
            pieces = [self._draw_block(device, number)[skipped:]]
            end = (number + 1) * length
        while end - position < self.batch_size:
            pieces.append(self._draw_block(device, end // length))
            end += length
        content = np.concatenate(pieces)
        self._window[base : base + len(content)] = content
        self._start[device], self._end[device] = position, end

    def _draw_block(self, device: int, number: int) -> NDArray[np.int64]:
        """Draw one block of a device's sequence: a few epochs in their orders."""
        generator = stream(self.seed, "stream", self.federation.device_names[device], number)
        weights = None if self._drifts is None else self._drifts.weights_of_block(device, number, self._block[device])
        if self._drifts is not None and weights is not None and weights.min() == 1:
            return self._drifts.draw(device, len(weights), generator)  # nothing would be left of the epochs
        epochs = np.empty((EPOCHS_PER_BLOCK, self._sizes[device]), np.int64)  # numpy shuffles whole words fastest
        epochs[:] = self.federation.train[device]
        block = generator.permuted(epochs, axis=1, out=epochs).ravel()
        if self._drifts is not None and weights is not None and weights.max() > 0:
            # Each sample is replaced, with probability w(t), by one drawn from r_k.
            replaced = np.flatnonzero(generator.random(len(block)) < weights)
            block[replaced] = self._drifts.draw(device, len(replaced), generator)
        return block


class _DriftTable:
    """What drift needs to know of every device, and the drawing of drifted samples."""

    def __init__(self, federation: Federation, drift: Drift, seed: int, batch_size: int) -> None:
        self._drift, self._batch_size = drift, batch_size
        self._train = federation.train
        devices = list(zip(federation.device_names, federation.train_counts, strict=True))
        self._delays = np.array([drift.delay(seed, name) for name, _ in devices])
        self._targets = np.stack([drift.target(seed, name, counts) for name, counts in devices])
        # A class's share of r_k is spread evenly over the device's samples of that class.
        shares = self._targets / np.maximum(federation.train_counts, 1)
        of_samples = [shares[device, federation.train_labels(device)] for device in range(len(federation))]
        self._chances = [chances / chances.sum() for chances in of_samples]

    def _weights(self, device: int | slice, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._drift.weight(positions / self._batch_size - self._delays[device])

    def mix(self, own: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """(devices, classes) q_k(t)."""
        weights = self._weights(slice(None), positions)[:, None]
        return (1 - weights) * own + weights * self._targets

    def weights_of_block(self, device: int, number: int, length: int) -> NDArray[np.float64]:
        """(length,) w(t) at each sample of a device's block."""
        return self._weights(device, np.arange(number * length, (number + 1) * length))

    def draw(self, device: int, samples: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw from r_k, with replacement."""
        # Independent draws, the fast way: how often each sample is drawn, then all of them in a random order.
        times = generator.multinomial(samples, self._chances[device])
        drawn = np.repeat(self._train[device], times)
        generator.shuffle(drawn)
        return drawn
