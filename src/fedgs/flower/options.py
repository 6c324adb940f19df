"""The run config of ``flwr run``: ``top.*`` is how the top server behaves, everything else is a setting of fedgs.

    [tool.flwr.app.config.training]
    rounds = 20                          # as fedgs run --set training.rounds=20
    [tool.flwr.app.config.top]
    stations = 2

Flower lets a run override only keys that the app's file has; an empty text there stands for "not given".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from fedgs.config import checked_settings
from fedgs.deploy.logs import LEVELS
from fedgs.deploy.settings import TopSettings, checked
from fedgs.deploy.tensors import WIRE_TYPES
from fedgs.deploy.top_process import TopProcess, image_shape
from fedgs.errors import ConfigError
from fedgs.section import Section


class TopOptions(Section):
    """The keys ``top.*``, written with a dash where a name here has an underscore."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    stations: int = Field(ge=1, description="SuperNodes of the run (M), whose factories are 0 to M − 1")
    state: str = Field(description="folder of this run: checkpoint, metrics, model; seen from the SuperLink's folder")
    held_out: str | None = Field(None, description="data set to test the global model on: a name or a file")
    target: str = Field("estimate", description="P_real: estimate, uniform, or a JSON file with a list of shares")
    classes: int | None = Field(None, ge=1, description="classes, without held-out (62)")
    image: str | None = Field(None, description="HEIGHTxWIDTH[xCHANNELS], without held-out (28x28)")
    wire: str = Field("float32", description="numbers between stations and devices: float32, bfloat16 or float16")
    min_stations: int | None = Field(None, description="answers a round needs (default: all)")
    linger: float | None = Field(None, description="seconds to wait for the others once so many have answered (60)")
    metrics: str | None = Field(None, description="HOST:PORT for Prometheus")
    log_level: str = "info"
    log_json: bool = False


def process_of(run_config: Mapping[str, Any]) -> TopProcess:
    """Return what the top server is started with; whatever is wrong is one :class:`ConfigError`."""
    values: dict[str, Any] = {}
    for key, value in run_config.items():
        if value == "":
            continue
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    given = values.pop("top", {})
    try:
        options = TopOptions.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"run config: top.{where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    for key, value, allowed in (("wire", options.wire, WIRE_TYPES), ("log-level", options.log_level, LEVELS)):
        if value not in allowed:
            raise ConfigError(f"run config: top.{key}={value!r}: choose {', '.join(allowed)}")
    policy = checked(TopSettings, {"min_stations": options.min_stations, "linger": options.linger})
    return TopProcess(
        checked_settings(values, "run config"),
        tuple(f"factory-{factory}" for factory in range(options.stations)),
        Path(options.state),
        policy,
        None,
        options.held_out,
        options.target,
        options.classes,
        image_shape(options.image),
        options.wire,
        options.metrics,
        options.log_level,
        options.log_json,
    )
