"""A virtual clock: how long a simulated round would take in a real park, and what it would send. Pure; trains nothing.

    clock = VirtualClock(network, step_seconds=0.02, slowness=slowness(devices=350, spread=0.3, seed=0))
    cost = clock.fedgs_round(plan.devices, model_bytes, selection_seconds=plan.seconds)     # hierarchical
    cost = clock.flat_round(devices, steps, bytes_down=model_bytes, bytes_up=model_bytes)   # FedAvg and its like
    cost.seconds, cost.traffic.station_top_up

It is the time model of FedGS (section VI-B, see ``round_time``) with what a simulation knows besides: who was selected,
how slow each device is, how long the selection took. An iteration waits for the slowest selected device. Factories work
side by side and meet at the top server, so a round waits for the slowest factory. With equally fast devices and L
selected everywhere the result is T_FedGS and T_FedAvg.

How a simulator calls it. Make the clock once, ``settings.clock.clock(devices, seed, measured_step)``, with a measured
step time where the settings say so. After each round of FedGS hand over ``RoundPlan.devices``, its ``seconds`` and who
came back. After a round of a baseline, hand over the devices that took part, their numbers of local steps, and the
bytes each received and sent, which differ by baseline (FedFusion sends its operator too, CGAU has a classifier of its
own size). Add the costs up with ``+``, beginning with ``RoundCost()``. Nothing of it goes back into the training. Where
a measured time is used the result differs from run to run and belongs with the other timings, not with the reproducible
metrics.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.errors import NetworkError
from fedgs.network.links import ParkNetwork, not_negative, positive, whole
from fedgs.rng import stream

BITS = 8
"""of a byte"""


@dataclass(frozen=True)
class Traffic:
    """Bytes on each link, all factories together; up is towards the top server.

    Whatever a device exchanges with the top server itself crosses both links and counts on both.
    """

    device_station_up: float = 0.0
    device_station_down: float = 0.0
    station_top_up: float = 0.0
    station_top_down: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Traffic)))


@dataclass(frozen=True)
class RoundCost:
    """Simulated seconds of a round and its traffic; costs of rounds add up."""

    seconds: float = 0.0
    computation: float = 0.0
    """part of ``seconds``, as are the next three; in FedGS those of the slowest factory"""
    selection: float = 0.0
    internal: float = 0.0
    """between devices and stations"""
    top: float = 0.0
    """with the top server"""
    traffic: Traffic = Traffic()

    def __add__(self, other: "RoundCost") -> "RoundCost":
        return RoundCost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(RoundCost)))


def slowness(devices: int, spread: float, seed: int) -> NDArray[np.float64]:
    """Return how many times slower than the median each device computes: log-normal, ``spread`` its standard deviation.

    Device k has the same slowness however many devices there are.
    """
    whole("devices", devices)
    drawn = stream(seed, "slowness").standard_normal(devices)
    return np.exp(not_negative("spread", spread) * drawn)


@dataclass(frozen=True, eq=False)
class VirtualClock:
    """What a simulation does not know of its park."""

    network: ParkNetwork
    step_seconds: float
    """of one local step on a device of median speed"""
    slowness: NDArray[np.float64] | None = None
    """(devices,) how many times slower than that each one is; None: all alike"""
    selection_seconds: float | None = None
    """of one selection; None: as measured, which each round hands over"""

    def __post_init__(self) -> None:
        not_negative("step_seconds", self.step_seconds, "s")
        if self.selection_seconds is not None:
            not_negative("selection_seconds", self.selection_seconds, "s")
        if self.slowness is not None and (self.slowness.ndim != 1 or not (self.slowness > 0).all()):
            raise NetworkError("slowness must be one number above 0 for each device")

    def fedgs_round(
        self,
        selected: ArrayLike,
        model_bytes: float,
        selection_seconds: ArrayLike = 0.0,
        *,
        returned: ArrayLike | None = None,
        stations: int | None = None,
    ) -> RoundCost:
        """Return the cost of T iterations in every factory and one external synchronisation.

        Args:
            selected: (iterations, factories, places) devices selected; −1 is an empty place.
            model_bytes: what a model takes on the wire.
            selection_seconds: of the selections of all factories in this round as if made one after the other (the
                time of all threads together, not the time they took side by side), shared out evenly over T·M; or
                (iterations, factories), of each selection. The clock's own, where it has one, takes its place.
            returned: (iterations, factories, places) whether each sent its model back; all of them, when not given. A
                device that is lost in mid-iteration has received one and is waited for, and sends none.
            stations: how many send a model up; those that trained, when not given. All of them receive the new one.
        """
        devices = _whole_array("selected", selected, 3)
        iterations, factories, _ = devices.shape
        positive("model_bytes", model_bytes)
        there = devices >= 0
        back = there if returned is None else _flags("returned", returned, devices.shape) & there
        numbers, numbers_back = there.sum(axis=2), back.sum(axis=2)
        computing = self.step_seconds * self._slowest(devices)
        if self.selection_seconds is not None:
            selection_seconds = self.selection_seconds * iterations * factories
        selecting = _selection_times(selection_seconds, iterations, factories)
        link = self.network.internal
        each_up, each_down = model_bytes * BITS / link.up.rate, model_bytes * BITS / link.down.rate
        sending = np.where(numbers > 0, numbers * each_down + link.down.latency, 0.0)
        sending += np.where(numbers_back > 0, numbers_back * each_up + link.up.latency, 0.0)
        last = int(np.argmax((computing + selecting + sending).sum(axis=0)))  # the factory all others wait for
        parts = [float(part[:, last].sum()) for part in (computing, selecting, sending)]
        sending_up = int(numbers_back.any(axis=0).sum()) if stations is None else whole("stations", stations, least=0)
        outside = self.network.external
        top = outside.up.seconds(model_bytes * BITS * sending_up) + outside.down.seconds(model_bytes * BITS * factories)
        inside_up, inside_down = float(numbers_back.sum()) * model_bytes, float(numbers.sum()) * model_bytes
        traffic = Traffic(inside_up, inside_down, sending_up * model_bytes, factories * model_bytes)
        computation, selection, internal = parts
        return RoundCost(sum(parts) + top, computation, selection, internal, top, traffic)

    def flat_round(self, devices: ArrayLike, steps: ArrayLike, *, bytes_down: float, bytes_up: float) -> RoundCost:
        """Return the cost of a round in which devices train by themselves and talk to the top server directly.

        Args:
            devices: (participants,) who took part.
            steps: (participants,) local steps each made, or one number for all.
            bytes_down: what each device received.
            bytes_up: what each device sent.
        """
        who = _whole_array("devices", devices, 1)
        if (who < 0).any():
            raise NetworkError("the devices of a baseline round must be numbers of devices, 0 or more")
        try:
            work = np.broadcast_to(_whole_array("steps", steps), who.shape)
        except ValueError:
            raise NetworkError(f"steps of shape {np.shape(steps)} do not fit {len(who)} devices") from None
        if (work < 0).any():
            raise NetworkError("steps must be 0 or more")
        down, up = not_negative("bytes_down", bytes_down) * len(who), not_negative("bytes_up", bytes_up) * len(who)
        computation = float((self.step_seconds * work * self._factors(who)).max(initial=0.0))
        link = self.network.direct
        top = link.down.seconds(down * BITS) + link.up.seconds(up * BITS)
        return RoundCost(computation + top, computation, 0.0, 0.0, top, Traffic(up, down, up, down))

    def _slowest(self, devices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (iterations, factories) the slowness of the slowest selected device; 0 where none is selected."""
        there = devices >= 0
        factors = np.where(there, self._factors(np.where(there, devices, 0)), 0.0)
        return np.asarray(factors.max(axis=2, initial=0.0))

    def _factors(self, devices: NDArray[np.int64]) -> NDArray[np.float64]:
        if self.slowness is None:
            return np.ones(devices.shape)
        if devices.size and int(devices.max()) >= len(self.slowness):
            raise NetworkError(
                f"device {int(devices.max())} took part, but slowness is known of {len(self.slowness)} devices only"
            )
        return self.slowness[devices]


def _selection_times(seconds: ArrayLike, iterations: int, factories: int) -> NDArray[np.float64]:
    times = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(times) & (times >= 0)).all():
        raise NetworkError("selection_seconds must be finite numbers of 0 or more")
    if times.ndim == 0:
        return np.full((iterations, factories), float(times) / max(1, iterations * factories))
    if times.shape != (iterations, factories):
        raise NetworkError(
            f"selection_seconds of shape {times.shape} do not fit {iterations} iterations and {factories} factories"
        )
    return times


def _flags(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    array = np.asarray(value)
    if array.dtype != np.bool_ or array.shape != shape:
        raise NetworkError(f"{name} must be true or false for each place, {shape}, not {array.dtype} {array.shape}")
    return array


def _whole_array(name: str, value: ArrayLike, dimensions: int | None = None) -> NDArray[np.int64]:
    array = np.asarray(value)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise NetworkError(f"{name} must be whole numbers, not {array.dtype}")
    if dimensions is not None and array.ndim != dimensions:
        raise NetworkError(f"{name} must have {dimensions} dimensions, not {array.ndim}")
    return array.astype(np.int64)
