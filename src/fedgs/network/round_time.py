"""How long a round takes: FedGS, section VI-B, equations t_ext_comm to t_fedavg, in full generality.

    T_ext    = S·M / rate(external up) + S·M / rate(external down)
    T_int    = S·L / rate(internal up) + S·L / rate(internal down)
    T_FedGS  = T_ext + T·(T_select + T_int + T_comp)
    T̃_ext    = S·M·L / rate(direct up) + S·M·L / rate(direct down)
    T_FedAvg = T̃_ext + T·T_comp

with rate = B·log₂(1 + γ) of each channel, plus its latency where it has one (see ``links``).
"""

from dataclasses import dataclass, replace

from fedgs.errors import NetworkError
from fedgs.network.checks import not_negative, positive, whole
from fedgs.network.links import ParkNetwork


@dataclass(frozen=True)
class Park:
    """An industrial park: its factories and devices, and the model they train. The defaults are the paper's."""

    model_bits: float
    """size of the model in bits (S)"""
    factories: int = 10
    """with one base station each (M)"""
    pick: int = 10
    """devices selected per factory and iteration (L); FedAvg takes M·L devices a round"""
    iterations: int = 50
    """internal synchronisations in a round, and local steps of FedAvg (T)"""
    devices: int = 350
    """of the whole park (K)"""
    step_seconds: float = 0.0
    """of one local step on a device (T_comp)"""
    select_seconds: float = 0.0
    """of one selection at a base station (T_select)"""

    def __post_init__(self) -> None:
        positive("model_bits", self.model_bits)
        for name in ("factories", "pick", "iterations", "devices"):
            whole(name, getattr(self, name))
        for name in ("step_seconds", "select_seconds"):
            not_negative(name, getattr(self, name), "s")
        if self.pick > self.devices_per_factory:
            raise NetworkError(
                f"pick={self.pick} is impossible; a factory has {self.devices_per_factory} devices "
                f"({self.devices} in {self.factories} factories)"
            )

    @property
    def devices_per_factory(self) -> int:
        """Devices of the smallest factory when all have as many, or one more (K^m)."""
        return self.devices // self.factories

    def but(self, *, iterations: int | None = None, pick: int | None = None) -> "Park":
        """Return the park with another T or L."""
        return replace(
            self,
            iterations=self.iterations if iterations is None else iterations,
            pick=self.pick if pick is None else pick,
        )


@dataclass(frozen=True)
class RoundTime:
    """Where the seconds of a round go."""

    top: float
    """synchronisation with the top server: T_ext, or T̃_ext of FedAvg"""
    internal: float
    """T internal synchronisations, T·T_int"""
    selection: float
    """T·T_select"""
    computation: float
    """T·T_comp"""

    @property
    def total(self) -> float:
        """Seconds of the round."""
        return self.top + self.internal + self.selection + self.computation


def internal_sync_seconds(park: Park, network: ParkNetwork) -> float:
    """Return T_int: L devices send their models to the station and receive its mean (eq. t_int_comm)."""
    return network.internal.round_trip(park.model_bits * park.pick)


def external_sync_seconds(park: Park, network: ParkNetwork) -> float:
    """Return T_ext: M stations send their models to the top server and receive the global one (eq. t_ext_comm)."""
    return network.external.round_trip(park.model_bits * park.factories)


def direct_sync_seconds(park: Park, network: ParkNetwork) -> float:
    """Return T̃_ext: M·L devices do so themselves (eq. t_ext_comm_fedavg)."""
    return network.direct.round_trip(park.model_bits * park.factories * park.pick)


def fedgs_round(park: Park, network: ParkNetwork) -> RoundTime:
    """Return the time of a round of FedGS (eq. t_fedgs)."""
    return RoundTime(
        top=external_sync_seconds(park, network),
        internal=park.iterations * internal_sync_seconds(park, network),
        selection=park.iterations * park.select_seconds,
        computation=park.iterations * park.step_seconds,
    )


def fedavg_round(park: Park, network: ParkNetwork) -> RoundTime:
    """Return the time of a round of FedAvg with as many devices and local steps (eq. t_fedavg)."""
    return RoundTime(
        top=direct_sync_seconds(park, network),
        internal=0.0,
        selection=0.0,
        computation=park.iterations * park.step_seconds,
    )
