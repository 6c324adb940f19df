"""What a run really used: the learning rate and all options, defaults included.

Settings say what was asked for. A baseline has defaults of its own, which settings leave open: FedAdam asked for by
nothing but its name trains with a devices' rate of 10^-1.5 and a server rate of 0.00316. The objects asked here are
made by the functions that make them for a run.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedgs.algorithms import Baseline, server_rule
from fedgs.algorithms.client_server import rate_of
from fedgs.config import settings_from
from fedgs.settings import Settings
from fedgs.simulation.components import algorithm_of

CLASSES = 62
"""Of FEMNIST and of the glyphs."""


def resolved_of(settings: Settings | Mapping[str, Any], classes: int = CLASSES) -> dict[str, Any]:
    """Return ``learning_rate`` and ``options`` as they were in a run with these settings.

    ``settings`` may be those of a job's file, of any age: a file without ``resolved`` is so resolved now.
    ``learning_rate`` is that of the devices of a baseline (``client_lr``, where it has one), of the stations of
    FedGS; before the schedule. ``options`` are all others of the baseline and of its server rule together, those that
    its name decides among them; FedGS has those of ``server.rule`` (none with the paper's mean).
    """
    if not isinstance(settings, Settings):
        settings = settings_from(settings)
    if not settings.algorithm.is_baseline:
        server = settings.server
        rule = None if server.rule == "mean" else server_rule(server.rule, **server.options)
        return {"learning_rate": settings.training.learning_rate, "options": _fields(rule)}
    baseline = algorithm_of(settings, classes)
    assert isinstance(baseline, Baseline)
    return {
        "learning_rate": rate_of(settings, baseline),
        "options": _fields(baseline, "rule", "client_lr") | _fields(baseline.rule),
    }


def _fields(of: Any, *without: str) -> dict[str, Any]:
    names = [] if of is None else [field.name for field in fields(of) if field.name not in without]
    return {name: getattr(of, name) for name in names}
