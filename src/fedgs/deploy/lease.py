"""One top server at a time: the lease that a station gives it.

Every call of a top server carries its epoch, the moment its process started. A station obeys the run that holds its
lease, and of that run the newest epoch alone: where a second process has taken a run over, the first one is refused
from then on. Another run gets the lease when its holder has had its last round, or has not called for ``HELD`` seconds;
until then it waits. It must be newer than a holder that has not called, and may be older than one that is done: several
that wait have their turns. The lease survives a restart of the station.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedgs.deploy.logs import log
from fedgs.errors import OutputError, PeerError
from fedgs.files import write_text

EPOCH, FINAL = "fedgs-epoch", "fedgs-final"
"""Metadata of a call: the caller's epoch; and whether the order is the last one of its run."""
HELD = 60.0
"""Seconds that a lease outlives the last call."""
FILE = "lease.json"


class LeaseError(PeerError):
    """Another top server has the lease."""


class Lease:
    """Who may order rounds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = folder / FILE, clock
        self._run, self._epoch, self._until, self._done = "", 0, -math.inf, False
        try:
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            self._run, self._epoch, self._done = str(stored["run"]), int(stored["epoch"]), bool(stored.get("done"))
            self._until = -math.inf if self._done else clock() + HELD
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("lease cannot be read; it is given anew", reason=str(error))

    @contextmanager
    def held(self, run: str, metadata: Mapping[str, str]) -> Iterator[None]:
        """Hold the lease for a run while the block lasts, and a while longer; refuse a caller that cannot have it."""
        epoch = int(metadata.get(EPOCH, "0")) if metadata.get(EPOCH, "0").isdecimal() else 0
        self._check(run, epoch)
        self._note(run, epoch, False)
        self._until = math.inf
        try:
            yield
            self._note(run, epoch, FINAL in metadata)
            self._until = self._clock() + (0.0 if self._done else HELD)
        except BaseException:
            self._until = self._clock() + HELD
            raise

    def _check(self, run: str, epoch: int) -> None:
        if run != self._run and self._clock() < self._until:
            raise LeaseError(f"another top server holds the lease, with the run {self._run!r}; end it, or wait")
        if epoch < self._epoch and (run == self._run or not self._done):
            raise LeaseError(f"a newer top server has taken over, with the run {self._run!r}; end this one")

    def _note(self, run: str, epoch: int, done: bool) -> None:
        if (run, epoch, done) == (self._run, self._epoch, self._done):
            return
        self._run, self._epoch, self._done = run, epoch, done
        try:
            write_text(self._file, json.dumps({"run": run, "epoch": epoch, "done": done}))
        except OutputError as error:
            log.error("lease is not on disk; a restart would forget it", reason=str(error))
