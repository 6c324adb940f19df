"""What a real park costs: a station and its devices as processes on this machine, over mTLS.

    python benchmarks/deployment.py                       # everything, some minutes
    python benchmarks/deployment.py --only sync small     # one internal synchronisation; small models

sync    ten devices and the paper's model (26 MB): an internal synchronisation against a raw gRPC echo of the same bytes
small   ten devices and a model of 100 KB: iterations a second
many    200 devices on one station: selection, and a whole iteration
memory  20,000 iterations: the station's memory
faults  SIGKILL and SIGSTOP of a device in mid-iteration: seconds until the iteration goes on
noise   noise on the class counts: what it costs in divergence
wire    bfloat16 and float16 on the wire: bytes and accuracy of the park of ``fedgs park up``

Devices in all but ``wire`` train nothing: they answer with a fixed change, so that what is measured is the park.
"""

import argparse
import asyncio
import itertools
import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from command import at_least, in_one_line
from fedgs.deploy.wire import PART
from fedgs.selection.team import TeamRule, select_teams
from park_on_the_bench import BATCH, CLASSES, Bench, bench, wait_for
from raw_echo import echo_times

PAPER = 6_603_710
"""Weights of the paper's CNN."""
SMALL = 25_600
PARTS = ("sync", "small", "many", "memory", "faults", "noise", "wire")


def sync(repeats: int) -> None:
    payload = np.random.default_rng(0).bytes(4 * PAPER)
    with bench(PAPER) as made:
        made.devices([[number] for number in range(10)])
        whole = asyncio.run(echo_times(made.folder, 10, payload, len(payload), repeats))
        parts = asyncio.run(echo_times(made.folder, 10, payload, PART, repeats))
        ours = made.iteration(1, 4, repeats)
        again = asyncio.run(echo_times(made.folder, 10, payload, len(payload), repeats))
    echo, own = statistics.median(whole + again), statistics.median(ours)
    print(f"sync    26.4 MB to ten devices and back: echo {echo:.3f} s in one message, "
          f"{statistics.median(parts):.3f} s in parts of 1 MiB; internal synchronisation {own:.3f} s; "
          f"ratio {own / echo:.2f} ({own / statistics.median(parts):.2f} against the parts)")  # fmt: skip


def small(repeats: int) -> None:
    payload = bytes(4 * SMALL)
    with bench(SMALL) as made:
        made.devices([[number] for number in range(10)])
        echo = statistics.median(asyncio.run(echo_times(made.folder, 10, payload, len(payload), 30 * repeats)))
        own = statistics.median(made.iteration(5, 105, repeats))
    print(f"small   100 KB to ten devices and back: {1 / own:.0f} iterations a second ({own * 1e3:.1f} ms); "
          f"echo {echo * 1e3:.1f} ms")  # fmt: skip


def many(repeats: int) -> None:
    with bench(1000) as made:
        made.devices([list(range(first, first + 50)) for first in range(0, 200, 50)])
        for solver in ("gbp-cs", "multistart", "auto"):
            own = statistics.median(made.iteration(5, 105, repeats, solver=solver))
            counts = np.random.default_rng(0).multinomial(BATCH, np.full(CLASSES, 1 / CLASSES), size=200)
            wanted = TeamRule(10, 2, solver, {}, np.full(CLASSES, 1 / CLASSES), 0, 0)
            everyone = [np.arange(len(counts))]
            select_teams(wanted, 0, counts, everyone)
            began = time.perf_counter()
            for iteration in range(20):
                select_teams(wanted, iteration, counts, everyone)
            selecting = (time.perf_counter() - began) / 20
            print(f"many    200 devices, 10 selected by {solver}: {own * 1e3:.1f} ms a whole iteration, "
                  f"of which {selecting * 1e3:.1f} ms selection")  # fmt: skip


