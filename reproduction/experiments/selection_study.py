"""The selection study: five ways to select, with and without the additions of our preset, and the policies of seven
other papers, on nine federations.

Selection as published lowers the divergence of each super node. Does that raise accuracy? Where devices are strongly
skewed, it selects the same few devices again and again. The study compares policies with everything else equal (T = 50,
learning rate 0.05, the paper's network, the same iterations). Ways to select, with the paper's loss and the plain mean:

    random            L devices, uniformly
    random-by-data    L devices, in proportion to their numbers of samples
    gbp-cs            the paper's, as published (L_rnd = L/5)
    exact             the optimum of every iteration (nearly always proven), no device drawn beforehand
    queues            the match weighed against virtual queues (fedgs.selection.coverage): all data used equally often

Policies of other papers (``RIVALS`` of fedgs.selection.solve) select likewise in every iteration, with the defaults of
their options and no device drawn beforehand; those that learn from training are told after each round. At the small
size they run on the first federation only.

Our preset ``coverage`` has the queues and two additions:

    logit adjustment      by the station's class mix (fedgs.training.calibration)
    class-wise averaging  of the classifier by the top server (fedgs.algorithms.class_wise)

Other ways to select get these additions too, to measure them one by one: ``calibrated`` and ``queues-calibrated`` have
the first, ``by-data-full`` and ``gbp-cs-full`` both.

Federations deal the same images out: by writers, with factories by form partition, by Dirichlet α for each class over
devices with similar or different factories, and with two classes per device. Cells come in the order of importance, one
seed of all before the second. The model is tested every second round; the score is the mean of the tests in the last
quarter of the rounds (eight, where rounds are not long). Other weights of the queues have the first seed only.

Two variants have a 4× learning rate, with which FedGS itself learns faster: as it is (``longer``), where some runs
collapse, and with clipped gradients (``clipped``, fedgs.training.step). A reference shows how much can be gained at
all: random selection by data on the same federations without their skew (:func:`without_skew`).
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from fedgs.data import DataSet, Federation, build_federation, classes_per_device, dirichlet, dirichlet_factories
from fedgs.data.dataset import IndexLists
from fedgs.errors import ConfigError
from fedgs.rng import stream
from fedgs.selection.solve import RIVALS
from fedgs.settings import COVERAGE_WEIGHT, Settings
from reproduction.experiments.jobs import Job

if TYPE_CHECKING:
    from reproduction.experiments.reproduction import Reproduction


@dataclass(frozen=True)
class Policy:
    """A way to select, and what is added to it."""

    solver: str
    presample: int | None = None
    """L_rnd; None: the settings' own."""
    calibrated: bool = False
    class_wise: bool = False


POLICIES: dict[str, Policy] = {
    "random": Policy("random"),
    "random-by-data": Policy("random-by-data"),
    "gbp-cs": Policy("gbp-cs"),
    "exact": Policy("exact", presample=0),
    "queues": Policy("auto"),
    "calibrated": Policy("random-by-data", calibrated=True),
    "queues-calibrated": Policy("auto", calibrated=True),
    "by-data-full": Policy("random-by-data", calibrated=True, class_wise=True),
    "gbp-cs-full": Policy("gbp-cs", calibrated=True, class_wise=True),
    "coverage": Policy("auto", calibrated=True, class_wise=True),
    **{name: Policy(name) for name in RIVALS},
}
SELECTIONS = tuple(name for name, policy in POLICIES.items() if not policy.calibrated and name not in RIVALS)
"""Those that differ by nothing but whom they select; without those of other papers."""
WEIGHTS = (0.003, 0.03, 3.0)
"""Further values of V beside the default, one seed, on …"""
WEIGHED = ("alpha-0.02", "alpha-0.1-differ")
FEWEST = 20
"""Devices with fewer samples are left out; Dirichlet's law makes such where α is small."""
PREFIX = "study-"
UNSKEWED = "unskewed"


@dataclass(frozen=True)
class Variant:
    """The study with another learning rate."""

    title: str
    policies: tuple[str, ...]
    rate_factor: float = 4.0
    """Of the study's learning rate."""
    clip: float | None = None
    unskewed: bool = False
    """Whether the reference without skew is run with it too."""


