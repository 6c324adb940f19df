"""Checkpoints of unfinished jobs: a job that was stopped continues from there, not from its beginning.

    unfinished/table2-fedavg-seed-0/round-000120/     a checkpoint (fedgs.simulation.checkpoint), one a minute
    unfinished/table2-fedavg-seed-0/seconds.json      the seconds of work up to each round that was kept

It counts only for the same settings, federation, data, source files and hardware, and is removed once the job is done.
On CPUs the result is the same to the bit. Where it cannot be written, the run continues without.
"""

import json
import shutil
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from fedgs.algorithms.run_state import RunState
from fedgs.errors import CheckpointError, OutputError
from fedgs.files import make_folder, write_text
from fedgs.simulation.checkpoint import list_checkpoints, load_newest, save_checkpoint
from fedgs.simulation.simulator import Simulator

FOLDER = "unfinished"
PATIENCE = 60.0
"""Seconds between two checkpoints: of no run more is lost, if its rounds are shorter."""
SECONDS = "seconds.json"


class JobCheckpoint:
    """What is kept of a run while it is at work."""

    def __init__(self, folder: Path, make: str) -> None:
        """``make`` says in words what it was made with; only work of the same make goes on."""
        self._folder = folder
        self._identity = blake2b(make.encode(), digest_size=16).hexdigest()
        self._began = self._kept = time.perf_counter()
        self._seconds: dict[int, float] = {}
        self.earlier = 0.0
        """Seconds of work that were done before, by processes that were stopped."""
        self.note = ""
        """What the user should know of it."""

    def restore(self, simulator: Simulator) -> RunState | None:
        """Return the state to go on from; None: from the beginning."""
        there = bool(list_checkpoints(self._folder))
        try:
            state = load_newest(self._folder, simulator.layout, self._identity)
        except CheckpointError:  # torn, or of another make
            state = None
        if state is None:
            if there:
                self.note = (
                    "started again: its checkpoint is damaged, or of other settings, data, source files or hardware"
                )
                shutil.rmtree(self._folder, ignore_errors=True)
            return None
        with suppress(OSError, ValueError, TypeError, AttributeError):  # it is only about time
            known = json.loads((self._folder / SECONDS).read_text(encoding="utf-8"))
            self._seconds = {int(number): float(seconds) for number, seconds in known.items()}
        self.earlier = self._seconds.get(state.round, 0.0)
        self.note = f"continued from round {state.round}, where it had been stopped"
        return state

    def save(self, simulator: Simulator, state: RunState, at_once: bool = False) -> None:
        """Write a checkpoint where the last one is a while ago."""
        now = time.perf_counter()
        if now - self._kept < PATIENCE and not at_once:
            return
        self._seconds[state.round] = round(self.earlier + now - self._began, 1)
        with suppress(OutputError):  # a full disk, or two commands in one folder
            make_folder(self._folder)
            write_text(self._folder / SECONDS, json.dumps(self._seconds) + "\n")
            save_checkpoint(self._folder, state, simulator.layout, self._identity)
        self._kept = time.perf_counter()


def discard(folder: Path) -> None:
    """Remove what was kept of one job, and the folder of all jobs if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
