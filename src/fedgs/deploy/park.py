"""A whole park on one machine: real processes, real certificates, real network, for trying out.

    out/pki/            the authority and all certificates
    out/data/           one .npz a device (its train samples), held-out.npz (all test samples), target.json (P_real)
    out/station-1/      state of a station; out/top/ of the top server: metrics.jsonl, checkpoint, model
    out/stations.json   the stations and their devices (:mod:`fedgs.deploy.park_stations`), which may change
    out/logs/           a log file a process
    out/commands.txt    a line a process, to start it by hand in this folder

With the settings of a simulation the park gives the simulation's result: devices, streams and selections are the same.

A process that dies is started again, after a pause that grows; one that dies soon after its start several times in a
row ends the park. A park that is in the folder already is gone on with, from the top server's checkpoint.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedgs.data import Federation
from fedgs.deploy import park_stations, pki
from fedgs.deploy.park_data import SETTINGS, data_file, write_files
from fedgs.deploy.park_stations import Homes
from fedgs.deploy.process import ADDRESSES, PARENT, SOCKET, claim
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.run_spec import lasting
from fedgs.deploy.station_calls import RELEASED_WITHIN
from fedgs.deploy.top_state import MODEL
from fedgs.deploy.transport import call_status
from fedgs.errors import CollapseError, FedgsError, InputFileError, OutputError, PeerError, WorkerError
from fedgs.files import make_folder, write_text
from fedgs.imports import is_import_path
from fedgs.settings import Settings
from fedgs.tasks.losses import Loss
from fedgs.tasks.task import resolve, task_from

STARTS_WITHIN = 60.0
"""Seconds a station has to begin to serve."""
ENDS_WITHIN = 12.0
"""Seconds a process has to end before it is killed: more than a station takes to drain."""
SOON, MOST_ENDS = 10.0, 4
"""A process that ends so many times in a row within so many seconds of its start is not started again."""
FIRST_PAUSE = 0.5
"""Seconds before a process is started again; doubled each time."""
PATIENT = ("--keepalive", "10")
"""All share one machine, so that each may stand still for seconds; one that dies is noticed at once anyway."""
REPLAY = "# Each line starts a process: one terminal for each, in this folder. The top server resumes the run.\n"


@dataclass
class Process:
    """One process of the park."""

    name: str
    role: str
    runner: Sequence[str]
    """What runs the command."""
    command: list[str]
    """As people write it."""
    log: Path
    popen: "subprocess.Popen[bytes]" = field(init=False)
    started_with: list[str] = field(init=False)
    """The command that runs; the next start takes ``command``."""
    began: float = 0.0
    ends: int = 0
    """How often in a row it has ended soon after its start."""
    again_at: float | None = None
    """When it is started again; None: it runs, or its end has not been seen yet."""

    def start(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Start it, or start it again."""
        self.began, self.again_at, self.started_with = time.monotonic(), None, list(self.command)
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                [*self.runner, *self.command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the park alone, which ends the others in order
                env=environment,
            )


