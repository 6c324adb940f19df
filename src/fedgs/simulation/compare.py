"""``fedgs.compare``: several runs in one table and one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.errors import ConfigError
from fedgs.simulation.components import pretraining_rounds
from fedgs.simulation.history import History, data_frame, load_history
from fedgs.simulation.run_clock import elapsed, traffic
from fedgs.simulation.summary import mean_of, score_facts

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison:
    """Several runs to be compared."""

    histories: Mapping[str, History]
    """By the name they are shown with."""

    @property
    def score(self) -> str:
        """The metric all runs are judged by."""
        return next(iter(self.histories.values())).score

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One flat dict a run: rounds, final, best and last scores, round of the target, divergence, time and bytes."""
        return [row_of(name, history) for name, history in self.histories.items()]

    def frame(self) -> "pandas.DataFrame":
        """Return the table as a pandas DataFrame, a row a run."""
        return data_frame(self.rows, "Comparison.frame()", "Comparison.rows")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a picture of score, loss and divergence of all runs; ``path``: also write it."""
        from fedgs.report.run_figures import comparison_figure, save_figure

        figure = comparison_figure(self.histories)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def __str__(self) -> str:
        columns = ("run", "algorithm", "rounds", "final", "best", "last_10", "loss", "target_round", "divergence")
        cells = [[_shown(row.get(column)) for column in columns] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in (columns, *cells)
        ]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def compare(*histories: History | str | Path, names: Sequence[str] | None = None) -> Comparison:
    """Compare runs.

    Args:
        histories: of the runs, or their folders; they are judged by the same metric.
        names: what to call them; by default their own names, or their algorithms.

    Examples:
        >>> import fedgs
        >>> print(fedgs.compare("runs/a", "runs/b"))     # doctest: +SKIP
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
    return Comparison(dict(zip(given, runs, strict=True)))


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
        "solver": None if settings.algorithm.is_baseline else settings.selection.solver,
        "rounds": len(history),
        "of_rounds": settings.training.rounds,
        "pretraining_rounds": pretraining_rounds(settings) if ":" not in settings.algorithm.name else 0,
        "score": history.score,
        **scores,
        "target": target,
        "divergence": mean_of(history.metrics, "divergence"),
        "divergence_of_round": mean_of(history.metrics, "divergence_of_round"),
        "seconds": sum(line.get("seconds") or 0.0 for line in history.timings) or None,
        "simulated_seconds": elapsed(clock, clock[-1]["round"]) if clock else None,
        "simulated_seconds_to_target": elapsed(clock, scores["target_round"]) if clock else None,
        **{f"bytes_{link}": amount for link, amount in (total or {}).items()},
    }


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
