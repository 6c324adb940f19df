"""The surfaces over T, n, M and L beside the paper's, and what a larger one of each does here."""

from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean

from reproduction.experiments.measures import at_round
from reproduction.experiments.surfaces import (
    SURFACES,
    Place,
    Surface,
    changes,
    numbers,
    papers,
    read,
    values_of,
    widest,
)
from reproduction.figures.heat_maps import HeatMap, paint_maps
from reproduction.report.markdown import bullets, every, left_out_in_words, listing, percent, plural, points, table
from reproduction.report.report_inputs import Material

HELPS = 0.0015
"""From which mean difference on, 0.15 points, a larger setting is said to help or to harm."""
LITTLE = 0.005
"""Up to which difference a setting has little effect: half a point; the paper's largest over n is 0.4."""
EVERYBODY = "†"
WORDS = {"T": "T", "M": "number of groups M", "L": "number of selected devices L"}
OTHER = {"T": "n", "M": "L", "L": "M"}
"""The other axis of the same surface."""
TITLES = {"T_n": "iterations T and batch size n", "M_L": "groups M and selected devices L"}
NOT_TESTED = "At this size, after so few rounds, what T, n, M and L do to accuracy is not tested."
SHOWN_MISSING = 6


def write(material: Material) -> list[str]:
    """Write the section."""
    found, left_out = read(material.results, material.quick)
    runs = [cell.run for cells in found.values() for cell in cells.values()]
    if not runs:
        return []
    compare = material.papers_size
    theirs = {key: papers(key) if compare else {} for key in SURFACES}
    training, tests = (runs[0]["settings"][key] for key in ("training", "eval"))
    late = min([10, *(len(run["curve"]["round"]) - 1 for run in runs if not run.get("failed"))])
    blocks = [
        "## The surfaces over T, n, M and L",
        f"FedGS with GBP-CS, {training['rounds']} rounds, learning rate {training['learning_rate']:g}, seed "
        f"{runs[0]['settings']['seed']}; each surface varies two settings and leaves the other two as they are in "
        f"Table II. The number is the mean accuracy of the last {late} tests, one "
        f"{every(tests['every'])}, on the same test samples in every cell; L_rnd is a fifth of L."
        + (" In brackets the paper's and the difference to it, in points." if compare else ""),
    ]  # fmt: skip
    for key in SURFACES:
        blocks += [f"### Over {TITLES[key]}", _table(key, found[key], theirs[key], material.quick)]
    maps = [one for key in SURFACES for one in _maps(key, found[key], theirs[key], material.quick)]
    groups = (0, 0, 1, 1) if compare else (0, 1)
    blocks.append(
        material.figure("surfaces", "Accuracy of FedGS in % over T and n and over M and L"
                        + (", the paper's beside it" if compare else "")
                        + (f" ({EVERYBODY}: all devices of a factory)" if _capped(found["M_L"]) else ""),
                        (8.6, 2.1 * len(maps) / 2 + 1.1),
                        lambda figure: paint_maps(figure, maps, 2, groups))
    )  # fmt: skip
    said = [*_sentences(found, theirs, material), *_same_iterations(found["T_n"])] if compare else [NOT_TESTED]
    sentences = [
        *said,
        *_cap(found["M_L"], theirs["M_L"]),
        *_missing(found, material.quick, left_out),
    ]
    remark = material.remark("surfaces").strip()
    return [*blocks, bullets(sentences), *([remark] if remark else [])]


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
        shown = "not run" if cell is None else "astray"
        return shown if theirs is None else f"{shown} ({100 * theirs:.1f})"
    mark = EVERYBODY if cell.everybody else ""
    own = percent(cell.accuracy) + mark
    return own if theirs is None else f"{own} ({100 * theirs:.1f}, {points(cell.accuracy - theirs)})"


