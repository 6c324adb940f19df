"""Which answers of a team go into the mean: those that move the weights no further than devices usually do.

    ‖Δ‖ / η ≤ c · max(median of the last ``WINDOW`` norms at this station, median of this team, ``FLOOR`` · peak)

c is ``--largest-move``; the peak is the largest such median of the run. Divided by the learning rate η, norms of
different rounds can be compared. Where the weights come to a steep place all gradients grow at once: then the team's
own median, of an even number the lower one, lets honest devices through; one device alone cannot raise it. Where a
model has learnt its data most gradients vanish, and the one of a hard batch does not: the peak lets it through. Every
norm counts, of answers that are left out too, so that the window follows the devices; few of them cannot move a median
far. The window survives a restart of the station. Before there is anything to compare with, a step may move the weights
by their own norm.

A robust mean will find its place here: it begins with the same answers.
"""

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgs.deploy.logs import log
from fedgs.errors import OutputError
from fedgs.files import write_text

WINDOW = 256
"""Norms that are remembered."""
ENOUGH = 2
"""Answers whose lower median one of them cannot raise."""
FLOOR = 0.05
FILE = "norms.json"


class Screen:
    """The norms that devices of a station usually send, as long as the run is the same."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the station's state; None: in memory only."""
        self._file = None if folder is None else folder / FILE
        self._run = ""
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._peak = 0.0

    def begin(self, run: str) -> None:
        """Go on with a run; another one begins with an empty window."""
        if self._file is not None and not self._run:
            self._load(self._file)
        if run != self._run:
            self._run, self._peak = run, 0.0
            self._norms.clear()

    def largest(self, norms: Sequence[float], weights_norm: float, rate: float, times: float) -> float:
        """Return the largest norm of an answer that is accepted, given those of its team; take them in."""
        scaled = [norm / rate for norm in norms] if rate else []
        window = float(np.median(self._norms)) if self._norms else 0.0
        here = sorted(scaled)[(len(scaled) - 1) // 2] if len(scaled) >= ENOUGH else 0.0
        self._norms.extend(scaled)
        self._peak = max(self._peak, window, here)
        usual = max(window, here, FLOOR * self._peak)
        return times * rate * usual if usual else max(1.0, weights_norm)

    def save(self) -> None:
        """Write the window to the disk, at the end of a round."""
        if self._file is None:
            return
        try:
            write_text(self._file, json.dumps({"run": self._run, "peak": self._peak, "norms": list(self._norms)}))
        except OutputError as error:
            log.error("usual norms are not on disk; a restart would forget them", reason=str(error))

    def _load(self, file: Path) -> None:
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            norms = np.array([stored["peak"], *stored["norms"]], np.float64)
            if not (np.isfinite(norms) & (norms >= 0)).all():
                raise ValueError("a norm is no length")
            self._run, self._peak, self._norms = str(stored["run"]), float(norms[0]), deque(norms[1:].tolist(), WINDOW)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("usual norms cannot be read; they are learnt anew", reason=str(error))
