"""Does selection earn its keep? Five ways to select, with and without what ours adds to selecting, on nine federations.

Selection as published lowers the divergence of each super node. Whether that raises accuracy is the question; where
devices are strongly skewed it uses the same convenient devices again and again. The study sets policies beside each
other, everything else being equal (T = 50, learning rate 0.05, the paper's network, the same iterations). Ways to
select, with the paper's loss and the plain mean:

    random            L devices, all alike
    random-by-data    … in proportion to their numbers of samples
    gbp-cs            the paper's, as published (L_rnd = L/5)
    exact             the optimum of every iteration (nearly always proven), nobody drawn beforehand
    queues            the match weighed against virtual queues (fedgs.selection.coverage): all data used alike in time

Ours is ``coverage``, as in the preset of this name: queues, and with them

    calibration       the station's class mix is taken out of the loss (fedgs.calibration)
    by class          the top server averages the classifier by who saw a class (fedgs.by_class)

Neither is selection, so they are given to other ways to select as well, to tell what is whose: ``calibrated`` and
``queues-calibrated`` have the first, ``by-data-full`` and ``gbp-cs-full`` both.

Federations re-deal the same images: by writers as they are, factories by form partition, Dirichlet α for each class
over devices with factories alike or with their own class mix, and two classes a device. Cells come in the order of
what decides most, one seed of all before the second. Tests are made every second round; what counts is the mean of
those in the last quarter of the rounds (eight, where rounds are not long), the last one stands beside it. Other weights
of the queues are tried with the first seed alone.

The same question is asked twice more with steps four times as long, with which FedGS itself learns faster: as they are
(``longer``), where some runs fall, and with gradients of bounded length (``clipped``, fedgs.clipping).

How much there is to be won at all, a reference tells: random selection by data on the same federations without their
skew (fedgs.experiments.unskewed).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from fedgs.data import DataSet, Federation, build_federation, classes_per_device, dirichlet, dirichlet_factories
from fedgs.errors import ConfigError
from fedgs.experiments.alike import made_with
from fedgs.experiments.measures import at_round, final, last_quarter, mean_of
from fedgs.experiments.parts import Part, Result, Results
from fedgs.experiments.unskewed import UNSKEWED, without_skew
from fedgs.settings import COVERAGE_WEIGHT, Settings

if TYPE_CHECKING:
    from fedgs.experiments.reproduction import Reproduction


@dataclass(frozen=True)
class Policy:
    """A way to select, and what is added to it."""

    solver: str
    presample: int | None = None
    """L_rnd; None: the settings' own."""
    calibrated: bool = False
    by_class: bool = False


POLICIES: dict[str, Policy] = {
    "random": Policy("random"),
    "random-by-data": Policy("random-by-data"),
    "gbp-cs": Policy("gbp-cs"),
    "exact": Policy("exact", presample=0),
    "queues": Policy("auto"),
    "calibrated": Policy("random-by-data", calibrated=True),
    "queues-calibrated": Policy("auto", calibrated=True),
    "by-data-full": Policy("random-by-data", calibrated=True, by_class=True),
    "gbp-cs-full": Policy("gbp-cs", calibrated=True, by_class=True),
    "coverage": Policy("auto", calibrated=True, by_class=True),
}
SELECTIONS = tuple(name for name, policy in POLICIES.items() if not policy.calibrated)
"""Those that differ by nothing but whom they select."""
WEIGHTS = (0.003, 0.03, 3.0)
"""V beside the default: what the queues trade, one seed, on …"""
WEIGHED = ("alpha-0.02", "alpha-0.1-differ")
FEWEST = 20
"""Devices with fewer samples are left out; Dirichlet's law makes such where α is small."""
PREFIX = "study-"


@dataclass(frozen=True)
class Stride:
    """The study with other steps."""

    title: str
    policies: tuple[str, ...]
    times: float = 4.0
    """How many times as long the steps are."""
    clip: float | None = None
    unskewed: bool = False
    """Whether the reference is run with these steps too."""


