"""The surfaces: FedGS over batch size n and iterations T, and over groups M and selected devices L (section VII-B).

    T, n    with M = 10 factories that select L = 10 devices each
    M, L    with n = 32 samples and T = 50 iterations; the same 350 devices are dealt to M factories

All else is the paper's, 500 rounds each. The cell both surfaces have (n = 32, T = 50, M = 10, L = 10) is Table II's
FedGS and is run once. As in the paper a fifth of the L devices is drawn beforehand (L_rnd). An L above the size of a
factory means everybody there, as in the authors' code (``selection.cap``): with 350 devices that is L = 40 of M = 10
(35 devices each), L = 20 and L = 40 of M = 20 (17 or 18 each). The latter two are one and the same run, and are run
once.

What counts is the mean of the last ten tests: differences over n, M and L are of the size of one test's noise. The
common cell comes first, then those that differ from it in one thing, then corners, then the rest.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from fedgs.settings import Settings
from reproduction.experiments import paper
from reproduction.experiments.jobs import Job, Result, Results
from reproduction.experiments.reproduction import PAPER, Scale, paper_with
from reproduction.experiments.runs import comparable, last_ten

if TYPE_CHECKING:
    from reproduction.experiments.reproduction import Reproduction

FULL = Scale(rounds=500, rate=0.01, every=5)
SMALL = Scale(rounds=10, rate=0.15, every=2, target=0.25)
PREFIX = "surfaces-"


@dataclass(frozen=True)
class Axis:
    """One of the four settings."""

    section: str
    key: str
    values: tuple[int, ...]
    """At full size, as the paper has them."""
    small: tuple[int, ...]

    def of(self, settings: Settings) -> int:
        """Return its value in these settings."""
        return int(getattr(getattr(settings, self.section), self.key))


AXES: dict[str, Axis] = {
    "T": Axis("training", "iterations", (10, 30, 50), (10, 20)),
    "n": Axis("training", "batch_size", (8, 16, 32, 64), (4, 8)),
    "M": Axis("federation", "factories", (5, 10, 20), (2, 4)),
    "L": Axis("selection", "pick", (5, 10, 20, 40), (5, 20)),
}
SURFACES: dict[str, tuple[str, str]] = {"T_n": ("T", "n"), "M_L": ("M", "L")}
"""By the key of the paper's facts: the axis of its lines and that of its columns."""
Place = tuple[int, int]
"""A line and a column of a surface, by their values."""
Numbers = Mapping[Place, float]


def values_of(symbol: str, quick: bool) -> tuple[int, ...]:
    """Return the values of an axis at a size."""
    return AXES[symbol].small if quick else AXES[symbol].values


def make_jobs(reproduction: "Reproduction") -> list[Job]:
    """Return the cells of both surfaces, what decides most first."""
    seed, quick = reproduction.seeds_or((0,))[0], reproduction.quick
    base = reproduction.settings(FULL, SMALL, "selection.solver=gbp-cs", f"seed={seed}")
    own = {symbol: axis.of(base) for symbol, axis in AXES.items()}
    symbols_of: dict[tuple[int, ...], set[str]] = {}
    ranks: dict[tuple[int, ...], tuple[int, int]] = {}
    for symbols in SURFACES.values():
        for place in product(*(values_of(symbol, quick) for symbol in symbols)):
            point = own | dict(zip(symbols, place, strict=True))
            rank = _rank(point, own, quick)
            if "L" in symbols:
                point["L"] = _least_alike(point["M"], point["L"], base, quick)
            run = tuple(point.values())
            symbols_of.setdefault(run, set()).update(symbols)
            ranks[run] = min(rank, ranks.get(run, rank))
    ordered = sorted(symbols_of, key=lambda run: ranks[run])
    return [_job(reproduction, dict(zip(AXES, run, strict=True)), own, symbols_of[run], seed) for run in ordered]


def _least_alike(factories: int, pick: int, base: Settings, quick: bool) -> int:
    """Return the least L of the axis that means the same in factories of this size: everybody, if L does."""
    if base.data.partition != "balanced":  # how large the largest factory is, is not known before they are dealt out
        return pick
    everybody = largest(base.federation.devices, factories)
    return min((value for value in values_of("L", quick) if everybody <= value <= pick), default=pick)


