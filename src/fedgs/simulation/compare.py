"""``fedgs.compare``: several runs in one table and one picture."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgs.errors import ConfigError
from fedgs.settings import LOGGERS
from fedgs.simulation.components import pretraining_rounds
from fedgs.simulation.history import History, data_frame, load_history
from fedgs.simulation.run_clock import elapsed, traffic
from fedgs.simulation.summary import mean_of, score_facts

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

ALIKE = {"run", "algorithm", "seed", "solver", "rounds", "of_rounds", "pretraining_rounds", "score", "mode", "target"}
"""What runs that differ in their seed have in common; the rest of a row are numbers."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of several runs, which :func:`compare` makes; print it, or use ``rows``, ``frame`` and ``plot``."""

    histories: Mapping[str, History]
    """The runs, by the name they are shown with."""
    named: bool = False
    """Whether the user has chosen the names: only those that differ in a number at their end are taken together."""

    @property
    def score(self) -> str:
        """The main metric of all runs."""
        return next(iter(self.histories.values())).score

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One flat dict per run: rounds, final, best and last scores, round of the target, divergence, time, bytes."""
        return [row_of(name, history) for name, history in self.histories.items()]

    @cached_property
    def groups(self) -> dict[str, list[History]]:
        """Runs that differ in nothing but their seed, by a name they share; any other run is alone."""
        alike: dict[tuple[str, str], dict[str, History]] = {}
        for name, history in self.histories.items():
            alike.setdefault((_all_but_seed(history), _stem(name) if self.named else ""), {})[name] = history
        found: dict[str, list[History]] = {}
        for group in alike.values():
            seeds = {history.settings.seed for history in group.values()}
            if len(seeds) < len(group):  # the same run twice tells nothing of seeds
                found |= {name: [history] for name, history in group.items()}
                continue
            name = _shared_name(list(group))
            taken = name in found or name in self.histories.keys() - group.keys()
            found[next(iter(group)) if taken else name] = list(group.values())
        return found

    @property
    def means(self) -> list[dict[str, Any]]:
        """One flat dict per group: means over its ``seeds``; ``final_sd`` and others are standard deviations."""
        return [mean_row(name, [row_of(name, one) for one in group]) for name, group in self.groups.items()]

    @property
    def mixed(self) -> bool:
        """Whether baselines are beside FedGS: the divergence is that of its teams, which they do not have."""
        return len({history.settings.algorithm.is_baseline for history in self.histories.values()}) == 2

    def frame(self) -> "pandas.DataFrame":
        """Return the table as a pandas DataFrame, one row per run."""
        return data_frame(self.rows, "Comparison.frame()", "Comparison.rows")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of score, loss and divergence of all runs; with ``path`` also save it."""
        from fedgs.report.run_figures import comparison_figure, save_figure

        figure = comparison_figure(self.groups)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def __str__(self) -> str:
        columns = ("run", "algorithm", "rounds", "final", "best", "last_10", "loss", "target_round", "divergence")
        rows = [row | {"divergence": None} if self.mixed and not row["solver"] else row for row in self.means]
        cells = [[_shown(row.get(column), row.get(f"{column}_sd")) for column in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in (columns, *cells)
        ]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def compare(*histories: History | str | Path, names: Sequence[str] | None = None) -> Comparison:
    """Compare runs.

    Args:
        histories: the histories or the folders of the runs; all must have the same main metric.
        names: the names to show; by default those of the runs, or of their algorithms.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> ours = fedgs.run(task, federation, rounds=2, pick=2)
        >>> usual = fedgs.run(task, federation, algorithm="fedavg", rounds=2, pick=2)
        >>> found = fedgs.compare(ours, usual)               # or two folders; print(found) shows a table
        >>> [row["run"] for row in found.rows]
        ['fedgs', 'fedavg']
        >>> figure = found.plot("both.png")
    """
    if not histories:
        raise ConfigError("compare: give at least one history")
    runs = [load_history(one) if isinstance(one, str | Path) else one for one in histories]
    odd = next((one for one in runs if not isinstance(one, History)), None)
    if odd is not None:
        raise ConfigError(f"compare: a {type(odd).__name__} is no history; give what fedgs.run returns, or folders")
    scores = {(history.score, history.mode) for history in runs}
    if len(scores) > 1:
        first, second = sorted(scores)[:2]
        raise ConfigError(f"compare: the runs are judged by different metrics, {first[0]} and {second[0]}")
    given = list(names) if names is not None else names_of(runs)
    if len(given) != len(runs) or len(set(given)) != len(given):
        raise ConfigError(f"compare: {len(runs)} histories need as many different names, not {given}")
    return Comparison(dict(zip(given, runs, strict=True)), named=names is not None)


def names_of(histories: Sequence[History]) -> list[str]:
    """Return short names that differ: of their folders, else of their algorithms, else numbered."""
    for short in ([one.name for one in histories], [one.settings.algorithm.name for one in histories]):
        if len(set(short)) == len(short):
            return short
    paths = [str(one.folder or one.settings.algorithm.name) for one in histories]
    if len(set(paths)) == len(paths):
        return paths
    return [f"{one.settings.algorithm.name}-{number}" for number, one in enumerate(histories, start=1)]


def row_of(name: str, history: History) -> dict[str, Any]:
    """Return the results of a run in flat numbers; of one that is not finished, so far."""
    settings, target = history.settings, history.settings.eval.target
    scores = score_facts(history.metrics, history.score, history.mode, target)
    clock = [dict(line) for line in history.clock]
    total = traffic(clock, clock[-1]["round"]) if clock else None
    return {
        "run": name,
        "algorithm": settings.algorithm.name,
        "seed": settings.seed,
        "solver": None if settings.algorithm.is_baseline else settings.selection.solver,
        "rounds": len(history),
        "of_rounds": settings.training.rounds,
        "pretraining_rounds": pretraining_rounds(settings) if ":" not in settings.algorithm.name else 0,
        "score": history.score,
        "mode": history.mode,
        **scores,
        "target": target,
        "divergence": mean_of(history.metrics, "divergence"),
        "divergence_of_round": mean_of(history.metrics, "divergence_of_round"),
        "seconds": sum(line.get("seconds") or 0.0 for line in history.timings) or None,
        "simulated_seconds": elapsed(clock, clock[-1]["round"]) if clock else None,
        "simulated_seconds_to_target": elapsed(clock, scores["target_round"]) if clock else None,
        **{f"bytes_{link}": amount for link, amount in (total or {}).items()},
    }


def mean_row(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one row for runs that differ in their seed: the mean of each number, and its standard deviation."""
    first = rows[0]
    found: dict[str, Any] = {**first, "run": name, "seeds": len(rows), "rounds": min(row["rounds"] for row in rows)}
    found["reached"] = sum(row["target_round"] is not None for row in rows)
    del found["seed"]
    for key in dict.fromkeys(key for row in rows for key in row if key not in ALIKE):
        values = [row[key] for row in rows if row.get(key) is not None]
        found[key] = float(np.mean(values)) if len(values) > 1 else next(iter(values), None)
        found[f"{key}_sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return found


def _all_but_seed(history: History) -> str:
    settings = history.settings.model_dump(exclude=dict.fromkeys(("seed", *LOGGERS), True))
    facts = [history.facts.get(key) for key in ("made_of", "network", "data")]
    return json.dumps([settings, facts], sort_keys=True, default=str)


def _shared_name(names: Sequence[str]) -> str:
    """Return what names of runs have in common but for what counts their seeds: a-seed1 and a-seed2 are a."""
    stems = {_stem(name) for name in names}
    return stems.pop() if len(names) > 1 and len(stems) == 1 and "" not in stems else names[0]


def _stem(name: str) -> str:
    return re.sub(r"([\W_]+(seed|s)?[\W_]*)?\d*$", "", name)


def _shown(value: Any, deviation: float | None) -> str:
    if value is None:
        return "–"
    around = "" if deviation is None else f" ± {deviation:.2g}"
    return f"{value:.4g}{around}" if isinstance(value, float) else f"{value}{around}"
