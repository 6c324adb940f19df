"""Parks on the loopback for tests: stations in the test's own process, or real processes where these are the point.

Whatever a test starts ends with it.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data import Federation
from fedgs.data.npz import save_npz
from fedgs.deploy import pki
from fedgs.deploy.logs import JsonLines, log
from fedgs.deploy.metrics import StationMetrics
from fedgs.deploy.park_data import dataset_of
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder, RoundResult, decode_result, encode_order
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.station import Station
from fedgs.deploy.station_process import Control, serving
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.transport import call_station, call_status
from fedgs.errors import PeerError
from fedgs.selection.team import TeamRule

CLASSES, SHAPE, BATCH = 4, (8, 8), 5


def named_task(
    run: str = "test", model: str = "linear", classes: int = CLASSES, shape: tuple[int, ...] = SHAPE,
    batch_size: int = BATCH, **more: Any,
) -> pb.Task:  # fmt: skip
    """Return the task of a built-in network on images, as a station tells it."""
    given = {"spec": json.dumps({"model": model}), "inputs": json.dumps([list(shape), "uint8"]), "wire": pb.FLOAT32}
    return pb.Task(**{"run": run, "classes": classes, "batch_size": batch_size} | given | more)


TASK = named_task()
SHAPES = Shapes((("dense.weight", (CLASSES, 64)), ("dense.bias", (CLASSES,))))
RUN_ROUND_TIMEOUT = 60
UNIFORM = np.full(CLASSES, 1 / CLASSES)


def wait_for(what: Callable[[], Any], seconds: float = 20.0, why: str = "it") -> Any:
    """Wait until something is true, and return it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain for {why}")