@dataclass
class LocalPark:
    """The processes of a park and their folders."""

    folder: Path
    settings: Settings
    federation: Federation
    wire: str = "float32"
    processes: list[Process] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    """As people would write them, in the order in which they were started."""
    notices: list[str] = field(default_factory=list)
    """Who has died and is started again, in words."""
    homes: Homes = field(default_factory=dict)
    """The devices that prefer each station."""
    addresses: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each station, for devices and for the top server."""
    _followed: int = 0
    """When the list of stations was changed that the park has followed."""
    _ending: ClassVar[tuple[tuple[str, ...], ...]] = (("top", "device"), ("station",))
    """In this order they are ended, by role."""
    _control: ClassVar[bool] = True
    """Whether stations listen to a top server, beside their sockets."""

    def __post_init__(self) -> None:
        names, factory_of = self.federation.device_names, self.federation.factory_of
        for factory in range(self.federation.factories):
            own = [name for device, name in enumerate(names) if factory_of[device] == factory]
            self.homes[f"station-{factory + 1}"] = own

    @property
    def stations(self) -> list[str]:
        """Names of the stations, in the order of the factories."""
        return list(self.homes)

    @property
    def done(self) -> bool:
        """Whether the top server has come to its end."""
        return any(process.role == "top" and process.popen.poll() == 0 for process in self.processes)

    @property
    def finished(self) -> bool:
        """Whether an earlier start has made all rounds and left the model; the settings may want more rounds now."""
        return self.status().round >= self.settings.training.rounds and (self.folder / "top" / MODEL).exists()

    def prepare(self) -> None:
        """Write certificates, data and settings; in the folder of a park with the same settings, write them anew."""
        make_folder(self.folder / "logs")
        write_files(self.folder, self.settings, self.federation)
        authority = self.folder / "pki"
        if not (authority / pki.CA_KEY).exists():
            pki.create_authority(authority)
        self._issue("top", "top", pki.LOOPBACK)
        self._issue("operator", "operator")
        (self.folder / "top" / ADDRESSES).unlink(missing_ok=True)
        (self.folder / park_stations.ADDRESSES).unlink(missing_ok=True)
        if (self.folder / park_stations.FILE).exists():
            self.homes = park_stations.read_homes(self.folder, self.federation.device_names)
        for name in self.stations:
            self._issue("station", name, pki.LOOPBACK)
            (self.folder / name / ADDRESSES).unlink(missing_ok=True)
        for name in self.federation.device_names:
            self._issue("device", name)

    def _issue(self, role: str, name: str, hosts: Sequence[str] = ()) -> None:
        """Sign a certificate, unless there is one that still counts."""
        bundle = pki.Bundle(self.folder / "pki" / role / name)
        found = not bundle.fault(role) and not bundle.ending()
        if not found or not set(hosts) <= set(pki.hosts_in(pki.read_certificate(bundle.folder / pki.CERTIFICATE))):
            pki.issue(self.folder / "pki", role, name, hosts, renew=True)

    def check_folder(self) -> None:
        """Refuse a folder that is there and holds something other than this park, and a task nobody can import."""
        task = task_from(self.settings.task)
        resolve(task.model, "task.model"), Loss.of(task.loss)
        if not self.folder.exists():
            return
        try:
            (self.folder / "data").stat()  # which a simulated run does not have
            found = Settings.model_validate_json((self.folder / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise OutputError(
                f"{self.folder}: exists already and is no park; choose another folder with --out"
            ) from None
        key, old, new = _difference(lasting(found), lasting(self.settings))
        if key:
            raise OutputError(
                f"{self.folder}: holds a park with {key}={old}, not {new}; go on with its settings, or choose another "
                "folder with --out"
            )

    def start(self) -> None:
        """Start stations, devices and the top server."""
        self._start_stations(self.stations)
        for name in self.federation.device_names:
            self._start("device", name, *self._device(name))
        self._start_top()
        self._write_commands()

    def _write_commands(self) -> None:
        lines = [f"{shlex.join(self._by_hand(command))}\n" for command in self.commands]
        write_text(self.folder / "commands.txt", REPLAY + "".join(lines))

    def _by_hand(self, command: list[str]) -> list[str]:
        """Return a command that does the same in any terminal: with this fedgs, and with the user's own modules."""
        if command[0] == "export":
            return command
        on_path = shutil.which("fedgs")
        if command[0] == "fedgs" and (on_path is None or Path(on_path).parent != Path(sys.executable).parent):
            command = [sys.executable, "-m", *command]
        places = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        known = os.pathsep.join(os.path.abspath(place) for place in places if place)
        return ["env", f"PYTHONPATH={known}", *command] if _imports(self.settings.model_dump()) else command

    def _start_stations(self, names: Sequence[str]) -> None:
        """Start stations and wait until they serve."""
        free = {"devices": "127.0.0.1:0", "top": "127.0.0.1:0"}
        for name in names:
            self._start("station", name, *self._station(name, free))
        for process in self.processes[-len(names) :]:
            self.addresses[process.name] = self._addresses(process.name)
            # Started again, it takes the ports it had: its devices and the top server know them.
            process.command[2:] = self._station(process.name, self.addresses[process.name])

    def _station(self, name: str, addresses: Mapping[str, str]) -> list[str]:
        """Return the arguments of a station."""
        control = ["--control", addresses["top"]] if self._control else []
        waits = ["--min-devices", str(max(1, len(self.homes[name]))), "--gather", "60", *PATIENT]
        return ["--listen", addresses["devices"], *control, "--state", name, *waits]

    def _device(self, name: str) -> list[str]:
        """Return the arguments of a device: its own station and then the others."""
        own = next(station for station, devices in self.homes.items() if name in devices)
        order = [own, *(station for station in self.homes if station != own)]
        return [
            "--station", ",".join(self.addresses[station]["devices"] for station in order), "--id", name, "--source",
            f"npz:{data_file(name)}", "--seed", str(self.settings.seed), "--longest-wait", "2", *PATIENT,
        ]  # fmt: skip

    def _start_top(self) -> None:
        park_stations.write_homes(self.folder, self.homes)
        self._followed = self._changed_at()
        self._list_stations()
        self._start(
            "top", "top", SETTINGS, "--stations", park_stations.ADDRESSES, "--state", "top",
            "--held-out", "data/held-out.npz", "--target", "data/target.json", "--wire", self.wire,
            "--listen", "127.0.0.1:0",
        )  # fmt: skip

    def _list_stations(self) -> None:
        addresses = {name: self.addresses[name]["top"] for name in self.homes}
        write_text(self.folder / park_stations.ADDRESSES, park_stations.addresses_text(addresses))

    def _changed_at(self) -> int:
        try:
            return (self.folder / park_stations.FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def follow(self) -> None:
        """Make the stations those of the file, where ``fedgs park stations`` has changed it."""
        changed = self._changed_at()
        if not self._followed or changed == self._followed:
            return
        self._followed, before = changed, self.homes
        try:
            self.homes = park_stations.read_homes(self.folder, self.federation.device_names)
        except InputFileError as error:
            self.notices.append(f"the stations stay as they are: {error}")
            return
        new = [name for name in self.homes if name not in before]
        gone = [process for process in self.processes if process.name in before and process.name not in self.homes]
        for name in new:
            self._issue("station", name, pki.LOOPBACK)
        if new:
            self._start_stations(new)
        self._list_stations()
        for process in self.processes:
            if process.role == "top":
                process.popen.send_signal(signal.SIGHUP)
            elif process.role == "device":
                self._move(process)
        for process in gone:
            self._part_with(process)
        self.notices += [f"{name} has joined" for name in new] + [f"{process.name} has left" for process in gone]
        self._write_commands()

    def _move(self, device: Process) -> None:
        """Give a device its new list of stations; it is started again where the old one leads it to another station."""
        old = device.started_with[3].split(",")
        device.command[2:] = self._device(device.name)
        if not park_stations.leads_home(old, device.command[3].split(",")):
            _end([device.popen])
            device.start(self.folder, self._environment())

    def _part_with(self, station: Process) -> None:
        """End a station once the top server has told it to send its devices away, or after a while."""
        self.processes.remove(station)
        self.commands = [command for command in self.commands if command is not station.command]
        until = time.monotonic() + RELEASED_WITHIN
        while time.monotonic() < until and not self.done:
            status = report_of(self.folder / station.name).status
            if all(device.state == "offline" for device in status.devices):  # or nobody answers
                break
            time.sleep(0.1)
        _end([station.popen])

    def _start(self, role: str, name: str, *arguments: str) -> None:
        self._start_command(name, role, [sys.executable, "-m"], ["fedgs", role, *arguments])

    def _start_command(self, name: str, role: str, runner: Sequence[str], command: list[str]) -> None:
        process = Process(name, role, runner, command, self.folder / "logs" / f"{name}.log")
        process.start(self.folder, self._environment())
        self.processes.append(process)
        self.commands.append(command)

    def _environment(self) -> dict[str, str]:
        of_roles = ("GRPC_VERBOSITY", "GRPC_TRACE")
        own = {name: value for name, value in os.environ.items() if name not in of_roles}
        places = [os.path.abspath(place) for place in (*sys.path, "")]  # they work in another folder
        return own | {PARENT: str(os.getpid()), "PYTHONPATH": os.pathsep.join(places)}

    def _addresses(self, process: str) -> dict[str, str]:
        path = self.folder / process / ADDRESSES
        self._wait_for(path.exists, process)
        return dict(line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())

    def _wait_for(self, serves: Callable[[], bool], name: str) -> None:
        until = time.monotonic() + STARTS_WITHIN
        while not serves():
            self.check()
            if time.monotonic() > until:
                raise WorkerError(f"{name} does not serve after {STARTS_WITHIN:g} s; see {self.folder / 'logs'}")
            time.sleep(0.05)

    def check(self) -> None:
        """Start again what has died; raise an error where that does not help."""
        now = time.monotonic()
        for process in self.processes:
            code = process.popen.poll()
            if code is None or (process.role == "top" and code == 0):
                continue
            if process.again_at is None:
                self._ended(process, code, now)
            elif now >= process.again_at:
                process.start(self.folder, self._environment())

    def _ended(self, process: Process, code: int, now: float) -> None:
        """Plan the next start of a process that has died."""
        process.ends = process.ends + 1 if now - process.began < SOON else 1
        said = f"{process.name} has ended with code {code}: {_last_line(process.log)}"
        if code == CollapseError.exit_code:
            raise CollapseError(said)
        if self._is_final(process, code):
            raise WorkerError(said)
        if process.ends == MOST_ENDS:
            raise WorkerError(f"{said} ({MOST_ENDS} times in a row, each within {SOON:g} s of its start)")
        pause = FIRST_PAUSE * 2 ** (process.ends - 1)
        process.again_at = now + pause
        self.notices.append(f"{process.name} has ended with code {code}; it is started again in {pause:g} s")

    def _is_final(self, process: Process, code: int) -> bool:
        """Whether a process has ended for good: the top server has said what is wrong."""
        return process.role == "top" and code == FedgsError.exit_code

    def status(self) -> pb.TopStatus:
        """Return how the run goes, from the files of the top server and the sockets of the stations."""
        lines = self._metrics()
        done = json.loads(lines[-1])["round"] if lines else 0
        rounds = self.settings.training.rounds
        return pb.TopStatus(round=done, rounds=rounds, lines=lines, stations=reports(self.folder))

    def lines(self) -> list[dict[str, Any]]:
        """Return the metrics of the rounds so far."""
        return [json.loads(line) for line in self._metrics()]

    def _metrics(self) -> list[str]:
        try:
            return (self.folder / "top" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    @property
    def operators(self) -> str:
        """Where the top server answers operators; "" where it does not, or not yet."""
        path = self.folder / "top" / ADDRESSES
        return self._addresses("top").get("operators", "") if path.exists() else ""

    def end(self) -> None:
        """End everything that was started: the stations last."""
        for roles in self._ending:
            _end([process.popen for process in self.processes if process.role in roles])


@contextmanager
def running(park: LocalPark) -> Iterator[LocalPark]:
    """Prepare and start a park; whatever happens, none of its processes is left."""
    task = task_from(park.settings.task)  # what nobody can import is said before anything is written
    resolve(task.model, "task.model"), Loss.of(task.loss)
    park.check_folder()
    with claim(park.folder, "park", "--out"):
        try:
            park.prepare()
            park.start()
            yield park
        finally:
            park.end()


def _end(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """End processes; those that take too long are killed."""
    for popen in processes:
        if popen.poll() is None:
            popen.send_signal(signal.SIGTERM)
    until = time.monotonic() + ENDS_WITHIN
    for popen in processes:
        try:
            popen.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


def reports(folder: Path) -> list[pb.StationReport]:
    """Ask the stations of a park on this machine how they are, in the order of the factories."""
    try:
        names = list(park_stations.read_homes(folder))
    except InputFileError:  # of a park over Flower, whose stations do not change; or there is none yet
        names = sorted((path.name for path in folder.glob("station-*")), key=lambda name: (len(name), name))
    return [report_of(folder / name) for name in names]


def report_of(station: Path) -> pb.StationReport:
    """Ask the station with this folder how it is."""
    try:
        return pb.StationReport(name=station.name, status=call_status(station / SOCKET))
    except PeerError as error:
        return pb.StationReport(name=station.name, fault=str(error))


def _imports(value: Any) -> bool:
    """Tell whether settings name a module of the user's own."""
    if isinstance(value, dict | list):
        return any(map(_imports, value.values() if isinstance(value, dict) else value))
    return is_import_path(value)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"


def _difference(old: Any, new: Any, where: str = "") -> tuple[str, Any, Any]:
    """Return the first place where two settings differ, and what each has there; "" where they are the same."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            if old.get(key) != new.get(key):
                return _difference(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
        return "", None, None
    return where, old, new
