"""What coverage costs and buys, by selection alone: no model is trained, thousands of iterations take seconds.

    python benchmarks/selection_coverage.py --femnist FILE          # real labels, as they are and dealt out anew
    python benchmarks/selection_coverage.py                         # the embedded glyphs

For every federation and policy: divergence of an iteration and of a round's samples pooled, classes a super node
lacks, Jain's index of epochs (all data used alike: 1) and of turns, epochs of the least and the most used device, and
the longest wait. The last lines put all federations side by side for every weight V of the queues: one default has to
serve them all.
``--plot FILE.png`` draws divergence against Jain's index of epochs.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from command import at_least, in_one_line
from fedgs.config import load_settings
from fedgs.data import (
    DataSet,
    Federation,
    build_federation,
    classes_per_device,
    dirichlet,
    dirichlet_factories,
    load_femnist,
    load_glyphs,
)
from fedgs.errors import ConfigError
from fedgs.settings import COVERAGE_WEIGHT, Settings
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.summary import jain

WEIGHTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
COLUMNS = ("divergence", "of a round", "missing", "Jain epochs", "Jain turns", "least", "most", "wait", "ms")
FEWEST = 20
"""Devices with fewer samples are left out; Dirichlet's law makes such where α is small."""


def federations(dataset: DataSet, seed: int) -> Iterator[tuple[str, Federation]]:
    labels, factories, devices = dataset.labels, 10, 350

    def alike(alpha: float) -> Federation:
        clients = dirichlet(labels, devices, alpha, seed=seed, min_samples=0)
        return build_federation(dataset, factories, seed=seed, clients=clients, min_samples=FEWEST, empty="drop")

    def different(alpha: float, factory_alpha: float) -> Federation:
        clients = dirichlet_factories(labels, factories, devices, alpha, factory_alpha, seed=seed, min_samples=0)
        return build_federation(
            dataset, None, "by-attribute", seed=seed, clients=clients, min_samples=FEWEST, empty="drop",
            attribute="factory",
        )  # fmt: skip

    yield "as it is", build_federation(dataset, factories, seed=seed, split="draw")
    if "hsf" in dataset.attributes:
        yield (
            "by form partition",
            build_federation(dataset, factories, "by-attribute", seed=seed, attribute="hsf", split="draw"),
        )
    for alpha in (0.3, 0.1, 0.02):
        yield f"alpha {alpha:g}, factories alike", alike(alpha)
    for alpha in (0.3, 0.1, 0.02):
        yield f"alpha {alpha:g}, factories differ", different(alpha, 1.0)
    yield "alpha 0.1, factories differ strongly", different(0.1, 0.1)
    clients = classes_per_device(labels, devices, 2, seed=seed)
    yield "2 classes a device", build_federation(dataset, factories, seed=seed, clients=clients)


def policies(share: str) -> dict[str, list[str]]:
    named = {name: [f"selection.solver={name}"] for name in ("random", "random-by-data", "gbp-cs", "exact")}
    named["exact"] += ["selection.presample=0"]
    for weight in WEIGHTS:
        named[f"V = {weight:g}"] = [
            "selection.solver=auto", f"selection.coverage.weight={weight}", f"selection.coverage.share={share}",
        ]  # fmt: skip
    return named


def play(federation: Federation, settings: Settings, rounds: int) -> dict[str, float]:
    plan = SelectionPlan(federation, settings)
    plans = [plan.next_round() for _ in range(rounds)]
    iterations = rounds * settings.training.iterations
    epochs = plan.streams.samples_used / federation.train.sizes
    waits = np.maximum(plan.turns.longest_wait, iterations - plan.turns.last)
    return {
        "divergence": float(np.nanmean([p.divergence for p in plans])),
        "of a round": float(np.nanmean([p.window_divergence for p in plans])),
        "missing": float(np.nanmean([p.missing_classes for p in plans])),
        "Jain epochs": jain(epochs),
        "Jain turns": jain(plan.turns.selected.astype(np.float64)),
        "least": float(epochs.min()),
        "most": float(epochs.max()),
        "wait": float(waits.max()),
        "ms": 1e3 * float(np.median([p.seconds for p in plans])) / settings.training.iterations,
    }


