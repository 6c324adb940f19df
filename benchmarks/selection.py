"""The claims about selection, measured in one run on the same instances and printed as ratios.

    python benchmarks/selection.py [--femnist FILE] [--instances 200]

Every line says what was measured, what is required and whether it holds. Times are medians of whole ``solve()``
calls, Python included, unless said otherwise. Absolute times depend on the machine; the ratios are the point.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from command import at_least, in_one_line
from fedgs.compiled import running
from fedgs.config import load_settings
from fedgs.data import build_federation, load_femnist, paper_federation
from fedgs.report.units import readable_time
from fedgs.selection import SelectionProblem, solve, solve_batch
from fedgs.selection.solve import warm_up
from reproduction.experiments.femnist_like import femnist_like_labels
from reproduction.experiments.samplers import draw_instances

held: list[bool] = []


def claim(what: str, measured: str, required: str, holds: bool) -> None:
    held.append(holds)
    print(f"  {'ok  ' if holds else 'FAIL'} {what:58s} {measured:>22s}   required {required}")


def median_seconds(call, problems, repeat: int = 1) -> float:
    times = []
    for _ in range(repeat):
        for index, problem in enumerate(problems):
            began = time.perf_counter()
            call(problem, index)
            times.append(time.perf_counter() - began)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--femnist", type=Path, help="FEMNIST in any form; without it the labels are drawn")
    parser.add_argument("--instances", type=at_least(10), default=200)
    options = parser.parse_args()
    settings = load_settings()
    if options.femnist:
        federation = paper_federation(load_femnist(options.femnist))
    else:
        federation = build_federation(femnist_like_labels(), 10)
    problems = draw_instances(federation, settings, options.instances)
    print(f"{len(problems)} instances of {federation.name}: {problems[0]}")

    names = ("random", "gbp-cs", "swap", "multistart", "exact", "large")
    for name in (*names, "brute", "genetic"):
        warm_up(name, problems[0])
    answers = {name: [solve(p, name, i) for i, p in enumerate(problems)] for name in names}
    brute = [solve(p, "brute") for p in problems]

    print("\nquality: gap = divergence / optimum − 1")
    optimum = np.array([answer.divergence for answer in brute])
    agree = np.mean([abs(a.divergence - b.divergence) <= 1e-12 for a, b in zip(answers["exact"], brute, strict=True)])
    claim(f"exact = brute on {len(problems)} full-size instances", f"{agree:.1%}", "100 %", agree == 1)
    proven = np.mean([answer.proven for answer in answers["exact"]])
    claim("exact proves its answer under the default budget", f"{proven:.1%}", ">= 99 %", proven >= 0.99)
    for name, most in (("gbp-cs", 0.15), ("swap", 0.035), ("multistart", 0.003)):
        gap = float(np.mean([a.divergence for a in answers[name]] / optimum - 1))
        claim(f"{name} mean gap", f"{gap:.2%}", f"<= {most:.1%}", gap <= most)
    worst = float(np.mean([a.divergence for a in answers["random"]] / optimum - 1))
    print(f"       (random: {worst:.0%}; mean optimum {optimum.mean():.4f})")

    print("\nspeed")
    seconds = {name: median_seconds(lambda p, i, name=name: solve(p, name, i), problems, 3) for name in names}
    seconds["brute"] = median_seconds(lambda p, i: solve(p, "brute"), problems[:10])
    seconds["genetic"] = median_seconds(lambda p, i: solve(p, "genetic", i), problems[:20])
    plain = median_seconds(lambda p, i: plain_gbp_cs(p), problems)
    print("       " + ", ".join(f"{name} {readable_time(value)}" for name, value in seconds.items()))
    ratio = seconds["genetic"] / seconds["gbp-cs"]
    claim("gbp-cs (compiled) ahead of genetic (vectorised numpy)", f"{ratio:.0f}×", ">= 66×", ratio >= 66)
    print(f"       (both in plain numpy: {seconds['genetic'] / plain:.0f}×; the paper: 66×)")
    ratio = seconds["exact"] / seconds["gbp-cs"]
    claim("exact against gbp-cs", f"{ratio:.1f}×", "<= 12×", ratio <= 12)
    ratio = seconds["brute"] / seconds["exact"]
    claim("exact ahead of compiled brute", f"{ratio:.0f}×", ">= 100×", ratio >= 100)
    claim("one gbp-cs solve()", readable_time(seconds["gbp-cs"]), "<= 300 µs", seconds["gbp-cs"] <= 300e-6)
    ten = median_seconds(lambda ps, i: solve_batch(ps, "exact", i), [problems[:10]] * 50)
    claim("solve_batch of ten, exact", readable_time(ten), "<= 3 ms", ten <= 3e-3)

    print("\nmany devices (N=10,000, L=200, a fifth of them pre-sampled, as in the paper)")
    many = crowd(federation, 10_000, 200)
    for name in ("gbp-cs", "large"):
        solve(many, name)
    paper, ours = solve(many, "gbp-cs"), solve(many, "large")
    seconds["many"] = float(np.median([solve(many, "large", i).seconds for i in range(5)]))
    claim("large", readable_time(seconds["many"]), "<= 0.5 s", seconds["many"] <= 0.5)
    ratio = ours.divergence / paper.divergence
    claim(f"its divergence {ours.divergence:.5f} against gbp-cs's", f"{ratio:.2f}×", "<= 0.5×", ratio <= 0.5)
    print(f"       (gbp-cs {paper.divergence:.5f} in {readable_time(paper.seconds)})")

    print("\nfirst five minutes")
    warm = cold_start(problems[0])
    claim("fedgs select, whole process, warm", readable_time(warm), "<= 1.5 s", warm <= 1.5)

    print(f"\n{sum(held)} of {len(held)} hold")
    sys.exit(0 if all(held) else 1)


def plain_gbp_cs(problem: SelectionProblem) -> None:
    with running(compiled=False):
        solve(problem, "gbp-cs")


def crowd(federation, devices: int, selected: int) -> SelectionProblem:
    """A station with very many devices: batches of 32 drawn from the federation's own."""
    random = np.random.default_rng(0)
    pools = [federation.train_labels(device) for device in range(len(federation))]
    drawn = [random.choice(pools[random.integers(len(pools))], 32, replace=False) for _ in range(devices)]
    counts = np.stack([np.bincount(labels, minlength=len(federation.classes)) for labels in drawn])
    first = selected // 5
    base = counts[:first].sum(axis=0)
    return SelectionProblem(counts[first:], federation.p_real(), selected - first, base)


def cold_start(problem: SelectionProblem) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problem.npz"
        np.savez(file, counts=problem.counts, target=problem.target, base=problem.base)
        command = [sys.executable, "-m", "fedgs", "select", str(file), "--pick", str(problem.pick), "--json"]
        times = []
        for _ in range(4):
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=os.environ)
            times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


if __name__ == "__main__":
    in_one_line(main)
