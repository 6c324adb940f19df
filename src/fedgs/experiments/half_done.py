"""Runs that are half done: who stops in the middle of a part goes on there, not at its beginning.

    half-done/table2-fedavg-seed-0/round-000120/     a checkpoint (fedgs.simulation.checkpoint), one a minute
    half-done/table2-fedavg-seed-0/seconds.json      the seconds of work up to each round that was kept

It counts for the same settings, federation, source files and hardware alone, so that a result is of one make, and is
thrown away once the part is done. On processors what comes of it is the same to the bit.
"""

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path

import torch

from fedgs.data import Federation
from fedgs.errors import CheckpointError
from fedgs.experiments.source import source_digest
from fedgs.files import make_folder, write_text
from fedgs.settings import Settings
from fedgs.simulation.checkpoint import load_newest, save_checkpoint
from fedgs.simulation.runs import run_identity
from fedgs.simulation.simulator import Simulator
from fedgs.simulation.state import RunState

FOLDER = "half-done"
PATIENCE = 60.0
"""Seconds between two checkpoints: more can be lost of no run, if its rounds are shorter."""
SECONDS = "seconds.json"


class HalfDone:
    """What is kept of a run while it is at work."""

    def __init__(self, folder: Path, settings: Settings, federation: Federation, device: torch.device) -> None:
        self._folder = folder
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self._identity = run_identity(settings, federation, f"{source_digest()} {where}")
        self._began = self._kept = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self.earlier = 0.0
        """Seconds of work that were done before, by processes that were stopped."""

    def take_up(self, simulator: Simulator) -> RunState | None:
        """Return the state to go on from; None: from the beginning."""
        try:
            state = load_newest(self._folder, simulator.layout, self._identity)
        except CheckpointError:  # torn, or of another make: worth nothing
            state = None
        if state is None:
            throw_away(self._folder)
            return None
        with suppress(OSError, ValueError, TypeError, AttributeError):  # it is only about time
            known = json.loads((self._folder / SECONDS).read_text(encoding="utf-8"))
            self._seconds = {number: float(seconds) for number, seconds in known.items() if int(number) <= state.round}
        self.earlier = self._seconds.get(str(state.round), 0.0)
        return state

    def keep(self, simulator: Simulator, state: RunState, at_once: bool = False) -> None:
        """Write a checkpoint where the last one is a while ago."""
        now = time.perf_counter()
        if now - self._kept < PATIENCE and not at_once:
            return
        self._seconds[str(state.round)] = round(self.earlier + now - self._began, 1)
        make_folder(self._folder)
        write_text(self._folder / SECONDS, json.dumps(self._seconds) + "\n")
        save_checkpoint(self._folder, state, simulator.layout, self._identity)
        self._kept = time.perf_counter()


def throw_away(folder: Path) -> None:
    """Remove what was kept of one part, and the folder of all parts if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
