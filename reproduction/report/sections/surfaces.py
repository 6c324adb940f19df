"""The surfaces over T, n, M and L beside the paper's, and what a larger value of each changes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from reproduction.experiments.runs import at_round
from reproduction.experiments.surfaces import SURFACES, Place, Surface, changes, numbers, papers, read, values_of
from reproduction.figures.heat_maps import HeatMap, paint_maps
from reproduction.report.markdown import DIVERGED, NOT_RUN, percent, points, table
from reproduction.report.report_inputs import ReportInputs

EVERYBODY = "†"
LABELS = {"n": "batch size n", "T": "iterations T", "M": "groups M", "L": "selected devices L"}


def section(inputs: ReportInputs) -> dict[str, Any]:
    """Return both surfaces as tables and heat maps, and the mean change along each axis."""
    found, left_out = read(inputs.results, inputs.quick)
    runs = [cell.run for cells in found.values() for cell in cells.values()]
    if not runs:
        return {}
    compare, quick = inputs.papers_size, inputs.quick
    theirs = {key: papers(key) if compare else {} for key in SURFACES}
    maps = [one for key in SURFACES for one in _maps(key, found[key], theirs[key], quick)]
    capped = any(cell.everybody for cell in found["M_L"].values())
    return {
        "settings": runs[0]["settings"],
        "tests": min([10, *(len(run["curve"]["round"]) - 1 for run in runs if not run.get("failed"))]),
        "compare": compare,
        "capped": capped,
        "tables": [
            (" and ".join(LABELS[symbol] for symbol in SURFACES[key]), _table(key, found[key], theirs[key], quick))
            for key in SURFACES
        ],
        "figure": inputs.figure(
            "surfaces", "Accuracy of FedGS in % over T and n and over M and L"
            + (", the paper's beside it" if compare else "")
            + (f" ({EVERYBODY}: all devices of a factory)" if capped else ""),
            (8.6, 2.1 * len(maps) / 2 + 1.1),
            lambda figure: paint_maps(figure, maps, 2, (0, 0, 1, 1) if compare else (0, 1))),
        "changes": table(["change", "here", "paper", "values of the other setting"], _changes(found, theirs, quick)),
        "left_out": left_out,
        "titles": {"section": ""} | {symbol: symbol for symbol in LABELS},
    }  # fmt: skip


def _table(key: str, cells: Surface, theirs: Mapping[Place, float], quick: bool) -> str:
    down, across = SURFACES[key]
    columns = values_of(across, quick)
    heads = ["", *(f"{across} = {column}" for column in columns)]
    lines = [
        [f"{down} = {line}", *(_entry(cells, (line, column), theirs.get((line, column))) for column in columns)]
        for line in reversed(values_of(down, quick))
    ]
    return table(heads, lines)


def _entry(cells: Surface, place: Place, theirs: float | None) -> str:
    cell = cells.get(place)
    if cell is None or cell.accuracy is None:
        shown = NOT_RUN if cell is None else DIVERGED
        return shown if theirs is None else f"{shown} ({100 * theirs:.1f})"
    own = percent(cell.accuracy) + (EVERYBODY if cell.everybody else "")
    return own if theirs is None else f"{own} ({100 * theirs:.1f}, {points(cell.accuracy - theirs)})"


def _maps(key: str, cells: Surface, theirs: Mapping[Place, float], quick: bool) -> list[HeatMap]:
    down, across = SURFACES[key]
    lines, columns = values_of(down, quick), values_of(across, quick)
    at = {(line, column): (i, j) for i, line in enumerate(lines) for j, column in enumerate(columns)}

    def one(title: str, values: Mapping[Place, float | None], marks: Mapping[tuple[int, int], str]) -> HeatMap:
        return HeatMap(title, [str(c) for c in columns], [str(line) for line in lines],
                       {at[place]: value for place, value in values.items()}, LABELS[across], LABELS[down],
                       marks)  # fmt: skip

    marks = {at[place]: EVERYBODY for place, cell in cells.items() if cell.everybody}
    here = one("here, accuracy in %", {place: cell.accuracy for place, cell in cells.items()}, marks)
    return [here, one("in the paper", dict(theirs), {})] if theirs else [here]


def _changes(
    found: Mapping[str, Surface], theirs: Mapping[str, Mapping[Place, float]], quick: bool
) -> Sequence[Sequence[str]]:
    """Return the mean change of accuracy along each axis, from end to end and step by step."""
    lines = []
    for key, symbols in SURFACES.items():
        for symbol in symbols:
            values = values_of(symbol, quick)
            for low, high in dict.fromkeys([(values[0], values[-1]), *pairwise(values)]):
                along = symbol == symbols[0]
                # Where both values mean all devices they are one run, whose difference to itself says nothing.
                twice = {
                    at for at, pick in found[key] if symbol == "L" and pick == low and found[key][at, low].everybody
                }
                here = changes(numbers(found[key]), along, low, high, without=twice)
                paper = changes(theirs[key], along, low, high) if theirs[key] else []
                lines.append([f"{symbol} = {low} → {high}", *(points(fmean(gaps), 2) if gaps else "" for gaps in
                              (here, paper)), str(len(here))])  # fmt: skip
    return [*lines, *_same_iterations(found["T_n"])]


def _same_iterations(cells: Surface) -> list[list[str]]:
    """Compare the smallest and the largest T after the same number of iterations: a larger T also trains longer."""
    reached = numbers(cells)
    gaps: dict[str, list[float]] = {}
    for batch in sorted({column for _, column in reached}):
        own = sorted(line for line, column in reached if column == batch)
        few, many = own[0], own[-1]
        rounds = cells[few, batch].run["settings"]["training"]["rounds"]
        after, rest = divmod(rounds * few, many)
        early = at_round(cells[many, batch].run, after) if few < many and not rest else None
        late = at_round(cells[few, batch].run, rounds)
        if early is not None and late is not None:
            title = f"T = {few} → {many}, both after {rounds * few:,} iterations (round {rounds}, round {after})"
            gaps.setdefault(title, []).append(early - late)
    return [[title, points(fmean(gap), 2), "", str(len(gap))] for title, gap in gaps.items()]
