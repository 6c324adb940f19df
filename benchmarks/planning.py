"""How long the selection of a round takes: step by step, and with whole rounds of a station in one compiled loop.

    python benchmarks/planning.py [--femnist FILE] [--rounds 10]

The paper's setting: 10 factories × 35 devices, T = 50, no model. Both ways make the same plans to the bit, which is
checked. Rounds of the two alternate, so that a busy machine slows both; medians are printed.
"""

import argparse
from pathlib import Path

import numpy as np

from command import at_least, in_one_line
from fedgs.config import load_settings
from fedgs.data import Federation, load_femnist, load_glyphs, paper_federation
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.training.round_plan import RoundPlan

SOLVERS = {
    "gbp-cs": ["selection.solver=gbp-cs"],
    "exact": ["selection.solver=exact"],
    "coverage": ["selection.solver=auto", "selection.coverage.weight=0.3"],
    "coverage, gbp-cs": ["selection.solver=gbp-cs", "selection.coverage.weight=0.3"],
    "random": ["selection.solver=random"],
    "random-by-data": ["selection.solver=random-by-data"],
}


def same(one: RoundPlan, other: RoundPlan) -> bool:
    arrays = ("devices", "samples", "sizes", "divergence")
    return all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays) and one.state == other.state


def measure(name: str, federation: Federation, overrides: list[str], rounds: int) -> None:
    settings = load_settings(overrides=overrides)
    slow, fast = SelectionPlan(federation, settings, compiled=False), SelectionPlan(federation, settings)
    times: list[tuple[float, float]] = []
    alike = True
    for _ in range(rounds + 1):
        one, other = slow.next_round(), fast.next_round()
        alike &= same(one, other)
        times.append((one.seconds, other.seconds))
    before, after = 1e3 * np.median(times[1:], axis=0) / settings.training.iterations
    print(f"{name:18}{before:12.3f}{after:12.3f}{before / after:10.1f} ×   {'yes' if alike else 'NO'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--femnist", type=Path, help="FEMNIST in any form; without it the embedded glyphs")
    parser.add_argument("--rounds", type=at_least(1), default=10)
    options = parser.parse_args()
    federation = paper_federation(load_femnist(options.femnist) if options.femnist else load_glyphs(350, 230))
    print(f"{federation.name}: ms an iteration of {federation.factories} factories, {len(federation)} devices")
    print(f"{'':18}{'step by step':>12}{'compiled':>12}{'ratio':>12}   same plans")
    for name, overrides in SOLVERS.items():
        measure(name, federation, overrides, options.rounds)


if __name__ == "__main__":
    in_one_line(main)
