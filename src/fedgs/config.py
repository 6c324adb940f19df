"""Settings are read from TOML or JSON, under a preset's, and overridden by ``key.path=value``.

    settings = load_settings("park.toml", ["selection.pick=12", "seed=3"])

What there is to set is in :mod:`fedgs.settings`. Whatever is wrong ends in one ``ConfigError`` line that names the
file, the key and the value.
"""

import copy
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedgs.errors import ConfigError, suggestion
from fedgs.network.settings import PROFILES
from fedgs.settings import COVERAGE_WEIGHT, InvalidCombinationError, Settings
from fedgs.settings_list import section_of

PRESETS = ("quick", "paper", "coverage", "best", "bearings", "own")
RENAMED = {"training.model": "task.model", "beside": "baseline", "server.by_class": "server.class_wise"}
"""Keys of older versions, and what they are called now."""
PATHS = ("data.name", "init", "dynamics.trace", "clock.profile", "algorithm.options.pretrain_model")
"""Settings that may be the path of a file or folder."""


def load_settings(
    path: str | Path | None = None,
    overrides: Iterable[str] = (),
    preset: str | None = None,
    given: Collection[str] | None = None,
    kind: type[Settings] = Settings,
    without: Collection[str] = (),
) -> Settings:
    """Read settings: the defaults, under a preset, under a TOML or JSON file, under ``key.path=value`` overrides.

    ``given``: those of the overrides that the user wrote, the others are an experiment's; None: all of them.
    ``kind``: settings with sections of their own, such as those of ``fedgs plan``. ``without``: sections of the preset
    that are left out, because they are of its own data, or because nobody would carry them out.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    source = "settings" if given is None else "the experiment's own settings"
    under = {} if preset is None else _read_preset(preset)
    under = {section: value for section, value in under.items() if section not in without}
    if preset is not None:
        source, values = f"preset {preset}", copy.deepcopy(under)
    if path is not None:
        source = str(path)
        values = merged(values, with_whole_paths(_read_file(Path(path)), Path(path).parent))
    for override in overrides:
        key, value = parse_override(override, kind=kind)
        assign(values, key, value, f"--set {override}")
        if given is None or override in given:
            origin[key] = f"--set {override}"
        else:  # nobody is blamed for what he did not write
            origin.pop(key, None)
    # Settings that conflict with the preset's baseline run remove that run.
    if "baseline" in under and values["baseline"] == under["baseline"]:
        paths = [parse_override(text)[0].split(".") for text in under["baseline"]]
        if any(_look_up(path, values) != _look_up(path, under) for path in paths):
            del values["baseline"]
    return _validated(with_whole_paths(values), source, origin, kind)


def with_whole_paths(values: dict[str, Any], folder: Path = Path()) -> dict[str, Any]:
    """Make paths that lie in ``folder`` absolute, so that a run repeats from anywhere; names stay, and so do others."""
    from fedgs.data.cache import cached_sets
    from fedgs.data.sources import EMBEDDED

    names = {*EMBEDDED, "femnist", *cached_sets(), *PROFILES}
    for key in PATHS:
        *sections, last = key.split(".")
        place: Any = values
        for name in sections:
            place = place.get(name) if isinstance(place, dict) else None
        given = place.get(last) if isinstance(place, dict) else None
        if isinstance(given, str) and given and given not in names and (folder / given).exists():
            place[last] = os.path.abspath(folder / given)
    return values


def given_values(path: str | Path | None, overrides: Iterable[str]) -> dict[str, Any]:
    """Return what a user says himself: a file of settings under overrides, not checked yet."""
    values = {} if path is None else _read_file(Path(path))
    for override in overrides:
        assign(values, *parse_override(override), f"--set {override}")
    return values


def checked_settings(values: Mapping[str, Any], source: str = "settings") -> Settings:
    """Return the settings of plain values that somebody wrote; an error names the new key of an old one."""
    return _validated(plain(values), source)


def plain(value: Any) -> Any:
    """Return plain values of nested ones: numpy's numbers and lists of them, as tables give them, become Python's."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def settings_from(values: Mapping[str, Any], source: str = "settings") -> Settings:
    """Return the settings of plain values, such as those a run keeps; keys of older versions are understood."""
    found = copy.deepcopy(dict(values))
    for old, new in RENAMED.items():
        (before, key), (after, name) = (
            ((found.setdefault(section, {}) if dot else found), key)
            for section, dot, key in (old.rpartition("."), new.rpartition("."))
        )
        if isinstance(before, dict) and key in before:
            value = before.pop(key)
            if isinstance(after, dict):
                after.setdefault(name, value)
    coverage = found.get("selection", {}).get("coverage", {})
    if coverage.get("weight", 0.0) is None:  # it once followed from the name of the solver
        coverage["weight"] = COVERAGE_WEIGHT if found["selection"].get("solver") == "auto" else 0.0
    return _validated(found, source)