def _maps(key: str, cells: Surface, theirs: Mapping[Place, float], quick: bool) -> list[HeatMap]:
    down, across = SURFACES[key]
    lines, columns = values_of(down, quick), values_of(across, quick)
    at = {(line, column): (i, j) for i, line in enumerate(lines) for j, column in enumerate(columns)}
    labels = {"n": "batch size n", "T": "iterations T", "M": "groups M", "L": "selected devices L"}

    def one(title: str, values: Mapping[Place, float | None], marks: Mapping[tuple[int, int], str]) -> HeatMap:
        return HeatMap(title, [str(c) for c in columns], [str(line) for line in lines],
                       {at[place]: value for place, value in values.items()}, labels[across], labels[down],
                       marks)  # fmt: skip

    marks = {at[place]: EVERYBODY for place, cell in cells.items() if cell.everybody}
    here = one("here, accuracy in %", {place: cell.accuracy for place, cell in cells.items()}, marks)
    return [here, one("in the paper", dict(theirs), {})] if theirs else [here]


def _sentences(
    found: Mapping[str, Surface], theirs: Mapping[str, Mapping[Place, float]], material: Material
) -> list[str]:
    sentences = [
        _trend("T", found["T_n"], theirs["T_n"], material),
        _batch_size(numbers(found["T_n"]), theirs["T_n"], material),
        _trend("M", found["M_L"], theirs["M_L"], material),
        _trend("L", found["M_L"], theirs["M_L"], material),
    ]
    for key in SURFACES:
        accuracy = numbers(found[key])
        gaps = {place: accuracy[place] - theirs[key][place] for place in accuracy if place in theirs[key]}
        if gaps:
            far = max(gaps, key=lambda place: abs(gaps[place]))
            sentences.append(
                f"Over {TITLES[key]} the accuracy here is {points(fmean(gaps.values()))} points from the paper's on "
                f"average of {plural(len(gaps), 'cell')}; furthest away is {_name(key, far)} "
                f"({points(gaps[far])})."
            )
    return sentences


def verdict(change: float) -> str:
    """Say what a mean difference between the least and the largest value means."""
    return "helps" if change >= HELPS else "harms" if change <= -HELPS else "makes little difference"


def _trend(symbol: str, cells: Surface, theirs: Mapping[Place, float], material: Material) -> str:
    """Say whether a larger setting helps, step by step, and whether it does in the paper."""
    accuracy, lines, other = numbers(cells), symbol != "L", OTHER[symbol]
    values = values_of(symbol, material.quick)
    whole = changes(accuracy, lines, values[0], values[-1])
    if not whole:
        return f"Whether a larger {WORDS[symbol]} helps cannot be said yet: too few cells have been run."
    said = verdict(fmean(whole))
    steps = []
    for low, high in pairwise(values):
        # Where both mean everybody they are one run, whose difference to itself says nothing.
        twice = {at for at, pick in cells if symbol == "L" and pick == low and cells[at, low].everybody}
        step = changes(accuracy, lines, low, high, without=twice)
        steps += [f"{points(fmean(step), 2)} from {low} to {high}"] if step else []
    text = (
        f"A larger {WORDS[symbol]} **{said}** here: {points(fmean(whole), 2)} points from {symbol} = {values[0]} to "
        f"{values[-1]} on average, upwards at {sum(change > 0 for change in whole)} of "
        f"{plural(len(whole), 'value')} of {other}"
    )
    text += f" ({', '.join(steps)})" if len(steps) > 1 else ""
    papers_change = fmean(changes(theirs, lines, values[0], values[-1]))
    alike = "as in" if said == verdict(papers_change) else "unlike in"
    return f"{text}; {alike} the paper, which has {points(papers_change, 2)}." + material.remark("surfaces", symbol)


def _batch_size(accuracy: Mapping[Place, float], theirs: Mapping[Place, float], material: Material) -> str:
    """Say how much the batch size matters: the largest difference over n at one T."""
    at, papers_at = widest(accuracy), widest(theirs)
    if at is None or papers_at is None:
        return "Whether the batch size n matters cannot be said yet: too few cells have been run."
    iterations, worst, best = at
    spread = accuracy[iterations, best] - accuracy[iterations, worst]
    papers_spread = theirs[papers_at[0], papers_at[2]] - theirs[papers_at[0], papers_at[1]]
    said = "has little effect" if spread <= LITTLE else "matters"
    alike = "as in" if (papers_spread <= LITTLE) == (spread <= LITTLE) else "unlike in"
    return (
        f"The batch size n **{said}** here: the largest difference over n at one T is {100 * spread:.2f} points (T = "
        f"{iterations}: n = {worst} {percent(accuracy[iterations, worst])}, n = {best} "
        f"{percent(accuracy[iterations, best])}), {alike} the paper, where it is {100 * papers_spread:.1f} (T = "
        f"{papers_at[0]})." + material.remark("surfaces", "n")
    )


