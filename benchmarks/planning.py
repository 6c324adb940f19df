"""How long the selection of a round takes: in plain Python, and with all stations of an iteration in one kernel.

    python benchmarks/planning.py [--femnist FILE] [--rounds 10]

The paper's setting: 10 factories × 35 devices, T = 50, no model. Both ways make the same plans to the bit, which is
checked. Rounds of the two alternate, so that a busy machine slows both; medians are printed.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from command import at_least, in_one_line
from fedgs.compiled import running
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
    slow, fast = SelectionPlan(federation, settings), SelectionPlan(federation, settings)
    times: list[list[float]] = []
    alike = True
    for _ in range(rounds + 1):
        plans, seconds = [], []
        for plan, compiled in ((slow, False), (fast, True)):
            with running(compiled):
                began = time.thread_time()
                plans.append(plan.next_round())
                seconds += [plans[-1].seconds, time.thread_time() - began]
        alike &= same(*plans)
        times.append(seconds)
    plain, _, kernel, whole = 1e3 * np.median(times[1:], axis=0) / settings.training.iterations
    print(
        f"{name:18}{plain:12.3f}{kernel:12.3f}{plain / kernel:10.1f} ×{whole:12.3f}   {'yes' if alike else 'NO'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--femnist", type=Path, help="FEMNIST in any form; without it the embedded glyphs")
    parser.add_argument("--rounds", type=at_least(1), default=10)
    options = parser.parse_args()
    federation = paper_federation(load_femnist(options.femnist) if options.femnist else load_glyphs(350, 230))
    print(f"{federation.name}: ms an iteration of {federation.factories} factories, {len(federation)} devices")
    print(f"{'':18}{'plain':>12}{'kernel':>12}{'ratio':>12}{'all of it':>12}   same plans")
    for name, overrides in SOLVERS.items():
        measure(name, federation, overrides, options.rounds)


if __name__ == "__main__":
    in_one_line(main)
