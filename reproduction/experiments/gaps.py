"""What could explain the rows of Table II that are below the paper: FedAvg and CGAU with one thing changed at a time.

The paper does not say how inputs are scaled, how weights begin, how uploads are weighted, how CGAU's network was
pre-trained. Each run here changes one of these and has a third of Table II's rounds. It is compared with the row of
Table II in the same rounds, with the same seed: the mean of the tests in the last quarter of its rounds. A change that
gains less than the gap does not explain it alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedgs.tasks.cnn import MODELS
from fedgs.tasks.prepare import image_prepare
from reproduction.experiments.jobs import Job, Result, Results
from reproduction.experiments.reproduction import PAPER, Scale
from reproduction.experiments.table2 import PREFIX as TABLE
from reproduction.experiments.table2 import ROWS

if TYPE_CHECKING:
    from reproduction.experiments.reproduction import Reproduction

PREFIX = "gaps-"
FULL = Scale(rounds=150, rate=0.01, every=5)
SMALL = Scale(rounds=8, rate=0.15, every=2, target=0.25)
SEED = 0
HERE = "reproduction.experiments.gaps"


@dataclass(frozen=True)
class Change:
    """One thing that is changed."""

    title: str
    overrides: tuple[str, ...]


CHANGES: dict[str, dict[str, Change]] = {
    "fedavg": {
        "ink-is-one": Change("ink is 1 and paper 0, not the other way round", (f"task.prepare={HERE}:ink_is_one",)),
        "normalised": Change("normalised inputs", ("data.normalise=per-channel",)),
        "torch-weights": Change(
            "first weights as PyTorch draws them, not Xavier", (f"task.model={HERE}:with_torch_weights",)
        ),
        "uniform": Change("uploads weighted alike, not by samples", ("algorithm.options.weighting=uniform",)),
        "epochs-10": Change("10 local epochs, not 5", ("algorithm.local_epochs=10",)),
        "batch-16": Change("batches of 16, not 32", ("training.batch_size=16",)),
        "rate-0.02": Change("learning rate 0.02, not 0.01", ("algorithm.learning_rate=0.02",)),
    },
    "cgau": {
        "pretrained-0": Change("not pre-trained", ("algorithm.options.pretrain_rounds=0",)),
        "pretrained-200": Change("200 rounds of pre-training, not 50", ("algorithm.options.pretrain_rounds=200",)),
        "owner": Change("a device's column is its own", ("algorithm.options.cond_aggregation=owner",)),
        "zero-columns": Change("all columns begin at zero", ("algorithm.options.cond_init=zero",)),
        "normalised": Change("normalised inputs", ("data.normalise=per-channel",)),
    },
}
"""By row of Table II."""
SMALL_TOO = {
    "torch-weights": ["task.options.network=compact"],
    "pretrained-0": [],
    "pretrained-200": ["algorithm.options.pretrain_rounds=8"],
}
"""What a change has besides at the small size."""


def ink_is_one(raw: Tensor) -> Tensor:
    """Return images whose ink is 1 and whose paper is 0."""
    return 1 - image_prepare(raw)


def with_torch_weights(network: str = "paper", num_classes: int = 62) -> nn.Module:
    """Return a built-in network with the first weights that PyTorch draws."""
    return MODELS[network](num_classes)


def make_jobs(reproduction: "Reproduction") -> list[Job]:
    """Return the runs of every change."""
    seed = reproduction.seeds_or((SEED,))[0]
    return [_job(reproduction, row, name, seed) for row, changes in CHANGES.items() for name in changes]


def _job(reproduction: "Reproduction", row: str, name: str, seed: int) -> Job:
    change = CHANGES[row][name]
    overrides = [*ROWS[row].overrides, *change.overrides, f"seed={seed}"]
    if reproduction.quick:
        overrides += SMALL_TOO.get(name, ["algorithm.options.pretrain_rounds=4"] if row == "cgau" else [])
    settings = reproduction.settings(FULL, SMALL, *overrides)
    return Job(f"{PREFIX}{row}-{name}-seed-{seed}", f"{ROWS[row].title}: {change.title}", settings, PAPER)


def usual_score(run: Result, results: Results) -> float | None:
    """Return what the row of Table II has in the late rounds of a run, with its seed; None: it was not run."""
    row = run["part"].removeprefix(PREFIX).partition("-")[0]
    usual = results.get(f"{TABLE}{row}-seed-{run['settings']['seed']}")
    if usual is None:
        return None
    rounds = run["settings"]["training"]["rounds"]
    curve = zip(usual["curve"]["round"], usual["curve"]["accuracy"], strict=True)
    late = [accuracy for number, accuracy in curve if 0.75 * rounds < number <= rounds]
    return sum(late) / len(late) if late else None
