"""Networks of one's own: all clients of a round against a plain PyTorch loop over them, on this machine.

    python benchmarks/own_models.py                    # two CPU cores: 12 clients
    python benchmarks/own_models.py --device cuda      # 100 clients, batches of 32
    python benchmarks/own_models.py --json FILE

Prints, for three networks that fedgs knows nothing of (the paper's CNN written as a user's module, a ResNet-8 with
group normalisation on 32×32×3 images, a 1-D CNN with batch normalisation on 3×1024 signals), the milliseconds of

    step     one local step of all clients                      against the loop: client after client
    fedavg   a whole round: unequal clients, some epochs        against the loop, with its mean at the end
    fedgs    a round of T iterations, all factories             against the per-device engine, the oracle

and how many times as fast fedgs is. Ratios of one run; the loop is a plain module, torch.optim.SGD and a batch a step,
with all data on the device. On processors it is timed twice: with one thread inside, as a client of fedgs has, and with
torch's own threads inside, which is how a user would first write it.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedgs
from command import in_one_line
from fedgs.algorithms.algorithm import Context
from fedgs.algorithms.client_server import ClientServer
from fedgs.algorithms.fedgs import StationRounds
from fedgs.algorithms.run_state import RunState
from fedgs.simulation.components import resolve
from fedgs.simulation.participants import ParticipantPlan
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.run import settings_for
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.simulator import pick_device
from fedgs.tasks.bind import bind
from fedgs.tasks.signals import VibrationNet
from fedgs.training.engine import Setup
from fedgs.training.objective import Sent
from fedgs.training.per_device import PerDeviceEngine
from fedgs.training.precision import gpu_precision
from fedgs.training.probe import probe
from fedgs.training.round_plan import ClientPlan
from fedgs.training.store import SampleStore

CLASSES = 10
PARTS = ("steps", "fedavg", "fedgs")


class PlainCNN(nn.Module):
    """The paper's network, as anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.dense1, self.dense2 = nn.Linear(3136, 2048), nn.Linear(2048, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        hidden = nn.functional.max_pool2d(torch.relu(self.conv2(hidden)), 2)
        outputs: Tensor = self.dense2(torch.relu(self.dense1(hidden.flatten(1))))
        return outputs


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.first, self.second = nn.GroupNorm(8, after), nn.GroupNorm(8, after)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.second(self.two(torch.relu(self.first(self.one(maps)))))
        return torch.relu(inner + self.short(maps))


class ResNet8(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.GroupNorm(8, width)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.blocks(torch.relu(self.norm(self.stem(images)))).mean((2, 3)))
        return outputs


def networks() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    return {
        "the paper's CNN": (PlainCNN, (1, 28, 28)),
        "ResNet-8 GroupNorm": (ResNet8, (3, 32, 32)),
        "1-D CNN BatchNorm": (lambda: VibrationNet(3, CLASSES), (3, 1024)),
    }


def federation_of(shape: tuple[int, ...], devices: int, samples: int, factories: int) -> fedgs.Federation:
    draws = np.random.default_rng(0)
    sizes = draws.integers(int(0.5 * samples), int(1.5 * samples) + 1, devices)
    client = np.repeat(np.arange(devices), sizes)
    inputs = draws.standard_normal((len(client), *shape), dtype=np.float32)
    labels = draws.integers(0, CLASSES, len(client))
    return fedgs.Federation.from_arrays(inputs, labels, devices=client, factories=factories)


