"""The picture of a sweep: a heat map of the score, a cell for each combination of the values."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.report.run_figures import new_figure, save_figure
from fedgs.report.units import readable_score


def draw_sweep(path: Path, rows: Sequence[Mapping[str, Any]], grid: Mapping[str, Sequence[Any]], score: str) -> Path:
    """Draw the mean scores of a sweep: rows are the first key's values, columns those of all others."""
    down, *across = grid
    ups = [str(value) for value in grid[down]]
    columns = list(product(*([str(value) for value in grid[key]] for key in across)))
    cells = {tuple(str(row[key]) for key in grid): row for row in rows}
    means = np.array([[_final(cells.get((up, *column))) for column in columns] for up in ups])
    figure, (axes,) = new_figure(1, size=(2.4 + 1.25 * max(2, len(columns)), 1.6 + 0.5 * len(ups)))
    lower = any(row.get("mode") == "min" for row in rows)
    shown = axes.imshow(np.ma.masked_invalid(means), cmap="viridis_r" if lower else "viridis", aspect="auto")
    axes.set_facecolor("#dddddd")  # of cells without a score
    middle = float(np.nanmean([np.nanmin(means), np.nanmax(means)])) if np.isfinite(means).any() else 0.0
    for (y, x), mean in np.ndenumerate(means):
        row = cells.get((ups[y], *columns[x]))
        text = "diverged" if row and row["final"] is None else "" if row is None else _text(row, score)
        dark = mean > middle if lower else mean < middle  # the better, the brighter
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_yticks(range(len(ups)), ups, fontsize=8)
    axes.set_xticks(range(len(columns)), [", ".join(one) for one in columns], fontsize=8)
    axes.set(ylabel=down, xlabel=", ".join(across))
    axes.grid(visible=False)
    figure.colorbar(shown, ax=axes, label=f"{score}, final")
    return save_figure(figure, path)


def _final(row: Mapping[str, Any] | None) -> float:
    return float("nan") if row is None or row["final"] is None else float(row["final"])


def _text(row: Mapping[str, Any], score: str) -> str:
    failed = f"\n{row['failed']} diverged" if row["failed"] else ""
    return readable_score(score, row["final"], 2, row["final_sd"]) + failed
