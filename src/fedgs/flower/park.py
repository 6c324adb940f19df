"""A whole park on one machine with Flower between stations and top server: ``fedgs park up --flower``.

Beside what every park has (:mod:`fedgs.deploy.park`):

    out/app/pyproject.toml   the Flower app with the settings of this run
    out/flower/              Flower's home: its config names the SuperLink ``park``

SuperLink and SuperNodes are real processes that talk TLS with the park's certificates; the SuperLink admits only the
SuperNodes whose keys were registered. ``flwr run`` carries the run out; without one, the park waits for yours.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from flwr.common.config import flatten_dict

from fedgs import __version__
from fedgs.deploy import pki
from fedgs.deploy.park import ENDS_WITHIN, LocalPark, Process
from fedgs.deploy.process import PARENT
from fedgs.errors import WorkerError
from fedgs.files import make_folder, write_text
from fedgs.flower.strategies import flower_rule

HOST, CONNECTION = "127.0.0.1", "park"
APP = """# The Flower app of this park; see the park's commands.txt.
[project]
name = "fedgs-park"
version = "{version}"
description = "FedGS over super nodes"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedgs"

[tool.flwr.app.components]
serverapp = "fedgs.flower.server:app"
clientapp = "fedgs.flower.client:app"

[tool.flwr.app.config]
{config}
"""


@dataclass
class FlowerPark(LocalPark):
    """A park whose stations are SuperNodes."""

    run: bool = True
    """False: everything is started but the run."""
    port: int = 0
    """Of the SuperLink."""
    _control: ClassVar[bool] = False  # their sockets are enough
    _ending: ClassVar[tuple[tuple[str, ...], ...]] = (("top",), ("supernode", "device"), ("superlink",), ("station",))

    @property
    def home(self) -> Path:
        """Flower's home."""
        return self.folder.resolve() / "flower"

    @property
    def flower_environment(self) -> dict[str, str]:
        """What Flower's programs find in their environment: a home of their own, and no calls home."""
        return {"FLWR_HOME": str(self.home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def check_folder(self) -> None:
        """Refuse a server rule that Flower does not have, and a folder that holds something else."""
        flower_rule(self.settings.server)
        super().check_folder()

    def prepare(self) -> None:
        """Write certificates, data, settings and the app."""
        super().prepare()
        authority = self.folder / "pki"
        self._issue("superlink", "superlink", pki.LOOPBACK)
        for name in self.stations:
            pki.issue_node_key(authority, name, renew=True)
        make_folder(self.folder / "app")
        write_text(self.folder / "app" / "pyproject.toml", self._app())
        make_folder(self.home)
        for database in self.home.glob("superlink.db*"):  # of a park that is gone on with: it knows the nodes' old keys
            database.unlink()

    def _start_top(self) -> None:
        self.commands += [["export", f"{key}={value}"] for key, value in self.flower_environment.items()]
        self.port, *node_ports = free_ports(1 + len(self.stations))
        authority = self.folder.resolve() / "pki" / pki.CA_CERTIFICATE
        write_text(
            self.home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{HOST}:{self.port}"\n'
            f"root-certificates = {json.dumps(str(authority))}\n",
        )
        self.start_superlink()
        self._register()
        for factory, (name, node_port) in enumerate(zip(self.stations, node_ports, strict=True)):
            keys = f"pki/supernode/{name}"
            self._start_flower(
                f"supernode-{factory + 1}", "supernode", "flower-supernode", "--superlink", f"{HOST}:{self.port}",
                "--root-certificates", f"{keys}/ca.crt", "--auth-supernode-private-key", f"{keys}/key",
                "--host", HOST, "--port", str(node_port), "--node-config", f'factory={factory} station="{name}"',
            )  # fmt: skip
        if self.run:
            self.start_run()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it serves; its database knows the SuperNodes of one that has ended."""
        bundle = "pki/superlink/superlink"
        self._start_flower(
            "superlink", "superlink", "flower-superlink", "--host", HOST, "--port", str(self.port),
            "--ssl-ca-certfile", f"{bundle}/ca.crt", "--ssl-certfile", f"{bundle}/cert.pem",
            "--ssl-keyfile", f"{bundle}/key.pem", "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--database", "flower/superlink.db",
        )  # fmt: skip
        self._wait_for(lambda: _listens(self.port), "the SuperLink")

    def start_run(self) -> None:
        """Hand the run to the SuperLink."""
        self._start_flower("top", "top", "flwr", "run", "app", CONNECTION, "--stream")

    def end(self) -> None:
        """End everything, and wait for what Flower's programs have started themselves: it ends a little later."""
        super().end()
        until = time.monotonic() + ENDS_WITHIN  # they force their own end after 5 s
        while (left := started_here()) and time.monotonic() < until:
            time.sleep(0.1)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def check(self) -> None:
        """Refuse to go on when something has ended too early."""
        super().check()
        lines = self.lines()
        if self.run and self.done and (not lines or lines[-1]["round"] < self.settings.training.rounds):
            log = self.folder / "logs" / "top.log"
            said = re.findall(r"^\S+ ERROR +(.*)", log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            raise WorkerError(f"the run has ended before its last round: {said[-1] if said else f'see {log}'}")

    def _register(self) -> None:
        """Make the SuperNodes' keys known to the SuperLink."""
        commands = [
            ["flwr", "supernode", "register", f"pki/supernode/{name}/{pki.NODE_PUBLIC_KEY}", CONNECTION]
            for name in self.stations
        ]
        options = {"cwd": self.folder, "env": self._environment(), "stdin": subprocess.DEVNULL, "text": True}
        register = partial(subprocess.run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
        with ThreadPoolExecutor() as pool:  # each takes seconds to begin
            for command, done in zip(commands, pool.map(register, commands), strict=True):
                if done.returncode:
                    raise WorkerError(f"{shlex.join(command)}: {done.stdout.strip()}")
                self.commands.append(command)

    def _start_flower(self, name: str, role: str, *command: str) -> None:
        self._start_command(name, role, [sys.executable, "-m", "fedgs.deploy.process"], list(command))

    def _is_final(self, process: Process, code: int) -> bool:
        """Whether a process has ended for good: ``flwr run`` only hands a run over and watches it."""
        return process.role == "top"

    def _environment(self) -> dict[str, str]:
        own = super()._environment()
        programs = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
        return own | self.flower_environment | {"PATH": programs}

    def _app(self) -> str:
        top = {
            "stations": len(self.stations), "state": "top", "held-out": "data/held-out.npz",
            "target": "data/target.json", "wire": self.wire,
        }  # fmt: skip
        config = flatten_dict({"top": top} | self.settings.model_dump(exclude_defaults=True))
        return APP.format(
            version=__version__, config="\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
        )


def started_here() -> list[int]:
    """Return the processes that this one has started, or that those have, however deep (Linux)."""
    mark = f"{PARENT}={os.getpid()}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback; Flower's programs do not choose one themselves."""
    held = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