def _same_iterations(cells: Surface) -> list[str]:
    """Compare the least and the largest T after the same number of iterations: a larger T also trains longer."""
    reached = numbers(cells)
    pairs = []
    for batch in sorted({column for _, column in reached}):
        own = sorted(line for line, column in reached if column == batch)
        few, many = own[0], own[-1]
        rounds = cells[few, batch].run["settings"]["training"]["rounds"]
        after, rest = divmod(rounds * few, many)
        early = at_round(cells[many, batch].run, after) if few < many and not rest else None
        late = at_round(cells[few, batch].run, rounds)
        if early is not None and late is not None:
            pairs.append((few, many, rounds, after, early - late))
    if not pairs:
        return []
    few, many, rounds, after, _ = pairs[0]
    same = [gap for *which, gap in pairs if which == [few, many, rounds, after]]
    gap = fmean(same)
    said = "a larger T still helps" if gap >= HELPS else "a larger T harms" if gap <= -HELPS else "T matters little"
    return [
        f"A larger T also means more iterations in as many rounds. After the same {rounds * few:,} iterations (round "
        f"{rounds} with T = {few}, round {after} with T = {many}) {said}: {points(gap, 2)} points with T = {many} on "
        f"average of {plural(len(same), 'value')} of n."
    ]


def _capped(cells: Surface) -> dict[Place, str]:
    """Return the cells where L means everybody, with the sizes of their factories in words."""
    found = {}
    for place, cell in cells.items():
        if cell.everybody:
            least, rest = divmod(cell.run["devices"], cell.run["factories"])
            found[place] = f"{least} or {least + 1}" if rest else f"{least}"
    return found


def _cap(cells: Surface, theirs: Mapping[Place, float]) -> list[str]:
    capped = _capped(cells)
    if not capped:
        return []
    by_factories: dict[int, list[int]] = {}
    for factories, pick in capped:
        by_factories.setdefault(factories, []).append(pick)
    told = [
        f"with M = {factories} a factory has {capped[factories, picks[0]]} devices, so "
        f"{listing([f'L = {pick}' for pick in picks])} {'means' if len(picks) == 1 else 'mean'} everybody"
        + (" and are one run" if len(picks) > 1 else "")
        for factories, picks in by_factories.items()
    ]
    text = f"Where L is more than a factory has ({EVERYBODY}), all its devices are taken: {'; '.join(told)}."
    for factories, picks in by_factories.items():
        if len(picks) > 1 and {(factories, picks[0]), (factories, picks[-1])} <= set(theirs):
            gap = theirs[factories, picks[-1]] - theirs[factories, picks[0]]
            text += (
                f" In the paper these cells of M = {factories} differ by {abs(100 * gap):.1f} points, which selection "
                "can hardly explain."
            )
    return [text]


def _missing(found: Mapping[str, Surface], quick: bool, left_out: int) -> list[str]:
    wanted = {key: [(line, column) for line in values_of(down, quick) for column in values_of(across, quick)]
             for key, (down, across) in SURFACES.items()}  # fmt: skip
    gone = [_name(key, place) for key in SURFACES for place in wanted[key] if place not in found[key]]
    astray = [_name(key, place) for key, cells in found.items() for place, cell in cells.items()
              if cell.accuracy is None]  # fmt: skip
    sentences = []
    if gone:
        many = f"{len(gone)} of {sum(map(len, wanted.values()))} cells"
        sentences.append(f"Not run yet: {listing(gone) if len(gone) <= SHOWN_MISSING else many}.")
    if astray:
        sentences.append(f"Went astray: {listing(astray)}.")
    return [*sentences, *left_out_in_words(left_out)]


def _name(key: str, place: Place) -> str:
    return ", ".join(f"{symbol} = {value}" for symbol, value in zip(SURFACES[key], place, strict=True))
