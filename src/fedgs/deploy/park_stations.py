"""The stations of a park on this machine, and how they change while it runs: ``fedgs park stations``.

out/stations.json   each station and the devices that prefer it; the command writes it and the park follows it
out/stations.txt    the addresses for the top server, once a station serves
"""

import fcntl
import json
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from fedgs.deploy.process import LOCK
from fedgs.errors import ConfigError, InputFileError, WorkerError
from fedgs.files import write_text

FILE, ADDRESSES = "stations.json", "stations.txt"
FOLLOWED_WITHIN = 120.0
"""Seconds a park has to carry out a change."""
Homes = dict[str, list[str]]
"""The devices that prefer each station."""


def read_homes(folder: Path, devices: Sequence[str] | None = None) -> Homes:
    """Return who prefers which station; ``devices``: who must be there, each once."""
    path = folder / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        homes = {str(name): [str(device) for device in own] for name, own in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputFileError(f"{path}: not the stations of a park ({error})") from None
    if not homes or (devices is not None and sorted(chain(*homes.values())) != sorted(devices)):
        raise InputFileError(f"{path}: each device of the park must be at one station")
    return homes


def write_homes(folder: Path, homes: Homes) -> None:
    """Write who prefers which station."""
    write_text(folder / FILE, json.dumps(homes, indent=1) + "\n")


def with_station(homes: Homes, name: str) -> Homes:
    """Return the homes with one more station; it gets its share of the devices from those that have the most."""
    new = {station: list(devices) for station, devices in homes.items()} | {name: []}
    for _ in range(sum(map(len, homes.values())) // len(new)):
        largest = max(homes, key=lambda station: len(new[station]))
        new[name].append(new[largest].pop())
    return new


def without_station(homes: Homes, name: str) -> Homes:
    """Return the homes with one station less; its devices go to those that have the fewest."""
    new = {station: list(devices) for station, devices in homes.items() if station != name}
    for device in homes[name]:
        min(new.values(), key=len).append(device)
    return new


def leads_home(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a device with an old list of stations comes to the first one of its new list, now that some are gone."""
    return next((station for station in old if station in new), None) == new[0]


def addresses_text(addresses: dict[str, str]) -> str:
    """Return the top server's list of these stations."""
    return "".join(f"{address}  # {name}\n" for name, address in addresses.items())


def add_station(folder: Path) -> tuple[str, int]:
    """Let the park that runs in a folder have one more station; return its name and how many devices move there."""
    homes = _of_running(folder)
    there = [path.name.rpartition("-")[2] for path in folder.glob("station-*")]
    name = f"station-{1 + max(int(number) for number in there if number.isdecimal())}"
    new = with_station(homes, name)
    write_homes(folder, new)
    _wait(folder, lambda text: f"# {name}\n" in text)
    return name, len(new[name])


def remove_station(folder: Path, name: str) -> None:
    """Let the park that runs in a folder have one station less."""
    homes = _of_running(folder)
    if name not in homes:
        raise ConfigError(f"no station {name!r} in {folder}; there are {', '.join(homes)}")
    if len(homes) == 1:
        raise ConfigError(f"{name} is the only station of {folder}; add another one first")
    write_homes(folder, without_station(homes, name))
    _wait(folder, lambda text: f"# {name}\n" not in text)


def _of_running(folder: Path) -> Homes:
    """Return the homes of the park that runs in a folder; refuse a folder without one."""
    if not is_locked(folder) or not (folder / FILE).exists():
        raise ConfigError(f"no park runs in {folder}; start one with: fedgs park up --out {folder}")
    if not (folder / ADDRESSES).exists():
        raise ConfigError(
            f"{folder}: the stations of this park do not change; is it one over Flower, or just starting?"
        )
    return read_homes(folder)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder (:func:`fedgs.deploy.process.claim`)."""
    try:
        with (folder / LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _wait(folder: Path, done: Callable[[str], bool]) -> None:
    until = time.monotonic() + FOLLOWED_WITHIN
    while not done((folder / ADDRESSES).read_text(encoding="utf-8")):
        if time.monotonic() > until or not is_locked(folder):
            raise WorkerError(f"{folder}: the park does not follow; see {folder / 'logs'}")
        time.sleep(0.1)