class Bench:
    """One network on one device."""

    def __init__(self, make: Callable[[], nn.Module], shape: tuple[int, ...], options: argparse.Namespace) -> None:
        self.device = torch.device(options.device)
        self.options = options
        self.task = fedgs.classification(make, CLASSES)
        self.federation = federation_of(shape, options.devices, options.samples, options.factories)
        self.bound = bind(self.task, self.federation, 0)
        self.store = SampleStore(self.bound, self.device)

    def rounds(self, algorithm: str) -> Any:
        options = self.options
        values: dict[str, Any] = {
            "training": {
                "rounds": 10,
                "iterations": options.iterations,
                "batch_size": options.batch,
                "learning_rate": 0.01,
            },
            "selection": {"pick": options.pick},
            "algorithm": {"name": algorithm, "local_epochs": options.epochs},
        }
        if algorithm != "fedgs":
            values["algorithm"]["devices_per_round"] = options.clients
        settings = settings_for(self.federation, values, {})
        settings, components = resolve(settings, task=self.task)
        return components.algorithm.bind(Context(settings, self.bound, self.store, ProcessGroup(), print))

    def loops(self, plan: ClientPlan, average: bool) -> tuple[float, float]:
        """Seconds of the loop, with one thread inside and with torch's own; on a GPU they are the same."""
        own = self.timed(lambda: self.loop(plan, average))
        if self.device.type == "cuda":
            return own, own
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self.timed(lambda: self.loop(plan, average)), own
        finally:
            torch.set_num_threads(threads)

    def timed(self, action: Callable[[], object]) -> float:
        """Seconds, the least of some tries after one to get ready."""
        times = []
        for number in range(self.options.tries + 1):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            action()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            if number:
                times.append(time.perf_counter() - began)
        return min(times)

    def loop(self, plan: ClientPlan, average: bool) -> None:
        """Plain PyTorch: one client after the other."""
        model = copy.deepcopy(self.bound.module).to(self.device).train()
        start = {name: value.clone() for name, value in model.state_dict().items()}
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
        with gpu_precision("tf32"):
            for place in range(len(plan.devices)):
                model.load_state_dict(start)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                for step in range(int(plan.steps[place])):
                    inputs, labels = self.store.batch(
                        plan.samples[step, place, : plan.sizes[step, place]].astype(np.int64)
                    )
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(inputs), labels).backward()
                    optimizer.step()
                if average:
                    for name, value in model.state_dict().items():
                        total[name] += value.double() * float(plan.num_samples[place] / plan.num_samples.sum())

    def steps(self) -> tuple[float, ...]:
        """Milliseconds of one step of all clients: here, and in the loops."""
        rounds = self.rounds("fedavg")
        assert isinstance(rounds, ClientServer)
        count, batch, number = self.options.clients, self.options.batch, self.options.steps
        draws = np.random.default_rng(1)
        samples = draws.integers(0, len(self.federation.labels), (number, count, batch)).astype(np.int32)
        plan = ClientPlan(
            1, np.arange(count), samples, np.full((number, count), batch, np.int32), np.full(count, number),
            np.full(count, number * batch), np.zeros(count, np.int64),
        )  # fmt: skip
        weights = rounds.first_weights(None)
        sent = Sent({name: view[None] for name, view in rounds.layout.views(weights).items()}, {})
        fast = self.timed(lambda: rounds.trainer.train(sent, plan, 0.01)) / number
        rounds.close()
        return 1000 * fast, *(1000 * slow / number for slow in self.loops(plan, average=False))

    def fedavg(self) -> tuple[float, ...]:
        """Milliseconds of a whole round."""
        rounds = self.rounds("fedavg")
        plan = ParticipantPlan(self.federation, rounds.settings).next_round()
        weights = rounds.first_weights(None)
        state = RunState(0, weights, {}, rounds.begin(weights))
        fast = self.timed(lambda: rounds.run_round(state, plan, None))
        rounds.close()
        return 1000 * fast, *(1000 * slow for slow in self.loops(plan, average=True))

    def fedgs(self) -> tuple[float, ...]:
        """Milliseconds of a round of FedGS: its own engine, and the oracle."""
        rounds = self.rounds("fedgs")
        assert isinstance(rounds, StationRounds)
        plan = SelectionPlan(self.bound.federation, rounds.settings).next_round()
        weights = rounds.first_weights(None)
        state = RunState(0, weights, {}, rounds.begin(weights))
        fast = self.timed(lambda: rounds.run_round(state, plan, None))
        traits = probe(self.bound)
        rounds.engine.close()
        rounds.engine = PerDeviceEngine(Setup(rounds.network, self.store, rounds.settings.training, traits=traits))
        slow = self.timed(lambda: rounds.run_round(state, plan, None))
        return 1000 * fast, 1000 * slow, 1000 * slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    on_gpu = pick_device(options.device).type == "cuda"
    sizes = {"clients": 100, "devices": 120, "samples": 200, "batch": 32, "epochs": 2, "steps": 8, "factories": 10,
             "pick": 10, "iterations": 8, "tries": 2} if on_gpu else {
             "clients": 12, "devices": 24, "samples": 100, "batch": 32, "epochs": 1, "steps": 3, "factories": 4,
             "pick": 3, "iterations": 4, "tries": 4}  # fmt: skip
    vars(options).update(sizes)
    where = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    print(f"{where}, torch {torch.__version__}: {sizes}")
    results: list[dict[str, Any]] = []
    for name, (make, shape) in networks().items():
        bench = Bench(make, shape, options)
        for what in options.only:
            fast, slow, threaded = getattr(bench, what)()
            found = {"network": name, "what": what, "fedgs_ms": fast, "loop_ms": slow, "ratio": slow / fast}
            line = f"{name:<20} {what:<7} {fast:9.1f} ms   loop {slow:9.1f} ms   {slow / fast:6.1f} times as fast"
            if threaded != slow:
                found |= {"threaded_loop_ms": threaded, "threaded_ratio": threaded / fast}
                line += f";  with torch's threads {threaded:9.1f} ms   {threaded / fast:6.1f}"
            results.append(found)
            print(line, flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"where": where, "torch": torch.__version__, "sizes": sizes, "results": results}, file, indent=1)


if __name__ == "__main__":
    in_one_line(main)
