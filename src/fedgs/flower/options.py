"""The run config of ``flwr run``: ``top.*`` is how the top server behaves, everything else is a setting of fedgs.

    [tool.flwr.app.config.training]
    rounds = 20                          # as fedgs run --set training.rounds=20
    [tool.flwr.app.config.top]
    stations = 2

Flower lets a run override only keys that the app's file has; an empty text there stands for "not given".
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from fedgs.config import checked_settings
from fedgs.deploy.settings import TopSettings
from fedgs.errors import ConfigError
from fedgs.settings import Settings


class TopOptions(TopSettings):
    """The keys ``top.*``, written with a dash where a name here has an underscore."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    stations: int = Field(ge=1, description="SuperNodes of the run (M), whose factories are 0 to M − 1")
    state: str = Field(description="folder of this run: checkpoint, metrics, model; seen from the SuperLink's folder")


def options_of(run_config: Mapping[str, Any]) -> tuple[Settings, TopOptions]:
    """Return the settings of the run and how the top server behaves; what is wrong is one :class:`ConfigError`."""
    values: dict[str, Any] = {}
    for key, value in run_config.items():
        if value == "":
            continue
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    try:
        options = TopOptions.model_validate(values.pop("top", {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"run config: top.{where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    return checked_settings(values, "run config"), options
