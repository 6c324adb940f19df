"""How long a round of each baseline takes, against FedAvg, in one run.

    python benchmarks/baselines.py                                            # a small federation of glyphs
    python benchmarks/baselines.py --femnist femnist_350.npz --device cuda    # the paper's: 100 devices, 5 epochs

Prints, for every name in ``fedgs.algorithms.BASELINES``, the median seconds of a round (local training and server),
its ratio to FedAvg's, what was asked for, and the peak of memory. Then, where asked for, FedAvg with no update deferred
(``--at-once``, on a GPU; fedgs.training.deferred), one device after the other (``--one-by-one``), and the accuracy of
its first rounds (``--accuracy``).
"""

import argparse
import math
import statistics
import sys
import time

import torch

from command import at_least, in_one_line
from fedgs.algorithms import BASELINES
from fedgs.algorithms.run_state import RunState
from fedgs.config import load_settings
from fedgs.data import Federation
from fedgs.settings import Settings
from fedgs.simulation.federations import load_federation
from fedgs.simulation.memory import resident_megabytes
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.training.captured_clients import LARGE, CapturedTraining

LIMITS = {"fedmmd": 1.5, "fedfusion+conv": 1.5, "fedfusion+multi": 1.5, "fedfusion+single": 1.5}
OTHERS = 1.15
SMALL = ["data.name=glyphs", "federation.devices=40", "federation.factories=4", "selection.pick=5",
         "data.samples_per_device=100", "task.model=compact", "algorithm.local_epochs=2"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--femnist", help="a FEMNIST file; without it a small federation of glyphs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="rounds timed; one more warms up")
    parser.add_argument("--only", nargs="*", help="these baselines alone (FedAvg is always among them)")
    parser.add_argument("--precision", default="tf32", help="float32, tf32 or bfloat16, on a GPU")
    parser.add_argument("--one-by-one", action="store_true", help="also time the oracle")
    parser.add_argument("--at-once", action="store_true", help="also time FedAvg with every step made at once")
    parser.add_argument(
        "--accuracy", type=at_least(1), nargs="*", default=[], help="rounds whose accuracy FedAvg is to print"
    )
    options = parser.parse_args()
    device = pick_device(options.device)
    overrides = [f"data.name='{options.femnist}'"] if options.femnist else SMALL
    overrides.append(f"training.precision={options.precision}")
    federation = load_federation(load_settings(overrides=overrides))
    baseline = None
    names = ["fedavg", *(name for name in options.only or BASELINES if name != "fedavg")]
    print(f"{'baseline':18} {'s a round':>9} {'× FedAvg':>9} {'asked':>6} {'MB':>7}")
    for name in names:
        extra = ["algorithm.options.pretrain_rounds=0"] if name.startswith("cgau") else []
        settings = load_settings(overrides=[*overrides, f"algorithm.name={name}", *extra])
        seconds = time_rounds(settings, federation, device, options.rounds)
        baseline = baseline or seconds
        asked = "" if name == "fedavg" else f"≤ {LIMITS.get(name, OTHERS):.2f}"
        print(
            f"{name:18} {seconds:9.3f} {seconds / baseline:8.2f}× {asked:>6} {peak_megabytes(device):7.0f}", flush=True
        )
    if options.at_once:
        CapturedTraining.large = sys.maxsize
        seconds = time_rounds(load_settings(overrides=[*overrides, "algorithm.name=fedavg"]), federation, device,
                              options.rounds)  # fmt: skip
        CapturedTraining.large = LARGE
        print(f"{'steps at once':18} {seconds:9.3f} {seconds / (baseline or 1):8.2f}×", flush=True)
    if options.one_by_one:
        settings = load_settings(overrides=[*overrides, "algorithm.name=fedavg", "training.engine=per-device"])
        seconds = time_rounds(settings, federation, device, 1)
        print(f"{'one by one':18} {seconds:9.3f} {seconds / (baseline or 1):8.2f}×", flush=True)
    if options.accuracy:
        accuracies(overrides, federation, device, sorted(options.accuracy))


def time_rounds(settings: Settings, federation: Federation, device: torch.device, rounds: int) -> float:
    """Return the median seconds of a round, without its test."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    with Simulator(settings, federation, device) as simulator:
        state, plan = simulator.begin(), simulator.plan
        for number in range(rounds + 1):
            following = plan.next_round()
            began = time.perf_counter()
            outcome = simulator.rounds_of.run_round(state, following, None)
            float(outcome.weights.sum())  # waits for a GPU
            if number:
                times.append(time.perf_counter() - began)
            state = RunState(
                following.round, outcome.weights, following.state, outcome.server, outcome.stations, outcome.local
            )
    return statistics.median(times)


def accuracies(overrides: list[str], federation: Federation, device: torch.device, wanted: list[int]) -> None:
    """Run FedAvg and print its accuracy after some rounds."""
    every = math.gcd(10, *wanted)
    settings = load_settings(
        overrides=[*overrides, "algorithm.name=fedavg", f"training.rounds={wanted[-1]}", f"eval.every={every}"]
    )
    began = time.perf_counter()
    with Simulator(settings, federation, device) as simulator:
        for state in simulator.rounds(simulator.begin()):
            if state.round in wanted:
                line = state.metrics[-1]
                taken = time.perf_counter() - began
                print(f"fedavg, round {state.round}: accuracy {line['accuracy']:.4f}, loss {line['loss']:.4f}, "
                      f"{taken:.0f} s", flush=True)  # fmt: skip


def peak_megabytes(device: torch.device) -> float:
    """Return the most memory taken so far: of the GPU, or of the process now."""
    return torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else float(resident_megabytes() or 0)


if __name__ == "__main__":
    in_one_line(main)
