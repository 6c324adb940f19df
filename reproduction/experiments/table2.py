"""Table II: FedGS against ten baselines (fifteen rows), 500 rounds each with the paper's hyper-parameters.

Four rows are added to the paper's, to measure the pieces of FedGS: the same with devices selected at
random, with the proven optimum instead of GBP-CS, with coverage-aware selection, and CGAU with two gated layers, which
the paper trained and did not print. Three more are later baselines: SCAFFOLD, FedDyn and MOON (FedBN is FedAvg here:
the network normalises nothing). The first seed runs all rows; further seeds those that the claims rest on. Jobs
come in the order of what matters most.

Tests are made every fifth round: "rounds to 82 %" is the first tested round at or above it, up to four rounds later
than a test after every round would say. The accuracy and loss compared with the paper's are those of the last round.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedgs.settings import COVERAGE_WEIGHT
from reproduction.experiments import paper
from reproduction.experiments.jobs import Job, Result, Results
from reproduction.experiments.reproduction import PAPER, Scale
from reproduction.experiments.runs import RunGroup, comparable

if TYPE_CHECKING:
    from reproduction.experiments.reproduction import Reproduction

FULL = Scale(rounds=500, rate=0.01, every=5)
SMALL = Scale(rounds=20, rate=0.15, every=2, target=0.25)
PREFIX = "table2-"


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    title: str
    family: str
    """The panel of its curve."""
    overrides: tuple[str, ...]
    note: str = ""
    """What the paper leaves open, and what was chosen."""
    paper: bool = True
    """Whether the paper has this row."""


def _baseline(name: str, *options: str) -> tuple[str, ...]:
    return f"algorithm.name={name}", *(f"algorithm.options.{option}" for option in options)


def _with_memory(name: str) -> tuple[str, ...]:
    """A checkpoint holds what all clients remember, 9 GB at full size: there are few."""
    return *_baseline(name), "checkpoint.every=250"


_LATER = "a later baseline, not in the paper"
_SEARCHED = "learning rates are the best of Reddi et al. (2021); the paper searched a grid of its own and names none"
ROWS: dict[str, Row] = {
    "fedavg": Row("FedAvg (baseline)", "reference", _baseline("fedavg")),
    "fedprox": Row("FedProx", "FedProx", _baseline("fedprox"), "μ = 0.1; the paper tried four values and names none"),
    "ida": Row("IDA", "IDA", _baseline("ida")),
    "ida+intrac": Row("IDA+INTRAC", "IDA", _baseline("ida+intrac")),
    "ida+fedavg": Row("IDA+FedAvg", "IDA", _baseline("ida+fedavg")),
    "cgau": Row(
        "CGAU",
        "CGAU",
        _baseline("cgau"),
        "starts from a network trained by FedAvg on the same devices, whose rounds (50; at the small size 4) are not "
        "counted; the paper does not say how its own was pre-trained",
    ),
    "fedmmd": Row("FedMMD", "FedMMD", _baseline("fedmmd")),
    "fedfusion+conv": Row("FedFusion+Conv", "FedFusion", _baseline("fedfusion+conv")),
    "fedfusion+multi": Row("FedFusion+Multi", "FedFusion", _baseline("fedfusion+multi")),
    "fedfusion+single": Row("FedFusion+Single", "FedFusion", _baseline("fedfusion+single")),
    "fedavgm": Row("FedAvgM", "FedOpt", _baseline("fedavgm"), _SEARCHED),
    "fedadagrad": Row(
        "FedAdagrad",
        "FedOpt",
        _baseline("fedadagrad"),
        "the devices' learning rate is the best of Reddi et al. (2021); their server rate, 0.1 with τ = 0.01, learns "
        "nothing with the paper's τ = 0.001",
    ),
    "fedadam": Row("FedAdam", "FedOpt", _baseline("fedadam"), _SEARCHED),
    "fedyogi": Row("FedYogi", "FedOpt", _baseline("fedyogi"), _SEARCHED),
    "fedgs": Row("FedGS", "reference", ("selection.solver=gbp-cs",)),
    "fedgs-random": Row(
        "FedGS, random selection",
        "selection",
        ("selection.solver=random",),
        "devices selected at random, all else as in FedGS",
        False,
    ),
    "fedgs-exact": Row(
        "FedGS, exact",
        "selection",
        ("selection.solver=exact",),
        "the proven optimum of every iteration instead of GBP-CS, L_rnd as in the paper",
        False,
    ),
    "coverage": Row(
        "FedGS, coverage-aware",
        "selection",
        (
            "selection.solver=auto",
            f"selection.coverage.weight={COVERAGE_WEIGHT}",
            "training.calibration=1",
            "server.class_wise=true",
        ),
        "the match weighed against virtual queues, no device drawn beforehand; plus logit adjustment and class-wise "
        "averaging of the classifier",
        False,
    ),
    "cgau-2x": Row("CGAU, two gated layers", "CGAU", _baseline("cgau-2x"), "trained in the paper, not printed", False),
    "scaffold": Row("SCAFFOLD", "later", _with_memory("scaffold"), f"option II, η_g = 1; {_LATER}", False),
    "feddyn": Row("FedDyn", "later", _with_memory("feddyn"), f"α = 0.01; {_LATER}", False),
    "moon": Row("MOON", "later", _with_memory("moon"), f"μ = 1, τ = 0.5, no projection head; {_LATER}", False),
}
MAIN = ("fedgs", "fedavg", "fedgs-random", "coverage")
"""What the claims rest on: these run with every seed."""
OTHERS = ("fedgs-exact", "fedadam", "fedavgm", "fedyogi", "fedadagrad", "cgau", "fedmmd", "fedprox", "ida",
          "ida+intrac", "ida+fedavg", "fedfusion+multi", "fedfusion+conv", "fedfusion+single", "cgau-2x",
          "scaffold", "feddyn", "moon")  # fmt: skip


def make_jobs(reproduction: "Reproduction") -> list[Job]:
    """Return the runs of the table, those that matter most first."""
    first, *further = reproduction.seeds_or((0, 1), (0, 1))
    order = [(row, seed) for seed in (first, *further[:1]) for row in MAIN]
    order += [(row, first) for row in OTHERS]
    order += [(row, seed) for seed in further[1:] for row in MAIN]
    return [_job(reproduction, row, seed) for row, seed in order]


def _job(reproduction: "Reproduction", row: str, seed: int) -> Job:
    overrides = [*ROWS[row].overrides, f"seed={seed}"]
    if reproduction.quick and row.startswith("cgau"):
        overrides.append("algorithm.options.pretrain_rounds=4")
    settings = reproduction.settings(FULL, SMALL, *overrides)
    return Job(f"{PREFIX}{row}-seed-{seed}", f"Table II: {ROWS[row].title}, seed {seed}", settings, PAPER)


def outcomes(results: Results) -> dict[str, RunGroup]:
    """Return what the rows came to that have results, in the order of the table.

    Runs with other settings than most (rounds, learning rate, …) are left out: :func:`runs_of`.
    """
    found: dict[str, list[Result]] = {}
    for name, result in runs_of(results)[0].items():
        found.setdefault(row_of(name), []).append(result)
    return {row: RunGroup.of(row, found[row]) for row in ROWS if row in found}


def runs_of(results: Results) -> tuple[Results, int]:
    """Return the runs of the table that can be compared with each other, and how many others there are."""
    rows = {name: result for name, result in results.items() if row_of(name) in ROWS}
    return comparable(rows, PREFIX)


def row_of(name: str) -> str:
    """Return the row of a job; empty: it is none of the table."""
    row, _, seed = name.removeprefix(PREFIX).rpartition("-seed-")
    return row if name.startswith(PREFIX) and seed.isdecimal() else ""


def papers_row(key: str) -> tuple[float, float, int | None] | None:
    """Return the paper's accuracy, loss and rounds to 82 % (None: never) of a row; None if it has none."""
    if key not in paper.facts()["table2"]:
        return None
    accuracy, loss, rounds = paper.facts()["table2"][key]
    return float(accuracy), float(loss), rounds
