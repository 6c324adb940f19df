"""How fast the simulator is: milliseconds an iteration of each path, and what a run waits for.

    python benchmarks/simulator.py --device cpu                       # compact network, embedded glyphs
    python benchmarks/simulator.py --device cuda --femnist FILE.npz   # the paper's network and data

An iteration is one step of all factories. On a GPU the setting is the paper's (10 factories × 10 devices × 32
samples), on processors that of the preset quick. Paths: every device
by itself (the oracle), a loop over factories with fused steps, and on a GPU one captured graph, once with the library's
backward pass and once with the stacked one. The second part
plays whole rounds as ``fedgs run`` does, and tells how long the training waited for the selection and whether the
memory of the process grows.
"""

import argparse
import time

import numpy as np
import torch

from fedgs.config import load_settings
from fedgs.data import Federation
from fedgs.settings import Settings
from fedgs.simulation.memory import resident_megabytes
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.simulation.source import load_federation
from fedgs.tasks.cnn import build_model
from fedgs.training.engine import Engine, make_engine
from fedgs.training.layout import Layout
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import ImageStore


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--femnist", help="FEMNIST in any form; without it the embedded glyphs")
    parser.add_argument("--model", choices=("paper", "compact"), help="default: compact on processors, paper on a GPU")
    parser.add_argument("--factories", type=int)
    parser.add_argument("--devices", type=int)
    parser.add_argument("--iterations", type=int, help="iterations of a round (T)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds measured for each path; the fastest counts")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the second part; 0 leaves it out")
    parser.add_argument("--set", action="append", default=[], help="key.path=value of the settings; repeatable")
    parser.add_argument("--skip-per-device", action="store_true", help="leave out the slow path")
    return parser.parse_args()


def make_settings(options: argparse.Namespace, on_gpu: bool) -> Settings:
    """The paper's setting on a GPU, that of the preset quick on processors, and what the options change in it."""
    wanted = {
        "training.model": options.model,
        "training.iterations": options.iterations,
        "training.rounds": options.rounds,
        "federation.factories": options.factories,
        "federation.devices": options.devices,
        "data.name": f"'{options.femnist}'" if options.femnist else "glyphs",
        "eval.every": 5,
    }
    overrides = [f"{key}={value}" for key, value in wanted.items() if value is not None]
    return load_settings(overrides=[*overrides, *options.set], preset="paper" if on_gpu else "quick")


def time_path(name: str, settings: Settings, store: ImageStore, plan: RoundPlan, classes: int, repeats: int) -> float:
    """Return milliseconds an iteration."""
    training = settings.training.model_copy(update={"engine": name})
    model = build_model(training.model, classes, store.shape)
    weights = Layout.of(model).flatten(dict(model.named_parameters())).to(store.device)
    engine: Engine = make_engine(model, store, training)
    rates = np.full(training.iterations, training.learning_rate)
    warm_up = plan if name in ("graph", "stacked") else first_iterations(plan, 1)
    engine.train_round(weights, warm_up, rates[: len(warm_up.devices)])
    best = float("inf")
    for _ in range(repeats):
        finish(store.device)
        began = time.perf_counter()
        engine.train_round(weights, plan, rates)
        finish(store.device)
        best = min(best, time.perf_counter() - began)
    engine.close()
    return 1e3 * best / training.iterations


def first_iterations(plan: RoundPlan, count: int) -> RoundPlan:
    return RoundPlan(
        plan.round, plan.devices[:count], plan.samples[:count], plan.sizes[:count], plan.divergence[:count]
    )


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def paths(settings: Settings, federation: Federation, device: torch.device, options: argparse.Namespace) -> None:
    store = ImageStore(federation, device)
    plan = SelectionPlan(federation, settings).next_round()
    plan = SelectionPlan(federation, settings).next_round()  # once more, compiled
    print(
        f"selection            {1e3 * plan.seconds / settings.training.iterations:9.2f} ms an iteration, in its thread"
    )
    names = [] if options.skip_per_device else ["per-device"]
    names += ["fused"]
    if device.type == "cuda":
        names += ["graph", "stacked"] if settings.training.model == "paper" else ["graph"]
    words = {
        "per-device": "loop over devices",
        "fused": "loop over factories",
        "graph": "one CUDA graph",
        "stacked": "stacked, one graph",
    }
    slow = None
    for name in names:
        repeats = 1 if name == "per-device" and device.type == "cuda" else options.repeats
        taken = time_path(name, settings, store, plan, len(federation.classes), repeats)
        slow = taken if name == "per-device" else slow
        ratio = f"{slow / taken:7.1f} ×" if slow is not None else ""
        print(f"{words[name]:20} {taken:9.2f} ms an iteration {ratio}", flush=True)


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
    print(
        f"{where}, torch {torch.__version__}: {training.model} network, {federation.name}, {federation.factories} "
        f"factories × {settings.selection.pick} devices × {training.batch_size} samples, {training.precision}"
    )
    paths(settings, federation, device, options)
    if options.rounds > 1:
        whole_rounds(settings, federation, device)


if __name__ == "__main__":
    main()
