"""Our best recipe: a regularised network, momentum, a cosine schedule; beside it FedAvg, FedAvgM and central training.

All rows train the paper's network with dropout on normalised images, with momentum 0.9 in the steps (of stations, of
devices, or central), a round of warm-up and a cosine over 40 rounds. Most pixels of an image are white, which is 1:
without normalisation and warm-up the first steps are so long that a network can stay at one class for good. Each row
tries two learning rates, with and without group normalisation, with and without weak augmentation
(:mod:`fedgs.tasks.augment`): eight trials, all on validation samples that are split off each device's training
samples. The test samples are looked at once, by the runs in full of what was chosen.

``central`` has the samples of all devices in one place, and sees as many a round as FedGS: what could be reached if
data were allowed to move.
"""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from fedgs.settings import Settings
from reproduction.experiments.jobs import Job, Results
from reproduction.experiments.reproduction import CENTRAL, PAPER, Scale
from reproduction.experiments.tuned import Make, Row, Tuning

if TYPE_CHECKING:
    from reproduction.experiments.reproduction import Reproduction

PREFIX = "best-"
FULL = Scale(rounds=40, rate=0.1, every=1)
SMALL = Scale(rounds=6, rate=0.1, every=1, target=0.25)
SEEDS = (0, 1, 2)
NETWORK = ("task.model=regularised", "data.normalise=per-channel", "training.optimizer=momentum",
           "training.schedule.kind=cosine", "training.schedule.warmup=1")  # fmt: skip
AUGMENT = "task.augment=fedgs.tasks.augment:weak_affine"
CENTRAL_BATCH = 128


def _trials(key: str, rates: Sequence[float]) -> dict[str, tuple[str, ...]]:
    """Return every learning rate, plain and with group normalisation, augmentation, or both."""
    found = {}
    for rate, group, augmented in product(rates, (False, True), (False, True)):
        name = f"{rate:g}" + "-group" * group + "-augmented" * augmented
        norm = "group" if group else "none"
        found[name] = (f"{key}={rate:g}", f"task.options.norm={norm}", *([AUGMENT] if augmented else []))
    return found


_DEVICE = (0.005, 0.01)
ROWS = {
    "fedgs": Row(
        "FedGS, our recipe",
        _trials("training.learning_rate", (0.03, 0.06)),
        (*NETWORK, "selection.solver=random-by-data"),
    ),
    "fedavg": Row("FedAvg", _trials("algorithm.learning_rate", _DEVICE), (*NETWORK, "algorithm.name=fedavg")),
    "fedavgm": Row(
        "FedAvgM", _trials("algorithm.options.client_lr", _DEVICE), (*NETWORK, "algorithm.name=fedavgm")
    ),
    "central": Row(
        "central training",
        _trials("training.learning_rate", (0.005, 0.01)),
        (*NETWORK, "federation.devices=1", "federation.factories=1", "selection.pick=1", "selection.solver=random",
         f"training.batch_size={CENTRAL_BATCH}"),
    ),
}  # fmt: skip
TUNING = Tuning(PREFIX, ROWS, lambda key: CENTRAL if key == "central" else PAPER, trial=("data.validation=0.1",))


def trial_jobs(reproduction: "Reproduction") -> list[Job]:
    """Return the trials of every row, with the first seed."""
    return TUNING.trial_jobs(_maker(reproduction), reproduction.seeds_or(SEEDS)[0])


def final_jobs(reproduction: "Reproduction", results: Results) -> list[Job]:
    """Return the runs of what every row chose."""
    return TUNING.final_jobs(_maker(reproduction), reproduction.seeds_or(SEEDS), results)


def _maker(reproduction: "Reproduction") -> Make:
    """Return what makes settings of overrides; central training has as many samples a round as FedGS."""

    def make(*overrides: str) -> Settings:
        settings = reproduction.settings(FULL, SMALL, *overrides)
        if settings.federation.devices > 1:
            return settings
        usual = reproduction.settings(FULL, SMALL)
        samples = usual.federation.factories * usual.selection.pick * usual.training.batch_size
        iterations = usual.training.iterations * samples // CENTRAL_BATCH
        return reproduction.settings(FULL, SMALL, *overrides, f"training.iterations={max(1, iterations)}")

    return make
