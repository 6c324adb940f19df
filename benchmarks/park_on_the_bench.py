"""A station process and devices that train nothing, driven by orders: what benchmarks/deployment.py measures."""

import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy import pki
from fedgs.deploy.agent import Agent
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder, RoundResult, decode_result, encode_order
from fedgs.deploy.sources import Batch
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.transport import call_station, call_status
from fedgs.selection.team import TeamRule

CLASSES, BATCH, SHAPE = 62, 32, (28, 28)
TASK = pb.Task(
    run="bench", spec=json.dumps({"model": "fixed"}), classes=CLASSES, inputs=json.dumps([list(SHAPE), "uint8"]),
    batch_size=BATCH, wire=pb.FLOAT32,
)  # fmt: skip


class Pictures:
    """A source that costs nothing: the same dark pictures, with labels of a device's own distribution."""

    def __init__(self, seed: int) -> None:
        self._draws = np.random.default_rng(seed)
        self._chances = self._draws.dirichlet(np.full(CLASSES, 0.3))

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        images = np.zeros((size, *SHAPE), np.uint8)
        while True:
            yield Batch(images, self._draws.choice(classes, size, p=self._chances))


class FixedChange:
    """A trainer that answers at once; ``pause`` seconds where a device is to be caught in mid-iteration."""

    def __init__(self, weights: int, pause: float = 0.0) -> None:
        self.shapes = Shapes((("w", (weights,)),))
        self._change = np.random.default_rng(0).standard_normal(weights).astype(np.float32) * np.float32(1e-4)
        self._pause = pause

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        time.sleep(self._pause)
        return self._change, 1.0

    def bins(self, batch: Batch) -> NDArray[np.int64]:
        return batch.targets


def agents(folder: str, address: str, numbers: list[int], weights: int, pause: float) -> None:
    """A process with some devices."""

    async def run() -> None:
        trainer = FixedChange(weights, pause)
        made = [
            Agent(
                Identity("park", "device", f"d{number:03d}"), address, Pictures(number),
                Bundle(Path(folder) / "pki/device" / f"d{number:03d}"), make=lambda _: trainer,
            )
            for number in numbers
        ]  # fmt: skip
        await asyncio.gather(*(agent.run() for agent in made))

    asyncio.run(run())


class Bench:
    """A station process, its devices, and the orders that drive it."""

    def __init__(self, folder: Path, weights: int, *options: str) -> None:
        self.folder, self.weights = folder, weights
        pki.create_authority(folder / "pki")
        pki.issue(folder / "pki", "station", "s", pki.LOOPBACK)
        self.station = subprocess.Popen(
            [sys.executable, "-m", "fedgs", "station", "--listen", "127.0.0.1:0", "--state", "s", "--gather", "60",
             "--log-level", "error", *options],
            cwd=folder,
        )  # fmt: skip
        addresses = folder / "s" / "addresses.txt"
        wait_for(addresses.exists)
        self.address = addresses.read_text().split()[1]
        self.processes: list[Any] = []
        self.socket = folder / "s" / "control.sock"
        self._round = 0

    def devices(self, groups: list[list[int]], pause: float = 0.0) -> None:
        context = multiprocessing.get_context("spawn")
        for numbers in groups:
            for number in numbers:
                pki.issue(self.folder / "pki", "device", f"d{number:03d}")
            arguments = (str(self.folder), self.address, numbers, self.weights, pause)
            process = context.Process(target=agents, args=arguments, daemon=True)
            process.start()
            self.processes.append(process)
        wanted = sum(map(len, groups))
        wait_for(lambda: sum(device.state != "offline" for device in self.status().devices) >= wanted)

    def status(self) -> pb.StationStatus:
        return call_status(self.socket, 10)

    def round(self, iterations: int, pick: int = 10, solver: str = "gbp-cs") -> tuple[RoundResult, float]:
        """Carry out a round and return the seconds it took."""
        self._round += 1
        shapes = Shapes((("w", (self.weights,)),))
        wanted = TeamRule(pick, 2, solver, {}, np.full(CLASSES, 1 / CLASSES), 0, 0)
        order = RoundOrder(
            "bench", self._round, TASK, wanted, 0, np.full(iterations, 0.1), shapes,
            np.full(self.weights, 1e-2, np.float32),
        )  # fmt: skip
        data = encode_order(order)
        began = time.perf_counter()
        answer = call_station(self.socket, data)
        return decode_result(answer), time.perf_counter() - began

    def iteration(self, few: int, many: int, repeats: int, **options: Any) -> list[float]:
        """Seconds an iteration: what ``many`` take more than ``few``, so that carrying the round does not count."""
        self.round(few, **options)
        found = []
        for _ in range(repeats):
            short, long = self.round(few, **options)[1], self.round(many, **options)[1]
            found.append((long - short) / (many - few))
        return found

    def resident(self) -> float:
        """Megabytes of the station."""
        text = Path(f"/proc/{self.station.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.station.terminate()
        self.station.wait()


@contextmanager
def bench(weights: int, *options: str) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="fedgs-") as folder:
        made = Bench(Path(folder), weights, *options)
        try:
            yield made
        finally:
            made.end()


def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)
