"""The settings of an experiment: frozen, validated, read from TOML, overridden by ``key.path=value``.

    settings = load_settings("park.toml", ["selection.pick=12", "seed=3"])

Names are words; the paper's symbol stands beside each (Table I and section VII-A give the defaults).
Whatever is wrong ends in one ``ConfigError`` line that names the file, the key and the value.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedgs.errors import ConfigError


class Section(BaseModel):
    """A group of settings that cannot be changed once made and refuses keys it does not know."""

    # strict: the string "12" is not the number 12; a TOML file says which it means.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FederationSettings(Section):
    """Who takes part."""

    devices: int = Field(350, ge=1, description="all devices of the park (K)")
    factories: int = Field(10, ge=1, description="factories, each with one base station (M)")

    @property
    def devices_per_factory(self) -> int:
        """Devices of the smallest factory when they are dealt out evenly (K^m)."""
        return self.devices // self.factories

    @model_validator(mode="after")
    def _enough_devices(self) -> Self:
        if self.factories > self.devices:
            raise ImpossibleError(
                "factories",
                f"is more than devices={self.devices}, so some would be empty; lower it or raise federation.devices",
            )
        return self


class SelectionSettings(Section):
    """Which devices a base station takes in each iteration."""

    solver: str = Field("gbp-cs", description="a name in fedgs.selection.SOLVERS, or 'auto'")
    pick: int = Field(10, ge=1, description="devices selected per factory and iteration (L)")
    presample: int = Field(2, ge=0, description="of these, how many are drawn at random beforehand (L_rnd)")
    cap: bool = Field(False, description="a factory with fewer than pick devices takes all it has")
    start: Literal["mpinv", "zero", "random"] = Field("mpinv", description="first point of gbp-cs")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        # Imported here, because it loads the compiler, which settings alone do not need.
        from fedgs.selection.solve import SOLVERS, suggestion

        if self.solver != "auto" and self.solver not in SOLVERS:
            raise ImpossibleError("solver", f"is not a solver; {suggestion(self.solver)}")
        if self.presample > self.pick:
            raise ImpossibleError(
                "presample",
                f"is more than pick={self.pick}, of which it is a part; lower it",
            )
        return self


class TrainingSettings(Section):
    """How the model is trained."""

    batch_size: int = Field(32, ge=1, description="samples of a mini-batch (n)")


class Settings(Section):
    """Everything an experiment needs to be repeated. The defaults are the paper's."""

    seed: int = Field(0, ge=0, description="all random streams follow from it")
    federation: FederationSettings = FederationSettings()
    selection: SelectionSettings = SelectionSettings()
    training: TrainingSettings = TrainingSettings()

    @model_validator(mode="after")
    def _pick_fits(self) -> Self:
        available = self.federation.devices_per_factory
        if self.selection.pick > available and not self.selection.cap:
            raise ImpossibleError(
                "selection.pick",
                f"is more than the {available} devices of a factory (federation.devices="
                f"{self.federation.devices} in federation.factories={self.federation.factories}); "
                "lower it, or set selection.cap=true to take all of them",
            )
        return self


class ImpossibleError(ValueError):
    """A key whose value cannot be, given the others: ``key`` is relative to the section that says so."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


def load_settings(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Settings:
    """Read settings from a TOML file (or take the defaults) and apply ``key.path=value`` overrides."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    source = "settings"
    if path is not None:
        source = str(path)
        values = _read_toml(Path(path))
    for override in overrides:
        key, value = _parse_override(override)
        _assign(values, key, value, override)
        origin[key] = f"--set {override}"
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_one_line(error.errors()[0], values, source, origin)) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a TOML settings file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None


def _parse_override(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not sign or not key or not all(key.split(".")):
        raise ConfigError(f"--set {text}: expected key.path=value, for example --set selection.pick=12")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value  # a bare word is a string: --set selection.solver=exact


def _assign(values: dict[str, Any], key: str, value: Any, override: str) -> None:
    *sections, last = key.split(".")
    for name in sections:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {name} is a value, not a section, so it has no key below it")
    values[last] = value


def _one_line(error: ErrorDetails, values: Mapping[str, Any], source: str, origin: Mapping[str, str]) -> str:
    path = [str(part) for part in error["loc"]]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ImpossibleError):
        path += cause.key.split(".")
        problem = cause.reason
    elif error["type"] == "extra_forbidden":
        problem = _unknown_key(path)
    elif error["type"] == "model_type":
        problem = "is not possible: input should be a section"
    else:
        problem = f"is not possible: {error['msg'][0].lower()}{error['msg'][1:]}"
    key = ".".join(path)
    where = next((shown for name, shown in origin.items() if f"{name}.".startswith(f"{key}.")), source)
    return f"{where}: {key}={_shown(_look_up(path, values))} {problem}"


def _unknown_key(path: Sequence[str]) -> str:
    section: type[BaseModel] = Settings
    for name in path[:-1]:
        annotation = section.model_fields[name].annotation
        assert isinstance(annotation, type)
        section = annotation
    near = get_close_matches(path[-1], section.model_fields, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known keys here: {', '.join(section.model_fields)}"
    return f"is not a known setting; {hint}"


def _look_up(path: Sequence[str], values: Mapping[str, Any]) -> Any:
    found: Any = values
    for index, name in enumerate(path):
        if not isinstance(found, Mapping) or name not in found:
            return _default(path[index:], path[:index])
        found = found[name]
    return found


def _default(rest: Sequence[str], done: Sequence[str]) -> Any:
    value: Any = Settings.model_construct()
    for name in (*done, *rest):
        value = getattr(value, name, None)
    return value


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
