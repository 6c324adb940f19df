"""The paper's own numbers (``paper_facts.json``, carried as package data)."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def facts() -> dict[str, Any]:
    """Return everything in ``paper_facts.json``: setup, Table II, samplers, initialiser curves, surfaces."""
    loaded: dict[str, Any] = json.loads(
        files("reproduction.experiments").joinpath("paper_facts.json").read_text("utf-8")
    )
    return loaded


def sampler(name: str) -> dict[str, float] | None:
    """Return the paper's divergence statistics and seconds of a sampler (mean, median, …), None if it has none."""
    table = facts()["samplers"]
    return dict(zip(table["columns"], table[name], strict=True)) if name in table else None
