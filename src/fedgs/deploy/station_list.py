"""The stations that a top server asks: a list on the command line, or a file that is read again while the run goes on.

# stations.txt, one HOST:PORT a line
s1.harbour.example:7071
s2.harbour.example:7071    # the old hall
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from fedgs.deploy.factory_numbers import FactoryNumbers
from fedgs.deploy.logs import log
from fedgs.deploy.transport import Transport, split_address
from fedgs.errors import ConfigError, FedgsError, InputFileError, PeerError


class StationList:
    """The stations of a run as they are now."""

    def __init__(self, transports: Sequence[Transport]) -> None:
        self.transports = tuple(transports)
        self.changed = asyncio.Event()
        """Set when there are others than before."""


class NamedStations(StationList):
    """The stations of ``--stations``; SIGHUP calls :meth:`reload`."""

    def __init__(
        self,
        given: Sequence[str],
        connect: Callable[[str], Transport],
        numbers: FactoryNumbers,
        min_stations: int | None = None,
    ) -> None:
        """``given``: addresses, some of them separated by commas, or one file. ``connect`` gives an address's way."""
        self.file = Path(given[0]) if len(given) == 1 and Path(given[0]).is_file() else None
        self._connect, self._numbers, self._min_stations = connect, numbers, min_stations
        super().__init__(self._made(self._addresses(given)))

    def reload(self) -> None:
        """Read the file again; one that is wrong changes nothing."""
        before = self.transports
        try:
            if self.file is None:
                raise ConfigError("--stations is not a file; to change it, stop the top server and start it again")
            self.transports = self._made(self._addresses([]))
        except FedgsError as error:
            log.error("the list of stations stays as it was", reason=str(error))
            return
        added = [one.name for one in self.transports if one not in before]
        removed = [one.name for one in before if one not in self.transports]
        log.info("list of stations", stations=len(self.transports), added=added, removed=removed)
        self.changed.set()

    def _addresses(self, given: Sequence[str]) -> list[str]:
        if self.file is not None:
            found = read_addresses(self.file)
        else:
            found = [part.strip() for text in given for part in text.split(",") if part.strip()]
            for address in found:
                _check(address, f"--stations {address}: neither a file nor an address")
        where = "--stations" if self.file is None else str(self.file)
        if not found:
            raise ConfigError(f"{where}: name at least one HOST:PORT")
        if len(set(found)) != len(found):
            raise ConfigError(f"{where}: an address is there twice")
        check_number(self._min_stations, len(found))
        return found

    def _made(self, addresses: Sequence[str]) -> tuple[Transport, ...]:
        known = {one.name: one for one in getattr(self, "transports", ())}
        made = tuple(known.get(address) or self._connect(address) for address in addresses)
        self._numbers.reserve(addresses)
        return made


def check_number(min_stations: int | None, stations: int) -> None:
    """Refuse a list with fewer stations than a round needs."""
    if (min_stations or 1) > stations:
        raise ConfigError(f"--min-stations {min_stations} of {stations} stations; lower it, or name more stations")


def read_addresses(file: Path) -> list[str]:
    """Return the addresses in a file: one a line, and # before a remark."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputFileError(f"{file}: cannot be read ({error})") from None
    found = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, start=1)]
    for number, address in found:
        if address:
            _check(address, f"{file}, line {number}: {address[:40]!r} is not an address")
    return [address for _, address in found if address]


def _check(address: str, fault: str) -> None:
    try:
        split_address(address)
    except PeerError:
        raise ConfigError(f"{fault}; expected HOST:PORT, for example s1.example:7071") from None
