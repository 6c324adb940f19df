"""Every setting with default, values and meaning: for ``fedgs settings`` and for the page of the documentation."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticUndefined


class SettingRow(NamedTuple):
    """A setting as people read it."""

    section: str
    key: str
    default: str
    """As a settings file would have it, "a section", or "not set"."""
    values: str
    meaning: str

    @property
    def path(self) -> str:
        """The whole key, as ``--set`` takes it."""
        return f"{self.section}.{self.key}".lstrip(".")


def settings_rows(model: type[BaseModel], section: str = "") -> Iterator[SettingRow]:
    """Yield each setting of a section, then those of the sections below it."""
    fields = model.model_fields.items()
    for name, field in fields:
        nested = section_of(field.annotation)
        if nested is not None and not field.description:
            continue
        default = field.default
        if default is PydanticUndefined:
            default = field.default_factory() if field.default_factory in (list, dict) else None
        shown = "not set" if default is None or default in ([], {}) else toml(default)
        values = values_of(field)
        yield SettingRow(section, name, shown if nested is None else "a section", values, field.description or "")
    for name, field in fields:
        nested = section_of(field.annotation)
        if nested is not None:
            yield from settings_rows(nested, f"{section}.{name}".lstrip("."))


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a setting is, or may be."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def nested_models(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every section below a model with its dotted name."""
    for name, field in model.model_fields.items():
        nested = section_of(field.annotation)
        if nested is not None:
            yield f"{prefix}{name}", nested
            yield from nested_models(nested, f"{prefix}{name}.")


def values_of(field: Any) -> str:
    """Return what a setting may be: its choices, or its type and bounds."""
    text = str(field.annotation) if not isinstance(field.annotation, type) else field.annotation.__name__
    choices = re.findall(r"Literal\[(.*?)\]", text)
    bounds = [
        f"{sign} {value:g}"
        for sign, key in ((">", "gt"), ("≥", "ge"), ("<", "lt"), ("≤", "le"))
        for value in (getattr(limit, key, None) for limit in field.metadata)
        if value is not None
    ]
    words = [f"`{choice}`" for listed in choices for choice in re.findall(r"'([^']*)'", listed)]
    rest = re.sub(r"typing\.Literal\[.*?\]|NoneType|None", "", text)
    for kind, word in (("list", "list"), ("int", "whole number"), ("float", "number"), ("bool", "true, false")):
        if re.search(rf"\b{kind}\b", rest):
            words.append(word)
            break
    else:
        if re.search(r"\bdict\b|Mapping", rest):
            words.append("table")
        elif re.search(r"\bstr\b", rest):
            words.append("text")
    return ", ".join(words) + (f" {' and '.join(bounds)}" if bounds else "")


def toml(value: Any) -> str:
    """Return a default as a settings file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
