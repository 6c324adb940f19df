"""What all processes of a deployment share: the lock on a state folder, how they stop, the end with their parent.

``python -m fedgs.deploy.process COMMAND …`` runs a command that ends when its parent does (Linux).
"""

import asyncio
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedgs.deploy.logs import log
from fedgs.errors import ConfigError, FedgsError, IdentityError, OutputError
from fedgs.files import make_folder, write_text

if TYPE_CHECKING:
    from fedgs.deploy.pki import Bundle

Result = TypeVar("Result")
PARENT = "FEDGS_PARENT"
"""The environment variable with the process id of the parent."""
LOCK, SOCKET = ".lock", "control.sock"
ADDRESSES = "addresses.txt"
"""In a state folder: where the process is reached, a line each."""
LONGEST_SOCKET_PATH = 100
"""Characters; the system takes a few more."""
_OTHERS_ENTER = 0o011
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def end_with_parent() -> None:
    """Ask the system for SIGTERM when the process named in the environment has ended, however that one ends."""
    parent = os.environ.get(PARENT)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it has ended already
        sys.exit(1)


async def until_stopped(
    work: Coroutine[Any, Any, Result], bundle: "Bundle | None", reload: Callable[[], None] | None = None
) -> Result | None:
    """Return the result of some work; None where the process was told to stop, by SIGINT or SIGTERM.

    Beside it the certificate is watched. Work that is stopped is cancelled, and cleans up after itself. SIGHUP calls
    ``reload``.
    """
    running = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    if reload is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    watching = asyncio.ensure_future(_watch_expiry(bundle))
    await asyncio.wait({running})
    watching.cancel()
    return None if running.cancelled() else running.result()


async def _watch_expiry(bundle: "Bundle | None", every: float = 3600.0) -> None:
    """Warn in the log, for ever, while a certificate is about to expire."""
    while bundle is not None:
        with suppress(IdentityError):  # unreadable in the middle of a renewal: the next look will do
            reason = bundle.ending()
            if reason:
                log.warning("certificate", reason=reason)
        await asyncio.sleep(every)


def socket_path(state: Path) -> Path:
    """Return the path of a station's socket, absolute or relative, whichever is shorter."""
    absolute = state.resolve() / SOCKET
    relative = Path(os.path.relpath(absolute))
    path = min(absolute, relative, key=lambda one: len(os.fsencode(one)))
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigError(f"--state {state}: the path is too long for a socket in it; choose a shorter one")
    return path


def note_addresses(folder: Path, **found: str | None) -> None:
    """Write down where a process is reached, for whom; None: not for these."""
    write_text(folder / ADDRESSES, "".join(f"{whom} {where}\n" for whom, where in found.items() if where))


@contextmanager
def claim(folder: Path, kind: str, option: str = "--state") -> Iterator[None]:
    """Lock a state folder: a second process is refused. The system releases the lock when the process ends.

    An error before anything was written leaves no new folder.
    """
    new = not folder.exists()
    make_folder(folder)
    try:
        if new:
            folder.chmod(0o700)
        elif folder.stat().st_mode & _OTHERS_ENTER:  # the permissions of an existing folder are not changed
            raise ConfigError(
                f"{option} {folder}: other users can enter this folder, and it must be yours alone; choose another, "
                f"or: chmod 700 {folder}"
            )
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be used as the folder of a {kind} ({error.strerror})") from None
    with os.fdopen(handle, "w"):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(
                f"{folder}: another {kind} is running with this folder; choose another with {option}"
            ) from None
        try:
            yield
        except FedgsError:
            if new and os.listdir(folder) == [LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()
            raise


if __name__ == "__main__":
    end_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])  # the request outlives this
