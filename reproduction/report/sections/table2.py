"""Table II and its curves, row by row beside the paper's."""

from reproduction.experiments.parts import Result, Results
from reproduction.experiments.resolved import resolved_of
from reproduction.experiments.table2 import PREFIX, ROWS, Outcome, outcomes, papers_row, row_of, runs_of
from reproduction.figures.table2 import FAMILIES, far_down, paint_curves, paint_rows
from reproduction.report.markdown import (
    bullets,
    left_out_in_words,
    listing,
    number,
    percent,
    plural,
    points,
    rounds,
    share,
    table,
    with_range,
)
from reproduction.report.report_inputs import Material

DIFFERS, LOSS_DIFFERS, ROUNDS_DIFFER = 0.005, 0.03, 0.15
"""From which difference a row gets a sentence: half a point, 0.03 of loss, 15 % of the rounds."""
FAR = 0.015


def write(material: Material) -> list[str]:
    """Write the section on the table."""
    found = outcomes(material.results)
    if not found:
        return []
    known, left_out = runs_of(material.results)
    runs = list(known.values())
    target, every, length = (
        runs[0]["settings"][a][b] for a, b in (("eval", "target"), ("eval", "every"), ("training", "rounds"))
    )
    compare = material.papers_size
    theirs = ["paper"] if compare else []
    heads = ["", "accuracy", *theirs, *(["Δ"] if compare else []), "last ten", "best", "loss", *theirs,
             f"rounds to {share(target)}", *theirs]  # fmt: skip
    lines = [_line(key, found.get(key), compare) for key in ROWS]
    blocks = [
        "## Table II: FedGS against ten baselines",
        f"{plural(length, 'round')} each. Accuracy and loss are those of the last round, the mean over seeds with the "
        "least and the most where there are several; *last ten* is the mean of the last ten tests, *best* the highest "
        f"of all tests and seeds. Tests are made every {every} rounds: *rounds to {share(target)}* is the first tested "
        f"round that is there, so up to {plural(every - 1, 'round')} later than a test after every round would say; × "
        f"is never. Rows in italics are not in the paper. {_what_a_seed_is(runs[0])}",
        table(heads, lines),
        material.figure("table2", "Accuracy of every row that was run" + (", the paper's beside it" if compare else ""),
                        (7.6, 0.3 * len(found) + 1.5),
                        lambda figure: paint_rows(figure, found, compare)),
    ]  # fmt: skip
    missing = [ROWS[key].title for key in ROWS if key not in found]
    sentences = [f"Not run yet: {listing(missing)}."] if missing else []
    sentences += left_out_in_words(left_out)
    if compare:
        sentences += _sentences(found, length, target, material)
    sentences += [f"{ROWS[key].title} went astray: {why}" for key, row in found.items() for why in row.failed]
    remark = material.remark("table2").strip()
    choices = _choices(found)
    chosen = ["Where the paper is silent, and the rows it has not:", choices] if choices else []
    return [*blocks, bullets(sentences), *chosen, *[text for text in (_rates(material), remark) if text]]


def _line(key: str, row: Outcome | None, compare: bool) -> list[str]:
    theirs = papers_row(key)
    title = ROWS[key].title if ROWS[key].paper else f"*{ROWS[key].title}*"
    shown = ["", "", ""] if theirs is None else [percent(theirs[0]), number(theirs[1]), rounds(theirs[2])]
    accuracy, loss, to_target = ([text] if compare else [] for text in shown)
    if row is None or not row.ran:
        gone = "astray" if row is not None else "not run"
        return [title, gone, *accuracy, *([""] if compare else []), "", "", "", *loss, "", *to_target]
    gap = [points(row.mean - theirs[0]) if theirs else ""] if compare else []
    return [
        title, with_range(row.final), *accuracy, *gap, percent(sum(row.last_ten) / len(row.last_ten)),
        percent(max(row.best)), number(row.mean_loss), *loss, listing_of_rounds(row), *to_target,
    ]  # fmt: skip


def _what_a_seed_is(run: Result) -> str:
    tests = run.get("test_samples")
    text = "A seed draws the split into train and test samples, the factories, the first weights and all batches anew"
    if not tests:
        return f"{text}."
    accuracy = run["curve"]["accuracy"][-1]
    error = (accuracy * (1 - accuracy) / tests) ** 0.5
    return f"{text}; an accuracy on {tests:,} test samples has by itself a standard error of {100 * error:.1f} points."


def listing_of_rounds(row: Outcome) -> str:
    """Write the rounds to the target, seed by seed where there are several."""
    return ", ".join(rounds(value) for value in row.rounds)