VARIANTS: dict[str, Variant] = {
    "longer": Variant("4× learning rate", ("random", "random-by-data", "gbp-cs", "queues", "by-data-full", "coverage")),
    # 2: about the usual gradient norm in rounds 2 to 6 (α = 0.1, one seed); from the tenth on 99 of 100 are smaller.
    "clipped": Variant(
        "4× learning rate, clipped gradients",
        ("random", "random-by-data", "gbp-cs", "exact", "by-data-full", "coverage"),
        clip=2.0,
        unskewed=True,
    ),
}


def variant_of(name: str) -> str:
    """Return the variant that a job of this name belongs to; "" for the study itself."""
    return next((variant for variant in VARIANTS if name.startswith(f"{PREFIX}{variant}-")), "")


@dataclass(frozen=True)
class Deal:
    """One way to deal the data out."""

    title: str
    alpha: float | None = None
    """Of Dirichlet's law over devices, for each class."""
    factory_alpha: float | None = None
    """… over factories before that; None: devices are dealt to factories at random."""
    attribute: str | None = None
    classes: int | None = None

    @property
    def skewed(self) -> bool:
        """Whether ours is asked to be clearly better than GBP-CS here."""
        return self.alpha is not None and self.alpha <= 0.1


DEALS: dict[str, Deal] = {
    "alpha-0.02": Deal("α = 0.02, similar factories", 0.02),
    "alpha-0.1-differ": Deal("α = 0.1, different factories", 0.1, 1.0),
    "natural": Deal("natural split"),
    "two-classes": Deal("2 classes per device", classes=2),
    "alpha-0.02-differ": Deal("α = 0.02, different factories", 0.02, 1.0),
    "alpha-0.1": Deal("α = 0.1, similar factories", 0.1),
    "by-form": Deal("factories by form", attribute="hsf"),
    "alpha-0.3-differ": Deal("α = 0.3, different factories", 0.3, 1.0),
    "alpha-0.3": Deal("α = 0.3, similar factories", 0.3),
}
LONG_DEAL = "alpha-0.1-differ"
"""The federation that is also run with rounds four times as long."""
MILD_TO_SKEWED = ("natural", "by-form", "alpha-0.3", "alpha-0.3-differ", "alpha-0.1", "alpha-0.1-differ", "alpha-0.02",
                  "alpha-0.02-differ", "two-classes")  # fmt: skip
"""The order of tables and pictures."""


def deal_out(
    dataset: DataSet, key: str, seed: int, devices: int = 350, factories: int = 10, train_fraction: float = 0.9
) -> Federation:
    """Return one of the study's federations."""
    if key.endswith(f"-{UNSKEWED}"):
        skewed = deal_out(dataset, key.removesuffix(f"-{UNSKEWED}"), seed, devices, factories, train_fraction)
        return without_skew(skewed, seed)
    deal, labels = DEALS[key], dataset.labels
    build = partial(build_federation, dataset, train_fraction=train_fraction, seed=seed)
    if deal.attribute is not None:
        if deal.attribute not in dataset.attributes:
            raise ConfigError(f"{dataset.name} has no attribute {deal.attribute!r} to make factories of")
        return build(factories, "by-attribute", attribute=deal.attribute, split="draw")
    if deal.classes is not None:
        clients = classes_per_device(labels, devices, deal.classes, seed=seed)
        return build(factories, clients=clients)
    if deal.alpha is None:
        return build(factories, split="draw")
    if deal.factory_alpha is None:
        clients = dirichlet(labels, devices, deal.alpha, seed=seed, min_samples=0)
        return build(factories, clients=clients, min_samples=FEWEST, empty="drop")
    clients = dirichlet_factories(labels, factories, devices, deal.alpha, deal.factory_alpha, seed=seed, min_samples=0)
    return build(None, "by-attribute", clients=clients, min_samples=FEWEST, empty="drop", attribute="factory")