class Park:
    """Starts stations and processes of one test, with certificates; knows their folders and logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pki = folder / "pki"
        self.path: Path | None = None
        """Where processes import fedgs from; None: as the test itself."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self.served = AsyncExitStack()
        pki.create_authority(self.pki)

    async def serve(self, name: str = "s1", *, insecure: bool = False, **settings: Any) -> "StationHandle":
        """Serve a station from this process until the test ends; all that reaches it comes over real connections."""
        bundle = None if insecure else pki.Bundle(pki.issue(self.pki, "station", name, pki.LOOPBACK))
        (self.folder / name).mkdir(mode=0o700)
        given = StationSettings(**settings)
        station = Station(given, StationMetrics(given.metrics_devices), bundle)
        control = Control(name, station, self.folder / name, bundle)
        handler = logging.FileHandler(self.folder / f"{name}.log")
        handler.setFormatter(JsonLines())
        log.logger.addHandler(handler)
        self.served.callback(log.setLevel, log.logger.level)
        self.served.callback(handler.close)
        self.served.callback(log.logger.removeHandler, handler)
        log.setLevel("DEBUG")
        listening = serving(control, "127.0.0.1:0", "127.0.0.1:0", bundle)
        devices, top = await self.served.enter_async_context(listening)
        return StationHandle(self, name, control, devices, str(top))

    def start(
        self, name: str, *arguments: str, module: str = "fedgs", folder: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a process that logs to NAME.log, in a folder of its own or in the park's."""
        environment = dict(os.environ)
        if self.path is not None:
            environment["PYTHONPATH"] = str(self.path)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=folder or self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self.processes.append(process)
        return process

    def station(self, name: str = "s1", *options: str) -> "StationHandle":
        """Start a station and wait until it serves."""
        if not (self.pki / "station" / name).exists():
            pki.issue(self.pki, "station", name, pki.LOOPBACK)
        addresses = self.folder / name / "addresses.txt"
        ports = ["0", "0"]
        if addresses.exists():  # a restart takes the ports it had
            ports = [line.rpartition(":")[2] for line in addresses.read_text().splitlines()]
            addresses.unlink()
        process = self.start(
            name, "station", "--listen", f"127.0.0.1:{ports[0]}", "--control", f"127.0.0.1:{ports[1]}",
            "--state", name, "--log-json", "--log-level", "debug", *options,
        )  # fmt: skip
        wait_for(lambda: addresses.exists() or process.poll() is not None, 30, f"{name} to serve")
        assert process.poll() is None, self.text(name)
        found = dict(line.split(" ") for line in addresses.read_text().splitlines())
        return StationHandle(self, name, process, found["devices"], found["top"])

    def device(self, name: str, station: "StationHandle", *options: str, source: str) -> "subprocess.Popen[bytes]":
        """Start a device."""
        if not (self.pki / "device" / name).exists():
            pki.issue(self.pki, "device", name)
        return self.start(
            name, "device", "--station", station.devices, "--id", name, "--source", source, "--longest-wait", "0.5",
            "--log-json", *options,
        )  # fmt: skip

    def top(
        self, stations: "Sequence[StationHandle]", *overrides: str, more: Sequence[str] = ()
    ) -> "subprocess.Popen[bytes]":
        """Start a top server with the state folder ``state``."""
        return self.top_of(",".join(station.top for station in stations), *overrides, more=more)

    def top_of(self, stations: str, *overrides: str, more: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
        """Start a top server with these ``--stations``."""
        if not (self.pki / "top").exists():
            pki.issue(self.pki, "top", "top")
        settings = [part for override in overrides for part in ("--set", override)]
        return self.start("top", "top", "--stations", stations, "--state", "state", *more, *settings)

    def rounds(self) -> list[dict[str, Any]]:
        """Return the metrics of the top server's rounds so far."""
        path = self.folder / "state" / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def text(self, name: str) -> str:
        """Return the log of a process."""
        return (self.folder / f"{name}.log").read_text()

    def log(self, name: str, event: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of a JSON log."""
        lines = [json.loads(line) for line in self.text(name).splitlines() if line.startswith("{")]
        return [line for line in lines if event is None or line["event"] == event]

    def end(self) -> None:
        """End everything that was started here."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes:
            process.wait(timeout=10)


class StationHandle:
    """A running station: a process, or one in this process."""

    def __init__(
        self, park: Park, name: str, runs: "subprocess.Popen[bytes] | Control", devices: str, top: str
    ) -> None:
        self.park, self.name, self.runs, self.devices, self.top = park, name, runs, devices, top
        self.socket = park.folder / name / "control.sock"

    @property
    def control(self) -> Control:
        assert isinstance(self.runs, Control)
        return self.runs

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert isinstance(self.runs, subprocess.Popen)
        return self.runs

    def status(self) -> pb.StationStatus:
        """Ask how things stand."""
        return self.runs.report() if isinstance(self.runs, Control) else call_status(self.socket, 5)

    def states(self) -> dict[str, str]:
        """Return the state of every device."""
        try:
            return {device.name: device.state for device in self.status().devices}
        except PeerError:
            return {}

    def wait_ready(self, count: int, seconds: float = 20.0) -> None:
        """Wait until so many devices are connected."""
        wait_for(
            lambda: sum(state != "offline" for state in self.states().values()) >= count, seconds,
            f"{count} devices at {self.name}: {self.states()}",
        )  # fmt: skip

    def round(self, number: int = 1, iterations: int = 3, **changes: Any) -> RoundResult:
        """Carry out a round through the Unix socket."""
        return decode_result(call_station(self.socket, encode_order(order(number, iterations, **changes)), 60))


def order(number: int = 1, iterations: int = 3, rate: float = 0.1, pick: int = 3, **changes: Any) -> RoundOrder:
    """Return an order of the small linear task."""
    wanted = TeamRule(pick, 1, "gbp-cs", {}, UNIFORM, 0, 0)
    values: dict[str, Any] = {
        "run": "test",
        "round": number,
        "task": TASK,
        "wanted": wanted,
        "first_iteration": (number - 1) * iterations,
        "rates": np.full(iterations, rate),
        "shapes": SHAPES,
        "weights": np.zeros(SHAPES.size, np.float32),
        "head": "dense",
    }
    return RoundOrder(**(values | changes))


def write_device(federation: Federation, device: int, path: Path) -> Path:
    """Write the train samples of one device, in their order."""
    name = federation.device_names[device]
    save_npz(dataset_of(federation, name, [name], [federation.train[device]]), path)
    return path
