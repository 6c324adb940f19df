"""How fast the simulator is: milliseconds an iteration of each path, and what a run waits for.

    python benchmarks/simulator.py --device cpu                       # compact network, embedded glyphs
    python benchmarks/simulator.py --device cuda --femnist FILE.npz   # the paper's network and data

An iteration is one step of all factories. On a GPU the setting is the paper's (10 factories × 10 devices × 32
samples), on processors that of the preset quick. Paths: every device
by itself (the oracle), a loop over factories with fused steps, and on a GPU one captured graph, once with the library's
backward pass and once with the stacked one. Processors with AVX512-BF16 or AMX also make the fused steps in bfloat16.
The second part plays whole rounds as ``fedgs run`` does, and tells how long the training waited for the selection and
whether the memory of the process grows.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
import torch

from command import at_least, in_one_line
from fedgs.algorithms.fedgs import FedGS
from fedgs.config import apply_overrides, load_settings
from fedgs.data import Federation
from fedgs.errors import ConfigError
from fedgs.settings import Settings
from fedgs.simulation.components import resolve
from fedgs.simulation.federations import load_federation
from fedgs.simulation.memory import resident_megabytes
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.tasks.bind import bind
from fedgs.training.engine import Setup, make_engine
from fedgs.training.network import ModuleNetwork
from fedgs.training.precision import processor_has_bfloat16
from fedgs.training.probe import probe
from fedgs.training.round_plan import RoundPlan
from fedgs.training.stacked import misfit
from fedgs.training.store import SampleStore


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--femnist", help="FEMNIST in any form; without it the embedded glyphs")
    parser.add_argument("--model", choices=("paper", "compact"), help="default: compact on processors, paper on a GPU")
    parser.add_argument("--factories", type=at_least(1))
    parser.add_argument("--devices", type=at_least(1))
    parser.add_argument("--iterations", type=at_least(1), help="iterations of a round (T)")
    parser.add_argument(
        "--repeats", type=at_least(1), default=3, help="rounds measured for each path; the fastest counts"
    )
    parser.add_argument("--rounds", type=at_least(0), default=30, help="rounds of the second part; 0 leaves it out")
    parser.add_argument("--set", action="append", default=[], help="key.path=value of the settings; repeatable")
    parser.add_argument("--skip-per-device", action="store_true", help="leave out the slow path")
    return parser.parse_args()


def make_settings(options: argparse.Namespace, on_gpu: bool) -> Settings:
    """The paper's setting on a GPU, that of the preset quick on processors, and what the options change in it."""
    wanted = {
        "task.model": options.model,
        "training.iterations": options.iterations,
        "training.rounds": options.rounds,
        "federation.factories": options.factories,
        "federation.devices": options.devices,
        "data.name": f"'{options.femnist}'" if options.femnist else "glyphs",
        "eval.every": 5,
    }
    overrides = [f"{key}={value}" for key, value in wanted.items() if value is not None]
    return load_settings(overrides=[*overrides, *options.set], preset="paper" if on_gpu else "quick")


def make_setup(settings: Settings, federation: Federation, device: torch.device) -> Setup:
    """Return what every path is made of."""
    settings, components = resolve(settings, classes=len(federation.classes))
    if not isinstance(components.algorithm, FedGS):
        raise ConfigError(f"algorithm.name={settings.algorithm.name!r}: the paths measured here are those of fedgs")
    task = bind(components.task, federation, settings.seed, settings.data.normalise)
    traits = probe(task)
    network = ModuleNetwork(task, device, settings.training.precision)
    network.draws_elsewhere = traits.draws_elsewhere
    store, objective = SampleStore(task, device), components.algorithm.objective
    return Setup(network, store, settings.training, objective, traits, settings.seed)


def time_path(name: str, setup: Setup, plan: RoundPlan, repeats: int) -> float:
    """Return milliseconds an iteration."""
    training, device = setup.training.model_copy(update={"engine": name}), setup.store.device
    weights = setup.network.layout.of_module(setup.store.task.module).to(device)
    engine = make_engine(replace(setup, training=training))
    rates = np.full(training.iterations, training.learning_rate)
    warm_up = plan if name in ("graph", "stacked") else first_iterations(plan, 1)
    engine.train_round(weights, warm_up, rates[: len(warm_up.devices)])
    best = float("inf")
    for _ in range(repeats):
        finish(device)
        began = time.perf_counter()
        engine.train_round(weights, plan, rates)
        finish(device)
        best = min(best, time.perf_counter() - began)
    engine.close()
    return 1e3 * best / training.iterations


