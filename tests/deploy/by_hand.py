"""Command lines of documents and files, started as an operator would: each in a shell, in one folder."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def shell(command: str, folder: Path, **options: object) -> "subprocess.Popen[bytes]":
    """Start a command; fedgs is that of this Python."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": programs}
    return subprocess.Popen(["sh", "-ec", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, **options)


def done(command: str, folder: Path) -> None:
    """Run a command to its end."""
    process = shell(command, folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said.decode()


@contextmanager
def played(commands: Mapping[str, str] | Sequence[str], folder: Path, seconds: float = 300) -> Iterator[None]:
    """Start commands beside each other; the block runs when the last one has done its work.

    Then the others are told to stop, which they must do without an error.
    """
    named = dict(commands) if isinstance(commands, Mapping) else {str(n): line for n, line in enumerate(commands)}
    logs = {name: folder / f"{name}.out" for name in named}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in named.items():
            with logs[name].open("wb") as log:
                processes[name] = shell(f"exec {command}", folder, stdout=log, stderr=log)
        *others, last = processes
        code = processes[last].wait(timeout=seconds)
        assert code == 0, {name: log.read_text()[-500:] for name, log in logs.items()}
        yield
        for name in others:
            processes[name].terminate()
        for name in others:
            assert processes[name].wait(timeout=60) == 0, logs[name].read_text()
    except subprocess.TimeoutExpired:
        raise AssertionError({name: log.read_text()[-500:] for name, log in logs.items()}) from None
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
