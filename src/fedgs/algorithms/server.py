"""``server_rule``: any rule of the table ``RULES`` by its name.

A rule is a frozen dataclass whose fields are its options, with two pure methods: ``init`` gives what it remembers
before the first round, ``update`` takes a round's uploads and gives the next weights and what to remember. Inputs are
never changed, results share no memory with them. Adding a rule is a file with such a class and a line in the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgs.algorithms.fedavg import FedAvg
from fedgs.algorithms.fedavgm import FedAvgM
from fedgs.algorithms.fednova import FedNova
from fedgs.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedgs.algorithms.ida import Ida
from fedgs.algorithms.options import check_options, options_of
from fedgs.algorithms.rule import ServerRule, check_rule
from fedgs.errors import AlgorithmError, ConfigError, suggestion
from fedgs.imports import is_import_path, load_object, make_object
from fedgs.settings import ServerSettings


@dataclass(frozen=True)
class RuleEntry:
    """What the table knows of a rule."""

    make: Callable[..., ServerRule]
    summary: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Options that the name already decides."""

    @property
    def options(self) -> dict[str, Any]:
        """Names and default values of its options."""
        return options_of(self.make, self.fixed)


RULES: dict[str, RuleEntry] = {
    "fedavg": RuleEntry(FedAvg, "mean weighted by numbers of samples"),
    "fedavgm": RuleEntry(FedAvgM, "momentum on the average update"),
    "fedadagrad": RuleEntry(FedAdagrad, "Adagrad on the average update"),
    "fedadam": RuleEntry(FedAdam, "Adam on the average update"),
    "fedyogi": RuleEntry(FedYogi, "Yogi on the average update"),
    "fednova": RuleEntry(FedNova, "mean of what devices change in a step"),
    "ida": RuleEntry(Ida, "mean weighted by inverse distance to the mean"),
    "ida+intrac": RuleEntry(Ida, "… and by inverse training accuracy", {"intrac": True}),
    "ida+fedavg": RuleEntry(Ida, "… and by numbers of samples", {"data_size": True}),
}


def server_rule(name: str, /, **options: Any) -> ServerRule:
    """Return a rule.

    Args:
        name: a key of ``RULES``.
        options: of the rule; ``RULES[name].options`` lists them with their defaults.
    """
    if name not in RULES:
        raise AlgorithmError(f"no server rule is called {name!r}; {suggestion(name, RULES)}")
    entry = RULES[name]
    check_options(name, options, entry.options, entry.fixed)
    try:
        return entry.make(**entry.fixed, **options)
    except AlgorithmError as error:
        raise AlgorithmError(f"{name}: {error}") from None


def rule_of(settings: ServerSettings) -> ServerRule | None:
    """Return the server rule of the settings, of the table or the user's own; None: the paper's mean."""
    if settings.rule == "mean":
        if settings.options:
            raise ConfigError(f"server.options={settings.options} has no meaning with server.rule='mean'; remove it")
        return None
    try:
        if is_import_path(settings.rule):
            found, setting = load_object(settings.rule, "server.rule"), f"server.rule={settings.rule!r}"
            rule: ServerRule = make_object(found, settings.options, setting, lambda one: hasattr(one, "update"))
            check_rule(rule)
            return rule
        return server_rule(settings.rule, **settings.options)
    except AlgorithmError as error:
        raise ConfigError(f"server.rule={settings.rule!r}: {error}") from None
