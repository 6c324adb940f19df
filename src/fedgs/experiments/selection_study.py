"""Does selection earn its keep? Five ways to select, on federations from natural to extremely skewed.

Selection as published lowers the divergence of each super node. Whether that raises accuracy is the question; where
devices are strongly skewed it uses the same convenient devices again and again. The study sets five policies beside
each other, everything else being equal (T = 50, learning rate 0.05, the paper's network, the same iterations):

    random            L devices, all alike
    random-by-data    … in proportion to their numbers of samples
    gbp-cs            the paper's, as published (L_rnd = L/5)
    exact             the proven optimum of every iteration, nobody drawn beforehand
    coverage          the optimum with virtual queues (solver "auto"): all data are used alike in the long run

Federations re-deal the same images: by writers as they are, factories by form partition, Dirichlet α for each class
over devices with factories alike or with their own class mix, and two classes a device. Cells come in the order of
what decides most, one seed of all before the second.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgs.config import Settings
from fedgs.data import DataSet, Federation, build_federation, classes_per_device, dirichlet, dirichlet_factories
from fedgs.errors import ConfigError
from fedgs.experiments.parts import Part, Results

POLICIES: dict[str, dict[str, Any]] = {
    "random": {"solver": "random"},
    "random-by-data": {"solver": "random-by-data"},
    "gbp-cs": {"solver": "gbp-cs"},
    "exact": {"solver": "exact", "presample": 0},
    "coverage": {"solver": "auto"},
}
FEWEST = 20
"""Devices with fewer samples are left out; Dirichlet's law makes such where α is small."""
LONG = 200
"""Iterations of a round in the one setting with long rounds."""


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
"""The federation that is also run with long rounds."""


def deal_out(dataset: DataSet, key: str, seed: int, devices: int = 350, factories: int = 10) -> Federation:
    """Return one of the study's federations."""
    deal, labels = DEALS[key], dataset.labels
    if deal.attribute is not None:
        if deal.attribute not in dataset.attributes:
            raise ConfigError(f"{dataset.name} has no attribute {deal.attribute!r} to make factories of")
        return build_federation(dataset, factories, "by-attribute", seed=seed, attribute=deal.attribute, split="draw")
    if deal.classes is not None:
        owners = classes_per_device(labels, devices, deal.classes, seed=seed)
        return build_federation(dataset, factories, seed=seed, owners=owners)
    if deal.alpha is None:
        return build_federation(dataset, factories, seed=seed, split="draw")
    if deal.factory_alpha is None:
        owners = dirichlet(labels, devices, deal.alpha, seed=seed, min_samples=0)
        return build_federation(dataset, factories, seed=seed, owners=owners, min_samples=FEWEST, empty="drop")
    owners = dirichlet_factories(labels, factories, devices, deal.alpha, deal.factory_alpha, seed=seed, min_samples=0)
    return build_federation(
        dataset, None, "by-attribute", seed=seed, owners=owners, min_samples=FEWEST, empty="drop", attribute="factory"
    )


def make_parts(
    base: Settings, seeds: Sequence[int], attributes: Sequence[str] = (), policies: Sequence[str] = tuple(POLICIES)
) -> list[Part]:
    """Return the cells of the study; federations by an attribute the data set has not are left out."""
    cells = []
    for seed in seeds:
        for key, deal in DEALS.items():
            if deal.attribute is not None and deal.attribute not in attributes:
                continue
            cells += [_part(base, seed, key, policy, base.training.iterations) for policy in policies]
            if key == LONG_DEAL:
                cells += [_part(base, seed, key, policy, LONG) for policy in policies]
    return cells


def _part(base: Settings, seed: int, deal: str, policy: str, iterations: int) -> Part:
    """Return one cell; long rounds are fewer, so that all cells have the same number of iterations."""
    selection = {**base.selection.model_dump(include={"pick", "cap"}), **POLICIES[policy]}
    rounds = max(1, base.training.rounds * base.training.iterations // iterations)
    values = base.model_dump()
    values |= {"seed": seed, "selection": selection, "beside": []}
    values["training"] |= {"iterations": iterations, "rounds": rounds}
    values["eval"] |= {"every": max(1, base.eval.every * base.training.iterations // iterations)}
    suffix = "" if iterations == base.training.iterations else f"-T{iterations}"
    return Part(
        f"study-{deal}{suffix}-{policy}-seed-{seed}",
        f"{DEALS[deal].title}{f', T = {iterations}' if suffix else ''}: {policy}, seed {seed}",
        Settings(**values),
        deal,
    )


@dataclass(frozen=True)
class Cell:
    """One federation and policy over all seeds."""

    deal: str
    iterations: int
    policy: str
    seeds: int
    accuracy: tuple[float, ...]
    """Final, seed by seed."""
    facts: dict[str, float]
    """Means over seeds: divergence, divergence_of_round, missing_classes, jain_of_epochs, longest_wait, …"""

    @property
    def mean(self) -> float:
        """The mean final accuracy."""
        return float(np.mean(self.accuracy))


def cells(results: Results) -> Iterator[Cell]:
    """Yield the cells of which there are results, in the order of the study."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for name, result in results.items():
        if name.startswith("study-"):
            iterations = result["settings"]["training"]["iterations"]
            policy = name.removeprefix(f"study-{result['federation']}").rpartition("-seed-")[0]
            policy = policy.removeprefix(f"-T{iterations}").removeprefix("-")
            groups.setdefault((result["federation"], iterations, policy), []).append(result)
    for (deal, iterations, policy), found in groups.items():
        yield Cell(deal, iterations, policy, len(found), _finals(found), _facts(found))


def _finals(found: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    return tuple(result["summary"]["accuracy"]["final"] for result in found)


def _facts(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    selection = [result["summary"]["selection"] for result in found]
    facts = {
        key: float(np.mean([use[key] for use in selection])) for key in selection[0] if _all_numbers(selection, key)
    }
    for key in ("divergence", "divergence_of_round", "missing_classes"):
        values = [value for result in found for value in result["curve"][key] if value is not None]
        facts[key] = float(np.mean(values)) if values else float("nan")
    return facts


def _all_numbers(rows: Sequence[dict[str, Any]], key: str) -> bool:
    return all(isinstance(row.get(key), int | float) for row in rows)
