"""How stations, devices and the top server behave: frozen, checked, one place for every default."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from fedgs.deploy.tensors import WireType
from fedgs.errors import ConfigError
from fedgs.section import Section


class ProcessSettings(Section):
    """What every process can be told."""

    keepalive: float = Field(2.0, ge=0.2, description="seconds between two keepalive pings of a connection")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = Field(False, description="one JSON object a line")


class StationSettings(ProcessSettings):
    """How a station treats its devices."""

    deadline: float = Field(
        30.0, gt=0, description="the most seconds a selected device has for its step, both ways included"
    )
    min_devices: int | None = Field(None, ge=1, description="devices to wait for before an iteration (default: pick)")
    gather: float = Field(5.0, ge=0, description="seconds to wait for them; then the devices that are ready train")
    failures: int = Field(
        3, ge=1, description="failures after which a device is quarantined; two good updates undo one"
    )
    quarantine: float = Field(60.0, ge=0, description="seconds a device is quarantined")
    largest_move: float = Field(
        6.0, ge=1, description="a longer update, as a multiple of the usual norm at this station, is shortened to it"
    )
    most_turns: float = Field(3.0, ge=1, description="no device trains more often than so many times its fair share")
    duplicates: Literal["replace", "refuse"] = Field(
        "replace", description="a second connection of a device that is connected: replace the first, or refuse it"
    )
    drain: float = Field(
        10.0, ge=0, description="seconds in which a station that is told to stop ends, its iteration and all"
    )
    metrics: str | None = Field(None, description="HOST:PORT for Prometheus and health checks")
    metrics_devices: int = Field(200, ge=0, description="devices with metrics of their own; of the others, sums")


class TopSettings(ProcessSettings):
    """What the top server trains and tests, and how it treats its stations."""

    held_out: str | None = Field(None, description="data set to test the global model on: a name or a file")
    target: str = Field("estimate", description="P_real: estimate, uniform, or a JSON file with a list of shares")
    classes: int | list[str] | None = Field(None, description="their names, or how many; without held_out (62)")
    image: str | None = Field(None, description="HEIGHTxWIDTH[xCHANNELS], without held_out (28x28)")
    wire: WireType = Field("float32", description="number format between stations and devices")
    min_stations: int | None = Field(None, ge=1, description="answers a round needs (default: all)")
    linger: float = Field(60.0, ge=0, description="seconds to wait for the other stations once so many have answered")
    largest_rise: float = Field(
        10.0,
        gt=1,
        description="a loss explodes at so many times the last one (above the first), or squared, times the first",
    )
    collapses: int = Field(3, ge=1, description="rounds in a row that may ruin the model before the run ends")
    metrics: str | None = Field(None, description="HOST:PORT for Prometheus and health checks")

    @field_validator("classes", mode="before")
    @classmethod
    def _number_or_names(cls, given: Any) -> Any:
        """Read what stands on the command line: 4, or ok,dent,scratch."""
        if isinstance(given, str):
            given = int(given) if given.isdecimal() else [name.strip() for name in given.split(",")]
        if given == 0 or (isinstance(given, list) and (not all(given) or len(set(given)) != len(given))):
            raise ValueError("give each class one name, or how many there are")
        return given


class DeviceSettings(ProcessSettings):
    """How a device behaves."""

    first_wait: float = Field(0.2, gt=0, description="seconds before the first attempt to reconnect")
    longest_wait: float = Field(30.0, gt=0, description="the most seconds between two attempts")
    failover: float = Field(20.0, ge=0, description="seconds a station is tried before the next one of the list")
    min_batch: int = Field(1, ge=1, description="a task with smaller batches is refused: its updates reveal samples")
    count_noise: float = Field(0.0, ge=0, description="standard deviation σ of the noise on announced class counts")
    noise_seed: int | None = Field(None, ge=0, description="of that noise; None draws a secret one at the start")


Kind = TypeVar("Kind", bound=Section)


def checked(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Return settings from the options of a command: those of ``kind`` that are given; a bad one is one line."""
    try:
        return kind.model_validate(
            {key: value for key, value in values.items() if key in kind.model_fields and value is not None}
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = "-".join(str(part) for part in first["loc"]).replace("_", "-")
        raise ConfigError(f"--{key} {first['input']}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