def without_skew(federation: Federation, seed: int) -> Federation:
    """Return the federation with its train images dealt out at random, to show what skew costs.

    Every device keeps its factory, its number of train images and its test images. So devices and factories have the
    same class mix but for chance, P_real is what it was, and a run differs from one with skew by nothing else. With
    random selection by data it tells what undoing the skew would give; a closer match than chance makes could come a
    little further.
    """
    dealt = stream(seed, UNSKEWED).permutation(federation.train.flat)
    return replace(federation, train=IndexLists(dealt, federation.train.offsets))


def make_jobs(reproduction: "Reproduction") -> list[Job]:
    """Return the cells of the study; federations by an attribute the data set has not are left out."""
    from reproduction.experiments.reproduction import Scale

    full, quick = Scale(rounds=60, rate=0.05, every=2), Scale(rounds=12, rate=0.2, every=2, target=0.1)
    base = reproduction.settings(full, quick, "selection.cap=true")
    long_rounds = 4 * base.training.iterations
    attributes = tuple(reproduction.dataset.attributes)
    found: list[Job] = []
    variants: dict[str, list[Job]] = {name: [] for name in VARIANTS}
    seeds = reproduction.seeds_or((0, 1, 2))
    for seed in seeds:
        for key, deal in DEALS.items():
            if deal.attribute is not None and deal.attribute not in attributes:
                continue
            for iterations in (base.training.iterations, *([long_rounds] if key == LONG_DEAL else [])):
                few = reproduction.quick and key != next(iter(DEALS))
                policies = [name for name in POLICIES if not (few and name in RIVALS)]
                found += [_job(base, seed, key, policy, iterations) for policy in (*policies, UNSKEWED)]
                for name, variant in VARIANTS.items():
                    wanted = (*variant.policies, *([UNSKEWED] if variant.unskewed else []))
                    cells = [_job(base, seed, key, policy, iterations) for policy in wanted]
                    variants[name] += [_with_variant(cell, name) for cell in cells]
            if seed == seeds[0] and key in WEIGHED:
                found += [_job(base, seed, key, "queues", base.training.iterations, weight) for weight in WEIGHTS]
    # The small size has a high learning rate from the start.
    return found if reproduction.quick else [*found, *chain.from_iterable(variants.values())]


def _with_variant(job: Job, name: str) -> Job:
    """Return the same cell with another learning rate."""
    variant, training = VARIANTS[name], job.settings.training
    other = training.model_copy(
        update={"learning_rate": variant.rate_factor * training.learning_rate, "clip": variant.clip or training.clip}
    )
    return Job(
        job.name.replace(PREFIX, f"{PREFIX}{name}-", 1),
        f"{job.title}, {variant.title}",
        job.settings.model_copy(update={"training": other}),
        job.federation,
    )


def _job(base: Settings, seed: int, deal: str, policy: str, iterations: int, weight: float | None = None) -> Job:
    """Return one cell; long rounds are fewer, so that all cells have the same number of iterations."""
    way = POLICIES["random-by-data" if policy == UNSKEWED else policy]
    selection = {**base.selection.model_dump(include={"pick", "cap"}), "solver": way.solver}
    if way.presample is not None:
        selection["presample"] = way.presample
    if way.solver == "auto":
        selection["coverage"] = {"weight": COVERAGE_WEIGHT if weight is None else weight}
    rounds = max(1, base.training.rounds * base.training.iterations // iterations)
    values = base.model_dump()
    values |= {"seed": seed, "selection": selection, "baseline": []}
    values["training"] |= {"iterations": iterations, "rounds": rounds, "calibration": float(way.calibrated)}
    values["server"] |= {"class_wise": way.class_wise}
    values["eval"] |= {"every": max(1, base.eval.every * base.training.iterations // iterations)}
    key = deal if iterations == base.training.iterations else f"{deal}-T{iterations}"
    name = policy if weight is None else f"{policy}-V{weight:g}"
    federation = f"{deal}-{UNSKEWED}" if policy == UNSKEWED else deal
    title = f"{title_of(key)}: {name}, seed {seed}"
    return Job(f"{PREFIX}{key}-{name}-seed-{seed}", title, Settings(**values), federation)


def title_of(key: str) -> str:
    """Return the words for a federation of the study, with the length of its rounds where that is unusual."""
    deal, long_rounds, iterations = key.partition("-T")
    return DEALS[deal].title + (f", T = {iterations}" if long_rounds else "")