STRIDES: dict[str, Stride] = {
    "longer": Stride("Longer steps", ("random", "random-by-data", "gbp-cs", "queues", "by-data-full", "coverage")),
    # 2: about the usual length in rounds 2 to 6 (α = 0.1, one seed); from the tenth on 99 of 100 are shorter.
    "clipped": Stride(
        "Longer steps, clipped",
        ("random", "random-by-data", "gbp-cs", "exact", "by-data-full", "coverage"),
        clip=2.0,
        unskewed=True,
    ),
}


def stride_of(name: str) -> str:
    """Return the stride that a part of this name has; "" for the steps of the study itself."""
    return next((stride for stride in STRIDES if name.startswith(f"{PREFIX}{stride}-")), "")


@dataclass(frozen=True)
class Deal:
    """One way to deal the data out."""

    title: str
    alpha: float | None = None
    """Of Dirichlet's law over devices, for each class."""
    factory_alpha: float | None = None
    """… over factories before that; None: factories are alike."""
    attribute: str | None = None
    classes: int | None = None
    skewed: bool = False
    """Whether the paper's selection is expected to lose here (α ≤ 0.1)."""


DEALS: dict[str, Deal] = {
    "alpha-0.02": Deal("α = 0.02, factories alike", 0.02, skewed=True),
    "alpha-0.1-differ": Deal("α = 0.1, factories differ", 0.1, 1.0, skewed=True),
    "natural": Deal("writers as they are"),
    "two-classes": Deal("2 classes a device", classes=2),
    "alpha-0.02-differ": Deal("α = 0.02, factories differ", 0.02, 1.0, skewed=True),
    "alpha-0.1": Deal("α = 0.1, factories alike", 0.1, skewed=True),
    "by-form": Deal("factories by form partition", attribute="hsf"),
    "alpha-0.3-differ": Deal("α = 0.3, factories differ", 0.3, 1.0),
    "alpha-0.3": Deal("α = 0.3, factories alike", 0.3),
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
        owners = classes_per_device(labels, devices, deal.classes, seed=seed)
        return build(factories, owners=owners)
    if deal.alpha is None:
        return build(factories, split="draw")
    if deal.factory_alpha is None:
        owners = dirichlet(labels, devices, deal.alpha, seed=seed, min_samples=0)
        return build(factories, owners=owners, min_samples=FEWEST, empty="drop")
    owners = dirichlet_factories(labels, factories, devices, deal.alpha, deal.factory_alpha, seed=seed, min_samples=0)
    return build(None, "by-attribute", owners=owners, min_samples=FEWEST, empty="drop", attribute="factory")


def make_parts(reproduction: "Reproduction") -> list[Part]:
    """Return the cells of the study; federations by an attribute the data set has not are left out."""
    from fedgs.experiments.reproduction import Scale

    full, quick = Scale(rounds=60, rate=0.05, every=2), Scale(rounds=12, rate=0.2, every=2, target=0.1)
    base = reproduction.settings(full, quick, "selection.cap=true")
    long_rounds = 4 * base.training.iterations
    attributes = tuple(reproduction.dataset.attributes)
    found: list[Part] = []
    strides: dict[str, list[Part]] = {stride: [] for stride in STRIDES}
    seeds = reproduction.seeds_or((0, 1, 2))
    for seed in seeds:
        for key, deal in DEALS.items():
            if deal.attribute is not None and deal.attribute not in attributes:
                continue
            for iterations in (base.training.iterations, *([long_rounds] if key == LONG_DEAL else [])):
                found += [_part(base, seed, key, policy, iterations) for policy in (*POLICIES, UNSKEWED)]
                for name, stride in STRIDES.items():
                    wanted = (*stride.policies, *([UNSKEWED] if stride.unskewed else []))
                    cells = [_part(base, seed, key, policy, iterations) for policy in wanted]
                    strides[name] += [_with_stride(cell, name) for cell in cells]
            if seed == seeds[0] and key in WEIGHED:
                found += [_part(base, seed, key, "queues", base.training.iterations, weight) for weight in WEIGHTS]
    # The small size has long steps from the start.
    return found if reproduction.quick else [*found, *chain.from_iterable(strides.values())]


def _with_stride(part: Part, name: str) -> Part:
    """Return the same cell with other steps."""
    stride, training = STRIDES[name], part.settings.training
    other = training.model_copy(
        update={"learning_rate": stride.times * training.learning_rate, "clip": stride.clip or training.clip}
    )
    return Part(
        part.name.replace(PREFIX, f"{PREFIX}{name}-", 1),
        f"{part.title}, steps {stride.times:g} times as long" + (", clipped" if stride.clip else ""),
        part.settings.model_copy(update={"training": other}),
        part.federation,
    )


def _part(base: Settings, seed: int, deal: str, policy: str, iterations: int, weight: float | None = None) -> Part:
    """Return one cell; long rounds are fewer, so that all cells have the same number of iterations."""
    way = POLICIES["random-by-data" if policy == UNSKEWED else policy]
    selection = {**base.selection.model_dump(include={"pick", "cap"}), "solver": way.solver}
    if way.presample is not None:
        selection["presample"] = way.presample
    if weight is not None:
        selection["coverage"] = {"weight": weight}
    rounds = max(1, base.training.rounds * base.training.iterations // iterations)
    values = base.model_dump()
    values |= {"seed": seed, "selection": selection, "beside": []}
    values["training"] |= {"iterations": iterations, "rounds": rounds, "calibration": float(way.calibrated)}
    values["server"] |= {"by_class": way.by_class}
    values["eval"] |= {"every": max(1, base.eval.every * base.training.iterations // iterations)}
    key = deal if iterations == base.training.iterations else f"{deal}-T{iterations}"
    name = policy if weight is None else f"{policy}-V{weight:g}"
    federation = f"{deal}-{UNSKEWED}" if policy == UNSKEWED else deal
    title = f"{title_of(key)}: {name}, seed {seed}"
    return Part(f"{PREFIX}{key}-{name}-seed-{seed}", title, Settings(**values), federation)


def title_of(key: str) -> str:
    """Return the words for a federation of the study, with the length of its rounds where that is unusual."""
    deal, long_rounds, iterations = key.partition("-T")
    return DEALS[deal].title + (f", T = {iterations}" if long_rounds else "")


@dataclass(frozen=True)
class Cell:
    """One federation and policy over all its seeds; tuples go seed by seed."""

    policy: str
    seeds: tuple[int, ...]
    late: tuple[float, ...]
    """Mean accuracy of the tests in the last quarter of the rounds: the number that counts."""
    final: tuple[float, ...]
    runs: tuple[Result, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds of the number that counts."""
        return float(np.mean(self.late))

    def fact(self, key: str, seeds: Collection[int] | None = None) -> float | None:
        """Return the mean of a fact of the summary, such as divergence, over these seeds or all."""
        return mean_of(self.facts(key, seeds))

    def facts(self, key: str, seeds: Collection[int] | None = None) -> list[float | None]:
        """Return a fact of the summary seed by seed."""
        return [
            run["summary"].get(key, run["summary"]["selection"].get(key))
            for seed, run in zip(self.seeds, self.runs, strict=True)
            if seeds is None or seed in seeds
        ]

    def at(self, number: int) -> float | None:
        """Return the mean accuracy in a round; None where it was not tested."""
        found = [at_round(run, number) for run in self.runs]
        return None if None in found else mean_of(found)


def common(one: Cell, other: Cell) -> set[int]:
    """Return the seeds both have."""
    return set(one.seeds) & set(other.seeds)


def with_all_seeds(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return the policies of a federation that have run with as many seeds as any: means of others are of less."""
    most = max(len(cell.seeds) for cell in cells.values())
    return {policy: cell for policy, cell in cells.items() if len(cell.seeds) == most}


Study = dict[str, dict[str, Cell]]
"""By federation (with "-T200" behind it where rounds are long) and policy, in the order of the study."""


def read_study(results: Results) -> tuple[Study, list[str]]:
    """Return the cells of which there are results, and what went astray, in words."""
    study, astray = _read(results)
    without = {key: {policy: cells[policy] for policy in POLICIES if policy in cells} for key, cells in study.items()}
    return {key: cells for key, cells in without.items() if cells}, astray


def read_unskewed(results: Results) -> dict[str, Cell]:
    """Return the reference of every federation: what it comes to without its skew."""
    return {key: cells[UNSKEWED] for key, cells in _read(results)[0].items() if UNSKEWED in cells}


def _read(results: Results) -> tuple[Study, list[str]]:
    """Return all cells, the reference among them: all must be made alike."""
    results = {name: result for name, result in results.items() if not stride_of(name)}
    groups: dict[tuple[str, str], list[Result]] = {}
    astray = []
    kinds = Counter(_kind(result) for name, result in results.items() if _key_of(name)[0])
    lengths: dict[str, Counter[int]] = {}
    for name, result in results.items():
        if key := _key_of(name)[0]:
            lengths.setdefault(key, Counter())[_iterations(result)] += 1
    for name, result in results.items():
        key, policy = _key_of(name)
        if result.get("failed"):
            astray.append(f"{result['title']}: {result['failed']}")
        elif key and (
            _kind(result) != kinds.most_common(1)[0][0] or _iterations(result) != lengths[key].most_common(1)[0][0]
        ):
            astray.append(f"{result['title']}: made with other settings than most, and left out")
        elif key:
            groups.setdefault((key, policy), []).append(result)
    study: Study = {}
    for key in sorted({key for key, _ in groups}, key=_place):
        policies = [policy for policy in (*POLICIES, UNSKEWED) if (key, policy) in groups]
        study[key] = {policy: _cell(policy, groups[key, policy]) for policy in policies}
    return study, astray


def read_weights(results: Results) -> dict[str, dict[float, Result]]:
    """Return the runs with the queues at several weights by federation and V; 0 is ``exact``."""
    found: dict[str, dict[float, Result]] = {}
    for key in WEIGHED:
        for name, result in results.items():
            cell = name.removeprefix(f"{PREFIX}{key}-").rpartition("-seed-")[0]
            weights = {"exact": 0.0, "queues": COVERAGE_WEIGHT, **{f"queues-V{weight:g}": weight for weight in WEIGHTS}}
            if cell in weights and name.startswith(f"{PREFIX}{key}-") and not result.get("failed"):
                # The first seed alone has all weights; results come in the order of their names, hence of seeds.
                found.setdefault(key, {}).setdefault(weights[cell], result)
    return {key: dict(sorted(by_weight.items())) for key, by_weight in found.items() if len(by_weight) > 2}


def with_stride(results: Results, stride: str) -> Results:
    """Return the runs with other steps, by the names they would have in the study itself."""
    return {
        name.replace(f"{PREFIX}{stride}-", PREFIX, 1): result
        for name, result in results.items()
        if stride_of(name) == stride
    }


def _key_of(name: str) -> tuple[str, str]:
    """Return federation and policy of a part's name; ("", "") if it is none of the study."""
    if not name.startswith(PREFIX):
        return "", ""
    cell = name.removeprefix(PREFIX).rpartition("-seed-")[0]
    policy = max((policy for policy in (*POLICIES, UNSKEWED) if cell.endswith(f"-{policy}")), key=len, default="")
    key = cell.removesuffix(f"-{policy}")
    return (key, policy) if policy and key.partition("-T")[0] in DEALS else ("", "")


def _kind(result: Result) -> tuple[str, ...]:
    """Return what must be alike in all cells that are set beside each other."""
    return made_with(result, "batch_size")


def _iterations(result: Result) -> int:
    """Return how many iterations a run has: the same for all policies of a federation.

    Long rounds can come to a few less than short ones, where these are not a multiple of four.
    """
    return int(result["settings"]["training"]["rounds"] * result["settings"]["training"]["iterations"])


def _place(key: str) -> tuple[int, str]:
    return MILD_TO_SKEWED.index(key.partition("-T")[0]), key


def _cell(policy: str, found: Sequence[Result]) -> Cell:
    runs = tuple(sorted(found, key=lambda run: int(run["settings"]["seed"])))
    return Cell(
        policy,
        tuple(run["settings"]["seed"] for run in runs),
        tuple(last_quarter(run) for run in runs),
        tuple(final(run) for run in runs),
        runs,
    )
