"""FedOpt's learning rates: four server rules over the devices' rate and the server's (section VII-B, the heat maps).

The paper searched a grid of its own and shows it in a picture alone; its values are nowhere in its text. The grid here
is our choice: steps of √10 about the default rates of the rules, which Table II's rows have (FedAvgM's, FedAdam's and
FedYogi's are the best cells of Reddi et al., 2021). A cell has 60 rounds, not 500; its score is the mean accuracy of
the tests in the last quarter of these. A run that diverges is a cell too. The middle of each grid comes first, rules
in turn.
"""

from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING

from fedgs.config import load_settings
from reproduction.experiments.jobs import Job, Result, Results
from reproduction.experiments.reproduction import PAPER, Scale
from reproduction.experiments.resolved import resolved_of
from reproduction.experiments.runs import comparable, last_quarter
from reproduction.experiments.table2 import PREFIX as TABLE
from reproduction.experiments.table2 import ROWS

if TYPE_CHECKING:
    from reproduction.experiments.reproduction import Reproduction

FULL = Scale(rounds=60, rate=0.01, every=5)
SMALL = Scale(rounds=2, rate=0.15, every=1, target=0.25)
PREFIX = "fedopt-rates-"
SAME = 0.005
"""Rates are written with three digits: those that differ by less, relatively, are one and the same."""


def _powers(*exponents: float) -> tuple[float, ...]:
    """Return powers of ten with three digits, as the defaults of the server rules are written."""
    return tuple(float(f"{10**exponent:.3g}") for exponent in exponents)


@dataclass(frozen=True)
class Grid:
    """The rates of one rule."""

    client: tuple[float, ...]
    """Of the devices."""
    server: tuple[float, ...]

    @property
    def places(self) -> list[tuple[float, float]]:
        """All cells, the middle first; of cells as near to it those with lower rates first."""
        middle = (len(self.client) - 1) / 2, (len(self.server) - 1) / 2
        order = sorted(
            (abs(i - middle[0]) + abs(j - middle[1]), i, j)
            for i in range(len(self.client))
            for j in range(len(self.server))
        )
        return [(self.client[i], self.server[j]) for _, i, j in order]


CLIENT = _powers(-2, -1.5, -1)
GRIDS: dict[str, Grid] = {
    "fedavgm": Grid(CLIENT, _powers(-1, -0.5, 0)),
    "fedadagrad": Grid(CLIENT, _powers(-2.5, -2, -1.5, -1)),
    "fedadam": Grid(CLIENT, _powers(-3, -2.5, -2, -1.5)),
    "fedyogi": Grid(CLIENT, _powers(-3, -2.5, -2, -1.5)),
}
SMALL_GRIDS: dict[str, Grid] = {rule: Grid(grid.client[1:], grid.server[1:3]) for rule, grid in GRIDS.items()}


def grids(quick: bool) -> dict[str, Grid]:
    """Return the grid of every rule at a size."""
    return SMALL_GRIDS if quick else GRIDS


def make_jobs(reproduction: "Reproduction") -> list[Job]:
    """Return the cells, the middle of each grid first, rules in turn."""
    seed = reproduction.seeds_or((0,))[0]
    found = grids(reproduction.quick)
    most = max(len(grid.places) for grid in found.values())
    return [
        _job(reproduction, rule, *grid.places[place], seed)
        for place in range(most)
        for rule, grid in found.items()
        if place < len(grid.places)
    ]


def _job(reproduction: "Reproduction", rule: str, client: float, server: float, seed: int) -> Job:
    options = [f"algorithm.options.client_lr={client}", f"algorithm.options.server_lr={server}"]
    settings = reproduction.settings(FULL, SMALL, f"algorithm.name={rule}", *options, f"seed={seed}")
    title = f"FedOpt's rates: {ROWS[rule].title}, devices {client:g}, server {server:g}"
    return Job(f"{PREFIX}{rule}-{client:g}-{server:g}-seed-{seed}", title, settings, PAPER)


@dataclass(frozen=True)
class GridCell:
    """One cell that has been run."""

    run: Result
    score: float | None
    """Mean accuracy of the tests in the last quarter of its rounds; None: it diverged."""


Place = tuple[float, float]
"""The rate of the devices and that of the server."""
Map = dict[Place, GridCell]


def read(results: Results, quick: bool) -> tuple[dict[str, Map], int]:
    """Return the cells of every rule of which there are results, and how many runs were left out as of another kind."""
    runs, left_out = comparable(results, PREFIX, one_seed=True)
    found: dict[str, Map] = {}
    for rule, grid in grids(quick).items():
        cells = {
            place: GridCell(run, None if run.get("failed") else last_quarter(run))
            for run in runs.values()
            if run["settings"]["algorithm"]["name"] == rule and (place := place_of(grid, *rates_of(run))) is not None
        }
        if cells:
            found[rule] = {place: cells[place] for place in sorted(cells)}
    return found, left_out


def rates_of(run: Result) -> Place:
    """Return the rates a run really used."""
    used = run.get("resolved") or resolved_of(run["settings"])
    return float(used["learning_rate"]), float(used["options"]["server_lr"])


def place_of(grid: Grid, client: float, server: float) -> Place | None:
    """Return the cell of these rates; None: they are not in the grid."""
    for place in grid.places:
        if isclose(place[0], client, rel_tol=SAME) and isclose(place[1], server, rel_tol=SAME):
            return place
    return None


def table_rates(rule: str, results: Results) -> Place:
    """Return the rates of a rule's row in Table II: those of its run, or the defaults it would have."""
    run = next((run for name, run in results.items() if name.startswith(f"{TABLE}{rule}-seed-")), None)
    return rates_of(run or {"settings": load_settings(overrides=[f"algorithm.name={rule}"])})


def scores(cells: Map) -> dict[Place, float]:
    """Return the scores of the cells that have one."""
    return {place: cell.score for place, cell in cells.items() if cell.score is not None}


def on_edge(grid: Grid, place: Place) -> bool:
    """Return whether a cell lies on the edge of its grid, beyond which nothing was tried."""
    return place[0] in (grid.client[0], grid.client[-1]) or place[1] in (grid.server[0], grid.server[-1])
