"""How stations, devices and the top server behave: frozen, checked, one place for every default."""

from typing import Any, Literal

from pydantic import Field, ValidationError

from fedgs.deploy.tls import KEEPALIVE
from fedgs.errors import ConfigError
from fedgs.section import Section


class StationSettings(Section):
    """How a station treats its devices."""

    deadline: float = Field(30.0, gt=0, description="seconds a selected device has for its step, both ways included")
    min_devices: int | None = Field(None, ge=1, description="devices to wait for before an iteration (default: pick)")
    gather: float = Field(5.0, ge=0, description="seconds to wait for them; then whoever is there trains")
    failures: int = Field(3, ge=1, description="failures in a row after which a device is quarantined")
    aside: float = Field(60.0, ge=0, description="seconds a device is quarantined")
    largest_move: float = Field(
        1.0, gt=0, description="a step may move the weights by this share of their norm (of 1, where they are small)"
    )
    duplicates: Literal["replace", "refuse"] = Field(
        "replace", description="a second connection of a device that is connected: replace the first, or refuse it"
    )
    keepalive: float = Field(KEEPALIVE, ge=0.2, description="seconds between two signs of life of a connection")


class TopSettings(Section):
    """How the top server treats its stations."""

    min_stations: int | None = Field(None, ge=1, description="answers a round needs (default: all)")
    linger: float = Field(60.0, ge=0, description="seconds to wait for the others once so many have answered")
    keepalive: float = Field(KEEPALIVE, ge=0.2, description="seconds between two signs of life of a connection")


class DeviceSettings(Section):
    """How a device behaves."""

    first_wait: float = Field(0.2, gt=0, description="seconds before the first attempt to come back")
    longest_wait: float = Field(30.0, gt=0, description="the most seconds between two attempts")
    min_batch: int = Field(1, ge=1, description="a task with smaller batches is refused: its changes give samples away")
    count_noise: float = Field(0.0, ge=0, description="standard deviation σ of the noise on announced class counts")
    noise_seed: int | None = Field(None, ge=0, description="of that noise; None draws a secret one at the start")
    keepalive: float = Field(KEEPALIVE, ge=0.2, description="seconds between two signs of life of a connection")


def checked(kind: type[Section], values: dict[str, Any]) -> Any:
    """Return settings of these values, leaving out those that are None; a bad one is a :class:`ConfigError`."""
    try:
        return kind.model_validate({key: value for key, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        key = "-".join(str(part) for part in first["loc"]).replace("_", "-")
        raise ConfigError(f"--{key} {first['input']}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
