"""The state folder of a process: its user's alone, and one process's at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgs.errors import ConfigError, OutputError
from fedgs.files import make_folder

LOCK, SOCKET = ".lock", "control.sock"
LONGEST_SOCKET_PATH = 100
"""Characters; the system takes a few more."""
_OTHERS_ENTER = 0o011


def socket_path(state: Path) -> Path:
    """Return the path of a station's socket, absolute or relative, whichever is shorter."""
    absolute = state.resolve() / SOCKET
    relative = Path(os.path.relpath(absolute))
    path = min(absolute, relative, key=lambda one: len(os.fsencode(one)))
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigError(f"--state {state}: the path is too long for a socket in it; choose a shorter one")
    return path


@contextmanager
def claim(folder: Path, kind: str) -> Iterator[None]:
    """Hold a state folder; a second process is refused. The system lets go of it when the process ends, however."""
    new = not folder.exists()
    make_folder(folder)
    try:
        if new:
            folder.chmod(0o700)
        elif folder.stat().st_mode & _OTHERS_ENTER:  # a folder that was there is not ours to change
            raise ConfigError(
                f"--state {folder}: others can enter this folder, and it must be yours alone; choose another, or: "
                f"chmod 700 {folder}"
            )
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be used as a state folder ({error.strerror})") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise OutputError(
            f"{folder}: another {kind} is running with this state folder; choose another --state"
        ) from None
    try:
        yield
    finally:
        os.close(handle)
