"""The links of a park, in bits, hertz, seconds and decibels.

A channel of bandwidth B (Hz) whose receiver sees the signal-to-noise ratio γ carries B·log₂(1 + γ) bits a second
(FedGS, section VI-B). Ratios are written in decibels: γ = 10^(dB/10), so 20 dB are γ = 100. A line that is known by its
rate alone, such as a cable, is a channel of as many hertz at 0 dB, since log₂(1 + 1) = 1.

Three links meet in a round: ``internal`` between devices and their base station (every factory has its own),
``external`` between base stations and the top server, and ``direct`` between devices and the top server, which is what
FedAvg uses. All devices, or all stations, of a link share its bandwidth, as in the paper. Unlike the paper, a
channel may have a latency, which a synchronisation waits for once each way; it is 0 unless given.
"""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real

from fedgs.errors import NetworkError


def positive(name: str, value: float, unit: str = "") -> float:
    """Return a finite number above zero."""
    number = _finite(name, value)
    if number <= 0:
        raise NetworkError(f"{name}={value:g}{_spaced(unit)} is impossible; it must be above 0")
    return number


def not_negative(name: str, value: float, unit: str = "") -> float:
    """Return a finite number of zero or more."""
    number = _finite(name, value)
    if number < 0:
        raise NetworkError(f"{name}={value:g}{_spaced(unit)} is impossible; it must be 0 or more")
    return number


def whole(name: str, value: int, least: int = 1) -> int:
    """Return a whole number that is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise NetworkError(f"{name}={value!r} is impossible; it must be a whole number")
    if value < least:
        raise NetworkError(f"{name}={value} is impossible; it must be {least} or more")
    return int(value)


def _finite(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise NetworkError(f"{name}={value!r} is impossible; it must be a finite number")
    return float(value)


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""


def snr_from_db(decibels: float) -> float:
    """Return the signal-to-noise ratio γ of a value in dB."""
    if isinstance(decibels, bool) or not isinstance(decibels, Real):
        raise NetworkError(f"snr={decibels!r} is impossible; it must be a number of dB, such as 20")
    try:
        ratio = math.pow(10.0, decibels / 10.0)
    except OverflowError:
        ratio = math.inf
    if not 0 < ratio < math.inf:  # NaN fails this too
        raise NetworkError(f"snr={decibels!r} dB is no ratio of signal to noise; give a value such as 20")
    return ratio


def snr_to_db(ratio: float) -> float:
    """Return a signal-to-noise ratio γ in dB."""
    return 10.0 * math.log10(positive("snr", ratio))


@dataclass(frozen=True)
class Channel:
    """One direction of a link."""

    bandwidth: float
    """Hz (B)"""
    snr_db: float = 0.0
    """of the receiver (γ in dB)"""
    latency: float = 0.0
    """seconds until the first bit arrives; not in the paper"""

    def __post_init__(self) -> None:
        positive("bandwidth", self.bandwidth, "Hz")
        snr_from_db(self.snr_db)
        not_negative("latency", self.latency, "s")

    @classmethod
    def of_rate(cls, bits_per_second: float, latency: float = 0.0) -> "Channel":
        """Return a channel that is known by its rate."""
        return cls(positive("rate", bits_per_second, "bit/s"), 0.0, latency)

    @property
    def rate(self) -> float:
        """Bits a second, B·log₂(1 + γ)."""
        return self.bandwidth * math.log1p(snr_from_db(self.snr_db)) / math.log(2.0)

    def seconds(self, bits: float) -> float:
        """Return how long it takes to send so many bits; nothing takes no time."""
        return bits / self.rate + self.latency if bits else 0.0


@dataclass(frozen=True)
class Link:
    """Both directions: ``up`` goes towards the top server, ``down`` towards the devices."""

    up: Channel
    down: Channel

    @property
    def rate(self) -> float:
        """Bits a second on the way up and down again, the harmonic mean of both directions."""
        return 2.0 / (1.0 / self.up.rate + 1.0 / self.down.rate)

    @property
    def latency(self) -> float:
        """Seconds up and down."""
        return self.up.latency + self.down.latency

    def round_trip(self, bits: float) -> float:
        """Return how long it takes to send so many bits up and as many down."""
        return self.up.seconds(bits) + self.down.seconds(bits)

    def scaled(self, factor: float) -> "Link":
        """Return the link with so many times the bandwidth."""
        up, down = (
            replace(channel, bandwidth=channel.bandwidth * positive("factor", factor))
            for channel in (self.up, self.down)
        )
        return Link(up, down)


@dataclass(frozen=True)
class ParkNetwork:
    """The three links of a park."""

    internal: Link
    """devices and their base station; each factory has one like it"""
    external: Link
    """base stations and the top server, shared by all of them"""
    direct: Link
    """devices and the top server, shared by all of them"""

    @property
    def ratio(self) -> float:
        """How many times faster a factory's link is than that to the top server: B^int/B^ext of Assumption 2."""
        return self.internal.rate / self.external.rate

    def without_latency(self) -> "ParkNetwork":
        """Return the network of the paper's formulas, in which the first bit arrives at once."""
        return ParkNetwork(
            *(
                Link(replace(link.up, latency=0.0), replace(link.down, latency=0.0))
                for link in (self.internal, self.external, self.direct)
            )
        )

    def with_ratio(self, ratio: float) -> "ParkNetwork":
        """Return the network with the internal bandwidths scaled so that ``ratio`` is this."""
        return replace(self, internal=self.internal.scaled(positive("ratio", ratio) / self.ratio))


def paper_network(
    *,
    internal_up: float,
    internal_down: float,
    external_up: float,
    external_down: float,
    top_db: float,
    station_db: float,
    device_db: float,
) -> ParkNetwork:
    """Return the network of the paper's general equations: four bandwidths in Hz, one SNR in dB for each receiver."""
    external_uplink = Channel(external_up, top_db)
    return ParkNetwork(
        internal=Link(Channel(internal_up, station_db), Channel(internal_down, device_db)),
        external=Link(external_uplink, Channel(external_down, station_db)),
        direct=Link(external_uplink, Channel(external_down, device_db)),
    )


def equal_network(internal: float, external: float, snr_db: float) -> ParkNetwork:
    """Return the network of Assumption 2: one bandwidth inside, one outside, one SNR everywhere."""
    inside, outside = (Link(Channel(band, snr_db), Channel(band, snr_db)) for band in (internal, external))
    return ParkNetwork(inside, outside, outside)
