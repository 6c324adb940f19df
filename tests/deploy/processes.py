"""Parks of real processes on the loopback for tests; whatever a test starts ends with it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from fedgs.data import DataSet, Federation
from fedgs.data.npz import save_npz
from fedgs.deploy import pki
from fedgs.deploy.park import dataset_of
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder, RoundResult, decode_result, encode_order
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.transport import call_station, call_status
from fedgs.deploy.wire import Task
from fedgs.errors import PeerError
from fedgs.selection.team import TeamRule

CLASSES, SHAPE, BATCH = 4, (8, 8), 5


def named_task(
    run: str = "test", model: str = "linear", classes: int = CLASSES, shape: tuple[int, ...] = SHAPE,
    batch_size: int = BATCH, wire: str = "float32",
) -> Task:  # fmt: skip
    """Return the task of a built-in network on images, as a station tells it."""
    return Task(run, json.dumps({"model": model}), classes, json.dumps([list(shape), "uint8"]), batch_size, wire)


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
    """Starts processes of one test, with certificates; knows their folders and logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pki = folder / "pki"
        self.processes: list[subprocess.Popen[bytes]] = []
        pki.create_authority(self.pki)

    def start(
        self, name: str, *arguments: str, module: str = "fedgs", folder: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a process that logs to NAME.log, in a folder of its own or in the park's."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=folder or self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
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

    def train(self, federation: Federation, held_out: DataSet, options: Sequence[str]) -> dict[str, Tensor]:
        """Carry out a run over two stations, with a process a device, and return its model."""
        (self.folder / "target.json").write_text(json.dumps(federation.p_real().tolist()))
        save_npz(held_out, self.folder / "held-out.npz")
        waiting = ["--min-devices", str(len(federation) // 2), "--gather", "200"]
        stations = [self.station(f"s{factory}", *waiting) for factory in range(2)]
        for device, name in enumerate(federation.device_names):
            path = write_device(federation, device, self.folder / f"{name}.npz")
            self.device(name, stations[federation.factory_of[device]], source=f"npz:{path}")
        top = self.top(stations, *options, more=["--target", "target.json", "--held-out", "held-out.npz"])
        assert top.wait(timeout=240) == 0, self.text("top")
        found: dict[str, Tensor] = load_file(self.folder / "state" / "model.safetensors")
        return found

    def top(
        self, stations: "Sequence[StationHandle]", *overrides: str, more: Sequence[str] = ()
    ) -> "subprocess.Popen[bytes]":
        """Start a top server with the state folder ``state``."""
        if not (self.pki / "top").exists():
            pki.issue(self.pki, "top", "top")
        addresses = ",".join(station.top for station in stations)
        settings = [part for override in overrides for part in ("--set", override)]
        return self.start("top", "top", "--stations", addresses, "--state", "state", *more, *settings)

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
    """A running station."""

    def __init__(self, park: Park, name: str, process: "subprocess.Popen[bytes]", devices: str, top: str) -> None:
        self.park, self.name, self.process, self.devices, self.top = park, name, process, devices, top
        self.socket = park.folder / name / "control.sock"

    def status(self) -> pb.StationStatus:
        """Ask how things stand."""
        return call_status(self.socket, 5)

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
