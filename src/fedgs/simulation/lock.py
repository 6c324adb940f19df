"""One process a run folder: ``RUN/.lock`` is locked while a run is written, and says by whom.

The lock is the kernel's (flock): that of a process that died is free at once. The text of the file is for people.
"""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fedgs.errors import OutputError

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder of a run; whoever is in it already is named."""
    path = folder / LOCK
    try:
        file = _taken(path, folder)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{folder}: cannot be locked ({error.strerror})") from None
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _taken(path: Path, folder: Path) -> TextIO:
    """Return the lock file, open and locked."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            with file:
                holder = file.read().strip() or "another process"
            raise OutputError(
                f"{folder}: {holder} is writing this run; wait for it, stop it, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # a file system without locks
                file.close()
                raise
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # whoever held it took the file away just now
    file.truncate(0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    file.write(f"process {os.getpid()} on {socket.gethostname()} (since {since})\n")
    file.flush()
    return file