FORMATS: dict[str, Callable[[float], str]] = {
    "divergence": "{:.4f}".format, "of a round": "{:.4f}".format, "missing": "{:.2f}".format,
    "Jain epochs": "{:.4f}".format, "Jain turns": "{:.4f}".format, "least": "{:.2f}".format, "most": "{:.2f}".format,
    "wait": "{:.0f}".format, "ms": "{:.2f}".format,
}  # fmt: skip


def side_by_side(found: dict[str, dict[str, dict[str, float]]]) -> None:
    """How every V does in every federation, relative to the optimum of each iteration (V = 0) and to random ∝ data."""
    print("\nexcess: divergence over the optimum's, as a share of what random-by-data has over it; then Jain of epochs")
    print(f"{'':38}" + "".join(f"{f'V = {weight:g}':>15}" for weight in WEIGHTS))
    for name, rows in found.items():
        best, loose = rows["exact"]["divergence"], rows["random-by-data"]["divergence"]
        cells = [rows[f"V = {weight:g}"] for weight in WEIGHTS]
        text = [f"{(c['divergence'] - best) / (loose - best):8.1%} {c['Jain epochs']:6.4f}" for c in cells]
        print(f"{name:38}" + "".join(f"{cell:>15}" for cell in text))


def draw(path: Path, found: dict[str, dict[str, dict[str, float]]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 5
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    marks = {
        "random": ("x", "#9aa0a6"),
        "random-by-data": ("+", "#59504d"),
        "gbp-cs": ("D", "#d1495b"),
        "exact": ("s", "#e3a857"),
    }
    for axis, (name, results) in zip(axes, found.items(), strict=False):
        curve = [results[f"V = {weight:g}"] for weight in WEIGHTS]
        axis.plot(
            [c["Jain epochs"] for c in curve],
            [c["divergence"] for c in curve],
            "o-",
            color="#1f6f8b",
            ms=4,
            label="coverage",
        )
        default = results[f"V = {COVERAGE_WEIGHT:g}"]
        axis.plot(
            default["Jain epochs"], default["divergence"], "o", color="#1f6f8b", ms=8, label=f"V = {COVERAGE_WEIGHT:g}"
        )
        for policy, (mark, colour) in marks.items():
            axis.plot(
                results[policy]["Jain epochs"], results[policy]["divergence"], mark, color=colour, ms=6, label=policy
            )
        axis.set_title(name, fontsize=8)
        axis.tick_params(labelsize=7)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(found) :]:
        axis.set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False, fontsize=8)
    figure.supxlabel("Jain's index of epochs", fontsize=9)
    figure.supylabel("divergence of an iteration", fontsize=9)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--femnist", type=Path, help="FEMNIST in any form; without it the embedded glyphs")
    parser.add_argument("--rounds", type=at_least(1), default=40, help="of 50 iterations")
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--share", default="data", choices=("data", "turns", "fresh"))
    parser.add_argument("--only", help="federations whose name contains this")
    parser.add_argument("--csv", type=Path, help="write all numbers here too")
    parser.add_argument("--plot", type=Path, help="draw divergence against Jain's index of epochs")
    options = parser.parse_args()
    dataset = load_femnist(options.femnist) if options.femnist else load_glyphs(350, 230, options.seed)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, federation in federations(dataset, options.seed):
        if options.only and options.only not in name:
            continue
        sizes = federation.train.sizes
        print(f"\n{dataset.name}, {name}: {len(federation)} devices of {sizes.min()} to {sizes.max()} samples")
        print(f"{'':16}" + "".join(f"{column:>12}" for column in COLUMNS))
        found[name] = {}
        for policy, overrides in policies(options.share).items():
            settings = load_settings(overrides=[f"seed={options.seed}", "selection.cap=true", *overrides])
            found[name][policy] = row = play(federation, settings, options.rounds)
            print(f"{policy:16}" + "".join(f"{FORMATS[column](row[column]):>12}" for column in COLUMNS), flush=True)
    if not found:
        raise ConfigError(f"--only {options.only}: no federation has this in its name; leave it out to see the names")
    side_by_side(found)
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["federation", "policy", *COLUMNS])
            for name, rows in found.items():
                writer.writerows([name, policy, *(row[column] for column in COLUMNS)] for policy, row in rows.items())
    if options.plot:
        draw(options.plot, found)


if __name__ == "__main__":
    in_one_line(main)