def first_iterations(plan: RoundPlan, count: int) -> RoundPlan:
    shifts = None if plan.shifts is None else plan.shifts[:count]
    return RoundPlan(
        plan.round,
        plan.devices[:count],
        plan.samples[:count],
        plan.sizes[:count],
        plan.divergence[:count],
        shifts=shifts,
    )


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def paths(settings: Settings, federation: Federation, device: torch.device, options: argparse.Namespace) -> None:
    setup = make_setup(settings, federation, device)
    federation = setup.store.task.federation
    plan = SelectionPlan(federation, settings).next_round()
    plan = SelectionPlan(federation, settings).next_round()  # once more, compiled
    print(
        f"selection            {1e3 * plan.seconds / settings.training.iterations:9.2f} ms an iteration, in its thread"
    )
    names = [] if options.skip_per_device else ["per-device"]
    names += ["fused"]
    if device.type == "cuda":
        names += ["graph"] if misfit(setup) else ["graph", "stacked"]
    words = {
        "per-device": "loop over devices",
        "fused": "loop over factories",
        "graph": "one CUDA graph",
        "stacked": "stacked, one graph",
    }
    slow = None
    for name in names:
        repeats = 1 if name == "per-device" and device.type == "cuda" else options.repeats
        taken = time_path(name, setup, plan, repeats)
        slow = taken if name == "per-device" else slow
        ratio = f"{slow / taken:7.1f} ×" if slow is not None else ""
        print(f"{words[name]:20} {taken:9.2f} ms an iteration {ratio}", flush=True)
    if device.type == "cpu" and processor_has_bfloat16() and settings.training.precision != "bfloat16":
        rounded = make_setup(apply_overrides(settings, ["training.precision=bfloat16"]), federation, device)
        short = time_path("fused", rounded, plan, options.repeats)
        print(f"the same in bfloat16 {short:9.2f} ms an iteration {taken / short:7.1f} × the loop before", flush=True)


def whole_rounds(settings: Settings, federation: Federation, device: torch.device) -> None:
    waited = evaluated = 0.0
    at_ten: float | None = None
    with Simulator(settings, federation, device) as simulator:
        state = simulator.begin()
        began = time.perf_counter()
        first = 0.0
        for following in simulator.rounds(state):
            state = following
            if state.round == 1:
                # The first round waits for the first plan, and a GPU for its capture.
                first = time.perf_counter() - began
                continue
            waited += simulator.timing.waiting
            evaluated += simulator.timing.evaluation
            if state.round == 10:
                at_ten = resident_megabytes()
        total = time.perf_counter() - began - first
    iterations = (state.round - 1) * settings.training.iterations
    print(
        f"whole rounds         {1e3 * total / iterations:9.2f} ms an iteration with evaluation every "
        f"{settings.eval.every} rounds; {state.round} rounds in {first + total:.1f} s (the first {first:.1f} s)"
    )
    print(
        f"waiting for selection {waited / total:8.2%} of the time after the first round; "
        f"evaluating {evaluated / total:.1%}"
    )
    if at_ten is not None:
        end = resident_megabytes()
        print(
            f"memory                {at_ten:8.1f} MB at round 10, {end:.1f} MB at round {state.round}: "
            f"{end - at_ten:+.1f} MB"
        )
    print(f"accuracy             {state.metrics[-1]['accuracy']:9.2%} after {state.round} rounds")


def main() -> None:
    options = arguments()
    device = pick_device(options.device)
    settings = make_settings(options, device.type == "cuda")
    federation = load_federation(settings)
    where = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"processor, {torch.get_num_threads()} cores"
    )
    training = settings.training
    model = settings.task if isinstance(settings.task, str) else settings.task.model
    print(
        f"{where}, torch {torch.__version__}: {model} network, {federation.name}, {federation.factories} "
        f"factories × {settings.selection.pick} devices × {training.batch_size} samples, {training.precision}"
    )
    paths(settings, federation, device, options)
    if training.rounds > 1:
        whole_rounds(settings, federation, device)


if __name__ == "__main__":
    in_one_line(main)