def memory(iterations: int) -> None:
    with bench(1000) as made:
        made.devices([list(range(10))])
        made.round(iterations // 10)
        early, began = made.resident(), time.perf_counter()
        for _ in range(9):
            made.round(iterations // 10)
        seconds = time.perf_counter() - began
        print(f"memory  station after {iterations // 10} iterations {early:.1f} MB, after {iterations} "
              f"{made.resident():.1f} MB; {0.9 * iterations / seconds:.0f} iterations a second")  # fmt: skip


def faults(repeats: int) -> None:
    for deed in (signal.SIGKILL, signal.SIGSTOP):
        found = []
        for _ in range(repeats):
            with bench(1000, "--deadline", "100") as made:
                made.devices([[number] for number in range(4)])
                made.devices([[9]], pause=100.0)
                began: list[float] = []

                def strike(victim: int, made: Bench = made, began: list[float] = began, deed: int = deed) -> None:
                    wait_for(lambda: [d.state for d in made.status().devices if d.state == "training"] == ["training"])
                    began.append(time.perf_counter())
                    os.kill(victim, deed)

                thread = threading.Thread(target=strike, args=(made.processes[-1].pid,))
                thread.start()
                result, _ = made.round(1, pick=5)
                found.append(time.perf_counter() - began[0])
                thread.join()
                assert result.events == {"gone": 1}, result.events
                os.kill(made.processes[-1].pid, signal.SIGCONT)
        print(f"faults  {deed.name} of a device in mid-iteration: the iteration is over after {max(found):.3f} s "
              f"(the longest of {repeats})")  # fmt: skip


def noise(draws: int = 300) -> None:
    from fedgs.data import build_federation, load_glyphs
    from fedgs.deploy.agent import noisy_counts

    federation = build_federation(load_glyphs(350), 10)
    target = federation.p_real()
    generator = np.random.default_rng(0)
    print("noise   σ on every class count; teams of 10 (2 at random) of 35 devices, glyphs")
    reference = 0.0
    for batch, sigma in itertools.product((32, 256), (0.0, 0.5, 1.0, 2.0, 4.0)):
        found: list[float] = []
        random: list[float] = []
        for draw in range(draws):
            devices = federation.devices_of(draw % 10)
            true = np.stack(
                [
                    np.bincount(federation.labels[generator.choice(federation.train[device], batch)], minlength=CLASSES)
                    for device in devices
                ]
            )
            told = true if not sigma else np.stack([noisy_counts(row, sigma, draw, n) for n, row in enumerate(true)])
            for solver, into in (("gbp-cs", found), ("random", random)):
                rule = TeamRule(10, 2, solver, {}, target, 0, draw % 10)
                (team,) = select_teams(rule, draw, told, [np.arange(len(told))])
                total = true[team.devices].sum(axis=0)
                into.append(float(np.linalg.norm(total / total.sum() - target)))
        mean = statistics.mean(found)
        reference = reference if sigma else mean
        print(f"noise   batches of {batch:<3} σ={sigma:<3g} divergence {mean:.4f} ({mean / reference:.2f} ×); "
              f"teams drawn at random {statistics.mean(random):.4f}")  # fmt: skip


def wire(rounds: int) -> None:
    from fedgs.cli.deploy import PARK
    from fedgs.config import apply_overrides, load_settings
    from fedgs.deploy.park import LocalPark, running
    from fedgs.simulation.federations import load_federation

    overrides = ["federation.factories=2", "federation.devices=8", "selection.pick=2", f"training.rounds={rounds}"]
    # More pictures than fedgs park up has, so that the accuracy can be told to half a percent.
    settings = load_settings(overrides=[*PARK, *overrides, "data.samples_per_device=1500"])
    federation = load_federation(settings)
    print(f"wire    2 stations × 4 devices, {rounds} rounds; tested on {len(federation.test.flat)} pictures")
    # The linear model is convex: what differs there is rounding. The compact one's early rounds are a lottery.
    for model, rate in (("linear", 0.05), ("compact", 0.2)):
        chosen = apply_overrides(settings, [f"task.model={model}", f"training.learning_rate={rate}"])
        for kind in ("float32", "bfloat16", "float16"):
            _one_wire(LocalPark, running, chosen, federation, kind)


def _one_wire(make: Any, running: Any, settings: Any, federation: Any, kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="fedgs-") as folder:
        park = make(Path(folder) / "park", settings, federation, kind)
        with running(park):
            while not park.done:
                park.check()
                time.sleep(0.1)
            park.check()
            found = [park.status(name) for name in park.stations]
            lines = park.lines()
    up = sum(status.received_bytes for status in found if status is not None) / 1e6
    down = sum(status.sent_bytes for status in found if status is not None) / 1e6
    accuracy = statistics.mean(line["accuracy"] for line in lines[-10:])
    loss = statistics.mean(line["loss"] for line in lines[-10:])
    print(f"wire    {settings.task.model:<7} {kind:<8} {down:.0f} MB down, {up:.0f} MB up; "
          f"accuracy {accuracy:.2%}, test loss {loss:.4f} (means of the last ten rounds)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=at_least(1), default=5)
    parser.add_argument("--iterations", type=at_least(10), default=20_000, help="of the memory part")
    parser.add_argument("--rounds", type=at_least(1), default=120, help="of the wire part")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; everything on this machine, over mTLS")
    for part, run in (
        ("sync", lambda: sync(options.repeats)),
        ("small", lambda: small(options.repeats)),
        ("many", lambda: many(options.repeats)),
        ("memory", lambda: memory(options.iterations)),
        ("faults", lambda: faults(min(options.repeats, 3))),
        ("noise", noise),
        ("wire", lambda: wire(options.rounds)),
    ):
        if part in options.only:
            run()


if __name__ == "__main__":
    in_one_line(main)