def apply_overrides(settings: Settings, overrides: Iterable[str], option: str = "--set") -> Settings:
    """Return the settings with ``key.path=value`` overrides applied; ``option``: what errors call them."""
    values = settings.model_dump()
    for override in overrides:
        assign(values, *parse_override(override, option), f"{option} {override}")
    return _validated(values, option.removeprefix("--"))


def _validated(
    values: dict[str, Any], source: str, origin: Mapping[str, str] | None = None, kind: type[Settings] = Settings
) -> Settings:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_one_line(error.errors()[0], values, source, origin or {}, kind)) from None


def _read_preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        raise ConfigError(f"--preset {name}: there is no such preset; choose one of {', '.join(PRESETS)}")
    return tomllib.loads(files("fedgs.presets").joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, section by section; where they differ, ``above`` is right."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = merged(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return result


def _read_file(path: Path) -> dict[str, Any]:
    kind, parse = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        values = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a TOML or JSON settings file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {kind}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no sections of settings")
    return values


def parse_override(text: str, option: str = "--set", kind: type[Settings] = Settings) -> tuple[str, Any]:
    """Return key and value of ``key.path=value``; a bare word is a string: ``selection.solver=exact``.

    TOML has no word for nothing; ``none`` takes back a setting that need not be there: ``eval.target=none``.
    """
    key, sign, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not sign or not key or not all(key.split(".")):
        raise ConfigError(f"{option} {text}: expected key.path=value, for example {option} selection.pick=12")
    if value == "none" and _is_optional(key.split("."), kind):
        return key, None
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def assign(values: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Set ``key.path`` of nested values; ``origin`` begins the error of a path through a plain value."""
    *sections, last = key.split(".")
    for name in sections:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{origin}: {name} is a value, not a section, so it has no key below it")
    values[last] = value


def _one_line(
    error: ErrorDetails, values: Mapping[str, Any], source: str, origin: Mapping[str, str], kind: type[Settings]
) -> str:
    # A section or a text: pydantic names the kind it tried, which is no key.
    path = [str(part) for part in error["loc"] if part not in ("TaskSettings", "str")]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InvalidCombinationError):
        path += cause.key.split(".")
        problem = cause.reason
    elif error["type"] == "extra_forbidden":
        problem = _unknown_key(path, kind)
    elif error["type"] == "model_type":
        problem = "is not possible: input should be a section"
    else:
        reason = re.sub(r"\d{16,}", lambda digits: f"{float(digits[0]):g}", error["msg"])  # 1e+30, not thirty zeros
        problem = f"is not possible: {reason[0].lower()}{reason[1:]}"
    key = ".".join(path)
    where = next((shown for name, shown in origin.items() if f"{name}.".startswith(f"{key}.")), source)
    return f"{where}: {key}={_shown(_look_up(path, values))} {problem}"


def _unknown_key(path: Sequence[str], kind: type[Settings]) -> str:
    new = RENAMED.get(".".join(path))
    if new is not None:
        return f"is now called {new}"
    if path == ["preset"]:
        return "is not a setting but an option of fedgs run and fedgs sweep: --preset"
    section = _section_at(path[:-1], kind)
    assert section is not None  # or another error had come first
    return f"is not a known setting; {suggestion(path[-1], section.model_fields, 'known keys here:')}"


def _is_optional(path: Sequence[str], kind: type[Settings]) -> bool:
    """Whether the key is known and may be missing."""
    section = _section_at(path[:-1], kind)
    known = {} if section is None else section.model_fields
    return path[-1] in known and type(None) in get_args(known[path[-1]].annotation)


def _section_at(path: Sequence[str], kind: type[BaseModel]) -> type[BaseModel] | None:
    """Return the section that a path of names leads to; None where there is none."""
    section: type[BaseModel] | None = kind
    for name in path:
        field = None if section is None else section.model_fields.get(name)
        section = None if field is None else section_of(field.annotation)
    return section


def _look_up(path: Sequence[str], values: Mapping[str, Any]) -> Any:
    """Return a value by its path, or the default of what is not given."""
    found: Any = values
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            default: Any = Settings.model_construct()
            for key in path:
                default = getattr(default, key, None)
            return default
        found = found[name]
    return found


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
