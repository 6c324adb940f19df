"""Which number each station has as a factory: given once, and never to another one.

The number names the random streams of a factory. A station is known by its certificate, wherever it is reached now;
without certificates by its address. Addresses get their numbers in the order of the first list, whoever answers first;
one that turns out to be a known station at a new place leaves its number unused.

The epoch of the top server (:mod:`fedgs.deploy.lease`) is kept here too: the next start has a later one, whatever the
clock says. A machine whose clock is behind after a power cut would else be taken for an older process.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from fedgs.errors import CheckpointError
from fedgs.files import write_text

FILE = "stations.json"


class FactoryNumbers:
    """The numbers of a run; they survive a restart of the top server."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the run's state; None: in memory only."""
        self._file = None if folder is None else folder / FILE
        self._next, self._kept = 0, False
        self.epoch = time.time_ns() // 1_000_000
        """Of this start, in milliseconds."""
        self._of_station: dict[str, int] = {}
        self._at_address: dict[str, int] = {}
        if self._file is not None and self._file.exists():
            try:
                stored = json.loads(self._file.read_text(encoding="utf-8"))
                self._next, self.epoch = int(stored["next"]), max(self.epoch, int(stored.get("epoch", 0)) + 1)
                self._of_station = {str(name): int(number) for name, number in stored["stations"].items()}
                self._at_address = {str(address): int(number) for address, number in stored["addresses"].items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(
                    f"{self._file}: cannot be read ({error}); put it back from a copy, or choose another --state"
                ) from None

    def reserve(self, addresses: Sequence[str]) -> None:
        """Put numbers aside for the addresses of a list that are new, in their order."""
        self._at_address = {
            address: self._at_address[address] if address in self._at_address else self._take() for address in addresses
        }

    def of(self, address: str, station: str) -> int:
        """Return the number of the station that was found at an address."""
        known = station in self._of_station
        if not known:
            reserved = self._at_address.get(address)
            free = reserved is not None and reserved not in self._of_station.values()
            self._of_station[station] = reserved if reserved is not None and free else self._take()
        if self._file is not None and not (known and self._kept):
            content = {"next": self._next, "stations": self._of_station, "addresses": self._at_address}
            write_text(self._file, json.dumps({**content, "epoch": self.epoch}, indent=1) + "\n")
            self._kept = True
        return self._of_station[station]

    def _take(self) -> int:
        self._next += 1
        return self._next - 1
