"""The learning rates of FedOpt: a heat map per rule, its best cell, and the cell Table II used."""

from collections.abc import Mapping
from typing import Any

from reproduction.experiments.fedopt_rates import Map, Place, grids, on_edge, place_of, read, scores, table_rates
from reproduction.experiments.runs import LEARNT, late_tests
from reproduction.experiments.table2 import ROWS
from reproduction.figures.heat_maps import HeatMap, paint_maps
from reproduction.report.markdown import DIVERGED, NOT_RUN, percent, points, table
from reproduction.report.report_inputs import ReportInputs

NEAR = 0.01
"""Cells within a point of the best are counted."""


def section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the heat maps, their numbers, and a line per rule on its best, worst and usual cell."""
    found, left_out = read(inputs.results, inputs.quick)
    runs = [cell.run for cells in found.values() for cell in cells.values()]
    if not runs:
        return {}
    settings = runs[0]["settings"]
    best = {rule: max(own, key=lambda place: own[place]) for rule, cells in found.items() if (own := scores(cells))}
    maps = [_map(rule, found[rule], best.get(rule), inputs) for rule in found]
    heads = ["rule", "cells", "best: client, server", "accuracy", "on the edge", "Table II: client, server",
             "accuracy", "Δ", "worst: client, server", "accuracy", "within a point of the best", DIVERGED,
             f"below {percent(LEARNT, 0)}"]  # fmt: skip
    return {
        "rounds": settings["training"]["rounds"],
        "seed": settings["seed"],
        "tests": next((late_tests(run) for run in runs if not run.get("failed")), 0),
        "every": settings["eval"]["every"],
        "figure": inputs.figure(
            "fedopt-rates", "Accuracy in % over the learning rates of clients and server, one panel per rule",
            (8.6, 2.3 * -(-len(maps) // 2) + 0.5),
            lambda figure: paint_maps(figure, maps, 2, [0] * len(maps), ("best cell", "Table II's rates"))),
        "table": table(*_table(found, best, inputs.quick), left=2),
        "summary": table(heads, [_summary(rule, cells, best.get(rule), inputs) for rule, cells in found.items()]),
        "left_out": left_out,
        "titles": {"section": ""} | {rule: ROWS[rule].title for rule in found},
    }  # fmt: skip


def _map(rule: str, cells: Map, best: Place | None, inputs: ReportInputs) -> HeatMap:
    grid = grids(inputs.quick)[rule]
    at = {(client, server): (grid.client.index(client), grid.server.index(server)) for client, server in grid.places}
    usual = place_of(grid, *table_rates(rule, inputs.results))
    return HeatMap(
        ROWS[rule].title, [_rate(server) for server in grid.server], [_rate(client) for client in grid.client],
        {at[place]: cell.score for place, cell in cells.items()}, "server learning rate", "client learning rate", {},
        [None if place is None else at[place] for place in (best, usual)],
    )  # fmt: skip


def _table(found: Mapping[str, Map], best: Mapping[str, Place], quick: bool) -> tuple[list[str], list[list[str]]]:
    shown = grids(quick)
    servers = sorted({rate for rule in found for rate in shown[rule].server})
    lines = []
    for rule, cells in found.items():
        for client in shown[rule].client:
            line = [ROWS[rule].title, _rate(client)]
            for server in servers:
                text = _score(cells, (client, server)) if server in shown[rule].server else ""
                line.append(f"**{text}**" if (client, server) == best.get(rule) else text)
            lines.append(line)
    return ["rule", "client", *(f"server {_rate(server)}" for server in servers)], lines


def _score(cells: Map, place: Place | None) -> str:
    if place not in cells:
        return NOT_RUN
    score = cells[place].score
    return DIVERGED if score is None else percent(score)


def _rate(rate: float) -> str:
    return f"{rate:.3g}"


def _summary(rule: str, cells: Map, best: Place | None, inputs: ReportInputs) -> list[str]:
    grid, own = grids(inputs.quick)[rule], scores(cells)
    usual = table_rates(rule, inputs.results)
    place = place_of(grid, *usual)
    line = [ROWS[rule].title, f"{len(cells)} of {len(grid.places)}"]
    usually = ", ".join(map(_rate, usual)), "not in the grid" if place is None else _score(cells, place)
    gone = str(len(cells) - len(own))
    if best is None:
        return [*line, "", "", "", *usually, "", "", "", "", gone, ""]
    worst = min(own, key=lambda one: own[one])
    return [
        *line, ", ".join(map(_rate, best)), percent(own[best]), "yes" if on_edge(grid, best) else "no", *usually,
        points(own[place] - own[best]) if place in own else "", ", ".join(map(_rate, worst)), percent(own[worst]),
        str(sum(own[best] - value <= NEAR for value in own.values())), gone,
        str(sum(value < LEARNT for value in own.values())),
    ]  # fmt: skip