def largest(devices: int, factories: int) -> int:
    """Return the devices of the largest factory where they are dealt out evenly."""
    return -(-devices // factories)


def _rank(point: Mapping[str, int], own: Mapping[str, int], quick: bool) -> tuple[int, int]:
    """Return the place of a cell in the order of jobs: how much it differs, and whether it is a corner."""
    other = [symbol for symbol in AXES if point[symbol] != own[symbol]]
    ends = [symbol for symbol in other if point[symbol] in (values_of(symbol, quick)[0], values_of(symbol, quick)[-1])]
    return len(other), -len(ends)


def _job(
    reproduction: "Reproduction", point: Mapping[str, int], own: Mapping[str, int], symbols: set[str], seed: int
) -> Job:
    overrides = [f"{axis.section}.{axis.key}={point[symbol]}" for symbol, axis in AXES.items()]
    same_federation = point["M"] == own["M"]
    if not same_federation or point["L"] != own["L"]:
        overrides.append("selection.cap=true")
    settings = reproduction.settings(FULL, SMALL, *overrides, "selection.solver=gbp-cs", f"seed={seed}")
    name = "-".join(f"{symbol}{point[symbol]}" for symbol in AXES if symbol in symbols)
    title = ", ".join(f"{symbol} = {point[symbol]}" for symbol in AXES if symbol in symbols)
    federation = PAPER if same_federation else paper_with(point["M"])
    return Job(f"{PREFIX}{name}-seed-{seed}", f"surfaces: {title}", settings, federation)


@dataclass(frozen=True)
class SurfaceCell:
    """One cell of a surface that has been run."""

    run: Result
    accuracy: float | None
    """The mean of the last ten tests; None: it diverged."""
    everybody: bool
    """Whether L is at least the size of every factory, so that nobody is left to choose among."""


Surface = dict[Place, SurfaceCell]


def read(results: Results, quick: bool) -> tuple[dict[str, Surface], int]:
    """Return the cells of both surfaces of which there are results, and how many runs were left out as of another kind.

    A run belongs to the surfaces whose symbols its name has.
    """
    runs, left_out = comparable(results, PREFIX, one_seed=True)
    found: dict[str, Surface] = {key: {} for key in SURFACES}
    for name, run in runs.items():
        point = {symbol: int(value) for symbol, value in re.findall(r"-([TnML])(\d+)(?=-)", name)}
        for key, (down, across) in SURFACES.items():
            if down in point and across in point:
                found[key][point[down], point[across]] = _cell(run)
    picks = values_of("L", quick)
    for (factories, pick), cell in list(found["M_L"].items()):
        for more in picks if cell.everybody else ():
            if more > pick:
                found["M_L"].setdefault((factories, more), cell)
    shown = {key: [(d, a) for d in values_of(down, quick) for a in values_of(across, quick)]
             for key, (down, across) in SURFACES.items()}  # fmt: skip
    return {
        key: {place: cells[place] for place in shown[key] if place in cells} for key, cells in found.items()
    }, left_out


def _cell(run: Result) -> SurfaceCell:
    settings = run["settings"]
    dealt_evenly = settings["data"]["partition"] == "balanced"
    everybody = dealt_evenly and largest(run["devices"], run["factories"]) <= settings["selection"]["pick"]
    return SurfaceCell(run, None if run.get("failed") else last_ten(run), everybody)


def papers(key: str) -> dict[Place, float]:
    """Return the paper's accuracies of a surface."""
    facts = paper.facts()[f"surface_{key}"]
    down, across = SURFACES[key]
    return {
        (line, column): float(accuracy)
        for line, row in zip(facts[down], facts["accuracy"], strict=True)
        for column, accuracy in zip(facts[across], row, strict=True)
    }


def numbers(cells: Surface) -> dict[Place, float]:
    """Return the accuracies of the cells that have one."""
    return {place: cell.accuracy for place, cell in cells.items() if cell.accuracy is not None}


def changes(accuracy: Numbers, lines: bool, low: int, high: int, without: Collection[int] = ()) -> list[float]:
    """Return what going from ``low`` to ``high`` along lines (or along columns) gives, wherever both cells are there.

    ``without``: values of the other axis that are passed over.
    """

    def place(value: int, other: int) -> Place:
        return (value, other) if lines else (other, value)

    others = sorted({(column if lines else line) for line, column in accuracy} - set(without))
    return [
        accuracy[place(high, other)] - accuracy[place(low, other)]
        for other in others
        if place(low, other) in accuracy and place(high, other) in accuracy
    ]
