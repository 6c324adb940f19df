"""A whole park on one machine: real processes, real certificates, real network, for trying out.

    out/pki/            the authority and all certificates
    out/data/           one .npz a device (its train samples), held-out.npz (all test samples), target.json (P_real)
    out/station-1/      state of a station; out/top/ of the top server: metrics.jsonl, checkpoint, model
    out/logs/           a log file a process
    out/commands.txt    the commands that were started, to start them by hand

With the settings of a simulation the park gives the simulation's result: devices, streams and selections are the same.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedgs.data import DataSet, Federation
from fedgs.data.arrays import take
from fedgs.data.dataset import ONE_BIN
from fedgs.data.npz import save_npz
from fedgs.deploy import pki
from fedgs.deploy.process import PARENT, SOCKET
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.station_process import ADDRESSES
from fedgs.deploy.transport import call_status
from fedgs.errors import OutputError, PeerError, WorkerError
from fedgs.files import make_folder, write_text
from fedgs.settings import Settings

STARTS_WITHIN = 60.0
"""Seconds a station has to begin to serve."""
ENDS_WITHIN = 5.0
"""Seconds a process has to end before it is killed."""


@dataclass
class Process:
    """One process of the park."""

    name: str
    role: str
    popen: "subprocess.Popen[bytes]"
    log: Path


@dataclass
class LocalPark:
    """The processes of a park and their folders."""

    folder: Path
    settings: Settings
    federation: Federation
    wire: str = "float32"
    processes: list[Process] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    _ending: ClassVar[tuple[tuple[str, ...], ...]] = (("top", "device"), ("station",))
    """In this order they are ended, by role."""
    _control: ClassVar[tuple[str, ...]] = ("--control", "127.0.0.1:0")
    """How a station is told to listen to a top server."""

    @property
    def stations(self) -> list[str]:
        """Names of the stations, in the order of the factories."""
        return [f"station-{factory + 1}" for factory in range(self.federation.factories)]

    @property
    def done(self) -> bool:
        """Whether the top server has ended."""
        return any(process.role == "top" and process.popen.poll() is not None for process in self.processes)

    def prepare(self) -> None:
        """Write certificates, data and settings."""
        if self.folder.exists():
            raise OutputError(f"{self.folder}: exists already; choose another folder with --out")
        make_folder(self.folder / "logs")
        authority = self.folder / "pki"
        pki.create_authority(authority)
        pki.issue(authority, "top", "top")
        for name in self.stations:
            pki.issue(authority, "station", name, pki.LOOPBACK)
        for name in self.federation.device_names:
            pki.issue(authority, "device", name)
        write_data(self.federation, self.folder / "data")
        write_text(self.folder / "config.json", json.dumps(self.settings.model_dump(), indent=1) + "\n")

    def start(self) -> None:
        """Start stations, devices and the top server."""
        self._start_top(self._start_factories())
        write_text(self.folder / "commands.txt", "".join(f"{command}\n" for command in self.commands))

    def _start_factories(self) -> list[dict[str, str]]:
        """Start stations and devices; return the addresses of the stations."""
        sizes = self.federation.factory_sizes.tolist()
        for name, devices in zip(self.stations, sizes, strict=True):
            self._start(
                name, "station", "--listen", "127.0.0.1:0", *self._control, "--state", name,
                "--min-devices", str(devices), "--gather", "60",
            )  # fmt: skip
        addresses = [self._addresses(name) for name in self.stations]
        for device, name in enumerate(self.federation.device_names):
            station = addresses[self.federation.factory_of[device]]["devices"]
            self._start(
                name, "device", "--station", station, "--id", name, "--source", f"npz:data/{name}.npz",
                "--seed", str(self.settings.seed), "--longest-wait", "2",
            )  # fmt: skip
        return addresses

    def _start_top(self, stations: list[dict[str, str]]) -> None:
        addresses = ",".join(station["top"] for station in stations)
        self._start(
            "top", "top", "config.json", "--stations", addresses, "--state", "top",
            "--held-out", "data/held-out.npz", "--target", "data/target.json", "--wire", self.wire,
        )  # fmt: skip

    def _start(self, name: str, role: str, *arguments: str) -> None:
        self._start_command(name, role, [sys.executable, "-m", "fedgs", role, *arguments], ["fedgs", role, *arguments])

    def _start_command(self, name: str, role: str, command: Sequence[str], shown: Sequence[str]) -> None:
        log = self.folder / "logs" / f"{name}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others in order
                env=self._environment(),
            )
        self.processes.append(Process(name, role, popen, log))
        self.commands.append(shlex.join(shown))

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}  # each role has its own
        return own | {PARENT: str(os.getpid()), "PYTHONPATH": os.pathsep.join(sys.path)}

    def _addresses(self, station: str) -> dict[str, str]:
        path = self.folder / station / ADDRESSES
        self._wait_for(path.exists, station)
        return dict(line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())

    def _wait_for(self, serves: Callable[[], bool], name: str) -> None:
        until = time.monotonic() + STARTS_WITHIN
        while not serves():
            self.check()
            if time.monotonic() > until:
                raise WorkerError(f"{name} does not serve after {STARTS_WITHIN:g} s; see {self.folder / 'logs'}")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise an error when a process other than the top server has ended."""
        for process in self.processes:
            code = process.popen.poll()
            if code is not None and (process.role != "top" or code):
                raise WorkerError(f"{process.name} has ended with code {code}: {_last_line(process.log)}")

    def status(self, station: str) -> pb.StationStatus | None:
        """Ask a station for its status; None where it does not answer."""
        try:
            return call_status(self.folder / station / SOCKET)
        except PeerError:
            return None

    def lines(self) -> list[dict[str, Any]]:
        """Return the metrics of the rounds so far."""
        try:
            text = (self.folder / "top" / "metrics.jsonl").read_text(encoding="utf-8")
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def end(self) -> None:
        """End everything that was started: the stations last."""
        for roles in self._ending:
            ending = [process.popen for process in self.processes if process.role in roles]
            for popen in ending:
                if popen.poll() is None:
                    popen.send_signal(signal.SIGTERM)
            until = time.monotonic() + ENDS_WITHIN
            for popen in ending:
                try:
                    popen.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    popen.kill()
                    popen.wait()