def _sentences(found: dict[str, Outcome], length: int, target: float, material: Material) -> list[str]:
    """Write a sentence on every row that differs from the paper's, and one on those that do not."""
    sentences, alike = [], []
    for key, row in found.items():
        theirs = papers_row(key)
        if theirs is None or not row.ran:
            continue
        parts = differences(row, theirs, length, target)
        if parts:
            sentences.append(f"**{ROWS[key].title}** {'; '.join(parts)}." + material.remark("table2", key))
        else:
            alike.append(ROWS[key].title + material.remark("table2", key))
    if alike:
        sentences.insert(0, f"As in the paper, within {100 * DIFFERS:g} points, {LOSS_DIFFERS:g} of loss and "
                            f"{share(ROUNDS_DIFFER)} of the rounds: {listing(alike)}.")  # fmt: skip
    far = [
        f"{ROWS[key].title} ({points(row.mean - theirs[0])})"
        for key, row in found.items()
        if row.ran and (theirs := papers_row(key)) is not None and abs(row.mean - theirs[0]) > FAR
    ]
    none = f"No row is more than {100 * FAR:g} points from the paper's."
    sentences.append(f"More than {100 * FAR:g} points from the paper: {listing(far)}." if far else none)
    return sentences


def _choices(found: dict[str, Outcome]) -> str:
    """Say what was chosen where the paper is silent, and what the rows are that it has not."""
    rows_of: dict[str, list[str]] = {}
    for key in found:
        if ROWS[key].note:
            rows_of.setdefault(ROWS[key].note, []).append(ROWS[key].title)
    return bullets([f"{listing(titles)}: {note}." for note, titles in rows_of.items()])


def _rates(material: Material) -> str:
    """Name the learning rates of rows that have their own."""
    told = []
    for key in ROWS:
        run = material.first(f"{PREFIX}{key}-seed-")
        if run is None:
            continue
        used = run.get("resolved") or resolved_of(run["settings"])
        if "server_lr" in used["options"] and ROWS[key].family == "FedOpt":
            told.append(f"{ROWS[key].title} {used['learning_rate']:.3g} and {used['options']['server_lr']:.3g}")
    return f"Learning rates of devices and server: {listing(told)}." if told else ""


def differences(row: Outcome, theirs: tuple[float, float, int | None], length: int, target: float) -> list[str]:
    """Say in what a row differs from the paper's; empty: in nothing that counts."""
    parts = []
    gap = row.mean - theirs[0]
    if abs(gap) >= DIFFERS:
        way = "above" if gap > 0 else "below"
        parts.append(f"ends {abs(100 * gap):.1f} points {way} the paper ({percent(row.mean)}, {percent(theirs[0])})")
    if abs(row.mean_loss - theirs[1]) >= LOSS_DIFFERS:
        way = "higher" if row.mean_loss > theirs[1] else "lower"
        parts.append(f"has a {way} loss ({row.mean_loss:.3f}, {theirs[1]:.3f})")
    reached = row.mean_rounds
    if reached is None and theirs[2] is not None:
        never = "never" if not any(row.rounds) else "not with every seed"
        parts.append(f"{never} reaches {share(target)} in {length} rounds (paper: round {theirs[2]})")
    elif reached is not None and theirs[2] is None:
        parts.append(f"reaches {share(target)} in round {reached:g}, which the paper's never does")
    elif reached is not None and theirs[2] is not None and abs(reached / theirs[2] - 1) > ROUNDS_DIFFER:
        way = "later" if reached > theirs[2] else "sooner"
        parts.append(f"reaches {share(target)} {way} (round {reached:g}, {theirs[2]})")
    return parts


def write_curves(material: Material) -> list[str]:
    """Write the section on the curves of the table's runs."""
    runs: Results = {}
    known, _ = runs_of(material.results)
    for name, result in sorted(known.items(), key=lambda item: item[1]["settings"]["seed"]):
        if len(result["curve"]["round"]) > 1:
            runs.setdefault(row_of(name), result)
    if not runs:
        return []
    panels = len({ROWS[key].family for key in runs} & set(FAMILIES)) or 1
    size = (2.9 * min(panels, 4) + 0.4, 2.6 * -(-panels // 4) + 0.3)
    compare = material.papers_size
    diamonds = " Hollow diamonds: the paper's values at round 500." if compare else ""
    out = far_down({key: run["curve"]["accuracy"][-1] for key, run in runs.items()})
    beneath = f" Out of the picture: {listing([ROWS[key].title for key in out])}." if out else ""
    remark = material.remark("curves").strip()
    return [
        "## The curves",
        "The paper's comparison of curves, family by family, from the same runs (first seed), FedGS and FedAvg in each "
        f"panel.{diamonds}{beneath}",
        material.figure("curves-accuracy", "Test accuracy over rounds, a panel a family", size,
                        lambda figure: paint_curves(figure, runs, "accuracy", compare)),
        material.figure("curves-loss", "Test loss over rounds, a panel a family", size,
                        lambda figure: paint_curves(figure, runs, "loss", compare)),
        *([remark] if remark else []),
    ]  # fmt: skip
