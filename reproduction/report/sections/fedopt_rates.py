"""The learning rates of FedOpt: a map a rule, the best cell, Table II's cell, and how much the rates matter."""

from collections.abc import Mapping

from reproduction.experiments.fedopt_rates import Map, Place, grids, on_edge, place_of, read, scores, table_rates
from reproduction.experiments.measures import LEARNT, late_tests
from reproduction.experiments.table2 import ROWS, papers_row
from reproduction.figures.heat_maps import ASTRAY, HeatMap, paint_maps
from reproduction.report.markdown import bullets, every, left_out_in_words, listing, percent, plural, points, table
from reproduction.report.report_inputs import Material

SENSITIVE = 0.05
"""From which difference between the best and the worst cell on a rule is called sensitive: five points."""
NEAR = 0.01
"""Cells within a point of the best are counted."""


def write(material: Material) -> list[str]:
    """Write the section."""
    found, left_out = read(material.results, material.quick)
    runs = [cell.run for cells in found.values() for cell in cells.values()]
    if not runs:
        return []
    training, tests = (runs[0]["settings"][key] for key in ("training", "eval"))
    whole = next((run for run in runs if not run.get("failed")), None)
    late = f" ({plural(late_tests(whole), 'test')}, one {every(tests['every'])})" if whole else ""
    best = {rule: max(own, key=lambda place: own[place]) for rule, cells in found.items() if (own := scores(cells))}
    maps = [_map(rule, found[rule], best.get(rule), material) for rule in found]
    lines = -(-len(maps) // 2)
    remark = material.remark("fedopt-rates").strip()
    return [
        "## The learning rates of FedOpt",
        f"Accuracy over the learning rate of the devices and that of the server, {training['rounds']} rounds a cell, "
        f"seed {runs[0]['settings']['seed']}: the mean of the tests in the last quarter of the rounds{late}. The "
        "paper's grid is in its picture alone, without numbers in the text; this one is our choice, in steps of "
        "√10. **Table II's rows have rates set beforehand, the defaults of their rules, not the best cells found "
        "here**; a cell has fewer rounds than a row of the table.",
        material.figure("fedopt-rates", "Accuracy in % over the rates of devices and server, a panel a rule",
                        (8.6, 2.3 * lines + 0.5),
                        lambda figure: paint_maps(figure, maps, 2, [0] * len(maps), ("best cell", "Table II's rates"))),
        table(*_table(found, best, material.quick), left=2),
        bullets([
            *(_sentence(rule, found[rule], best.get(rule), material) for rule in found),
            *_claim(found, best, material.quick),
            *_missing(found, material.quick, left_out),
        ]),
        *([remark] if remark else []),
    ]  # fmt: skip


def _map(rule: str, cells: Map, best: Place | None, material: Material) -> HeatMap:
    grid = grids(material.quick)[rule]
    at = {(client, server): (grid.client.index(client), grid.server.index(server)) for client, server in grid.places}
    usual = place_of(grid, *table_rates(rule, material.results))
    return HeatMap(
        ROWS[rule].title, [_rate(server) for server in grid.server], [_rate(client) for client in grid.client],
        {at[place]: cell.score for place, cell in cells.items()}, "rate of the server", "rate of the devices", {},
        [None if place is None else at[place] for place in (best, usual)],
    )  # fmt: skip


def _table(found: Mapping[str, Map], best: Mapping[str, Place], quick: bool) -> tuple[list[str], list[list[str]]]:
    shown = {rule: grids(quick)[rule] for rule in found}
    servers = sorted({rate for grid in shown.values() for rate in grid.server})
    lines = []
    for rule, grid in shown.items():
        for client in grid.client:
            line = [ROWS[rule].title, _rate(client)]
            for server in servers:
                line.append(_entry(found[rule], (client, server), best.get(rule)) if server in grid.server else "")
            lines.append(line)
    return ["rule", "devices", *(f"server {_rate(server)}" for server in servers)], lines


def _entry(cells: Map, place: Place, best: Place | None) -> str:
    if place not in cells:
        return "not run"
    score = cells[place].score
    if score is None:
        return ASTRAY
    return f"**{percent(score)}**" if place == best else percent(score)


def _rate(rate: float) -> str:
    return f"{rate:.3g}"


def _cell(place: Place) -> str:
    return f"devices {_rate(place[0])}, server {_rate(place[1])}"


def _sentence(rule: str, cells: Map, best: Place | None, material: Material) -> str:
    """Say which cell of a rule is best, what Table II's has, and how far apart the cells are."""
    grid, own, title = grids(material.quick)[rule], scores(cells), ROWS[rule].title
    if best is None:
        return f"**{title}** went astray in every cell that was run." + material.remark("fedopt-rates", rule)
    text = f"**{title}** is best at {_cell(best)}: {percent(own[best])}"
    if len(cells) == len(grid.places) and on_edge(grid, best) and not material.quick:
        text += ", on the edge of the grid: beyond it might be better still"
    usual = table_rates(rule, material.results)
    place = place_of(grid, *usual)
    if place is None:
        text += f". Table II's rates ({_cell(usual)}) are not in the grid"
    elif place not in cells:
        text += f". Table II's cell ({_cell(usual)}) has not been run"
    elif place == best:
        text += "; these are Table II's rates"
    elif place not in own:
        text += f". Table II's cell ({_cell(usual)}) went astray"
    else:
        text += f". Table II's cell ({_cell(usual)}) has {percent(own[place])}, {points(own[place] - own[best])} points"
    if len(own) > 1:
        worst = min(own, key=lambda one: own[one])
        near = sum(own[best] - value <= NEAR for value in own.values())
        text += (
            f". From the best cell to the worst ({_cell(worst)}) it is {100 * _range(cells):.1f} points; "
            f"{near} of {len(cells)} cells are within a point of the best"
        )
    astray, nothing = len(cells) - len(own), sum(value < LEARNT for value in own.values())
    text += f", {astray} went astray" if astray else ""
    text += f", {nothing} learnt nothing (below {percent(LEARNT, 0)})" if nothing and not material.quick else ""
    return f"{text}." + material.remark("fedopt-rates", rule)


def _range(cells: Map) -> float:
    own = scores(cells).values()
    return max(own) - min(own) if own else 0.0


def sensitive(cells: Map) -> bool:
    """Return whether the rates matter much: a cell went astray, or five points lie between the best and the worst."""
    return _range(cells) >= SENSITIVE or len(scores(cells)) < len(cells)


def _claim(found: Mapping[str, Map], best: Mapping[str, Place], quick: bool) -> list[str]:
    """Judge the paper's sentence on sensitivity, on the rules whose grid is complete."""
    whole = {rule: cells for rule, cells in found.items() if len(cells) == len(grids(quick)[rule].places)}
    if quick or not whole:
        return []
    yes = [ROWS[rule].title for rule, cells in whole.items() if sensitive(cells)]
    no = [ROWS[rule].title for rule in whole if ROWS[rule].title not in yes]
    what = f"{100 * SENSITIVE:g} points or more between the cells of the grid, or a run that goes astray"
    claim = f'"particularly sensitive to initial learning rates" ({what})'
    if not no:
        text = f"The paper's claim {claim} **holds** here for {listing(yes)}"
    elif not yes:
        text = f"The paper's claim {claim} **does not hold** here: not for {listing(no)}"
    else:
        text = f"The paper's claim {claim} **holds in part**: for {listing(yes)}, not for {listing(no)}"
    tops = [scores(found[rule])[best[rule]] for rule in whole if rule in best]
    theirs = [row[0] for rule in whole if (row := papers_row(rule)) is not None]
    if len(tops) > 1:
        text += (
            f". The best cells of these rules lie within {100 * (max(tops) - min(tops)):.1f} points of each other, the "
            f"paper's rows within {100 * (max(theirs) - min(theirs)):.1f}"
        )
    return [f"{text}."]


def _missing(found: Mapping[str, Map], quick: bool, left_out: int) -> list[str]:
    gone = []
    for rule, grid in grids(quick).items():
        lacking = len(grid.places) - len(found.get(rule, {}))
        gone += [f"{lacking} of {len(grid.places)} cells of {ROWS[rule].title}"] if lacking else []
    sentences = [f"Not run yet: {listing(gone)}."] if gone else []
    return [*sentences, *left_out_in_words(left_out)]