@contextmanager
def running(park: LocalPark) -> Iterator[LocalPark]:
    """Prepare and start a park; whatever happens, none of its processes is left."""
    park.prepare()
    try:
        park.start()
        yield park
    finally:
        park.end()


def write_data(federation: Federation, folder: Path) -> None:
    """Write what each device holds, what the top server tests on, and P_real."""
    make_folder(folder)
    for device, name in enumerate(federation.device_names):
        save_npz(dataset_of(federation, name, [name], [federation.train[device]]), folder / f"{name}.npz")
    tests = [federation.test[device] for device in range(len(federation))]
    # A data set lists its clients by name; the federation has them by factory.
    order = sorted(range(len(federation)), key=lambda device: federation.device_names[device])
    names = [federation.device_names[device] for device in order]
    save_npz(dataset_of(federation, "held-out", names, [tests[device] for device in order]), folder / "held-out.npz")
    write_text(folder / "target.json", json.dumps(federation.p_real().tolist()) + "\n")


def dataset_of(federation: Federation, name: str, clients: Sequence[str], samples: Sequence[Any]) -> DataSet:
    """Return the data set of these clients, each with its samples."""
    rows = np.concatenate(samples)
    return DataSet(
        name,
        take(federation.inputs, rows),
        take(federation.targets, rows),
        np.repeat(np.arange(len(clients), dtype=np.int32), [len(part) for part in samples]),
        tuple(clients),
        classes_of(federation),
    )


def classes_of(federation: Federation) -> tuple[str, ...]:
    """Return the classes of a federation whose targets are classes; none of others."""
    same = isinstance(federation.targets, np.ndarray) and np.array_equal(federation.targets, federation.labels)
    return federation.classes if same and federation.classes != ONE_BIN else ()


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"
