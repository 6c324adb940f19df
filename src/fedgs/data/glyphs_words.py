"""What the cameras of the ``glyphs`` data set read: lines of a warehouse, destinations, numbers.

The paper's reason for skewed classes (section I): a Singapore warehouse sends more boxes to Singapore than
elsewhere, so its cameras see the characters of that word more often. Here every camera stands at a line
with one function and serves a few destinations:

    digits  parcel numbers only; a camera's numbers begin with its own zone
    caps    destinations and dock codes in capitals, no digit
    codes   container numbers (owner code, serial number), some with a destination in capitals
    mixed   addresses as people write them: destination, postcode, rack code

Over all cameras this gives about half digits, a quarter capitals and a quarter small letters, as in
FEMNIST. Dock and rack codes are drawn evenly, so that no letter is absent from the whole.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgs.data.characters import CHARACTERS

CAPITALS = CHARACTERS[10:36]
SMALL = CHARACTERS[36:]

LINES = ("digits", "caps", "codes", "mixed")
LINE_SHARES = (0.21, 0.14, 0.29, 0.36)
BUSY_SHARES = (0.3, 0.3, 0.3, 0.6)
"""The share of busy cameras at each line; FEMNIST's writers of whole paragraphs are the model."""

_NAMES = """
Aarhus Abidjan Accra Adelaide Algeciras Algiers Amsterdam Antwerp Argentina Athens Auckland Australia
Bangkok Barcelona Beirut Belgium Bilbao Bombay Boston Brazil Bremen Brisbane Brussels Busan Cadiz Cairo
Callao Canada Chennai Chile Chongqing Colombo Copenhagen Croatia Dakar Dalian Denmark Djibouti Doha Dubai
Dublin Durban Egypt Ecuador Felixstowe Finland Fujairah Gdansk Genoa Georgia Germany Ghana Guayaquil Haifa
Halifax Hamburg Hanoi Havana Helsinki Houston Iceland India Iquique Iraq Ireland Istanbul Italy Izmir
Jakarta Japan Jeddah Karachi Kenya Klaipeda Kobe Kuwait Lagos Latvia Lisbon Liverpool London Luanda
Luxembourg Malaga Malta Manila Marseille Melbourne Mexico Mombasa Montreal Morocco Mumbai Muscat Nagoya
Napoli Netherlands Norway Odessa Oman Osaka Oslo Panama Peru Piraeus Poland Portugal Qatar Qingdao Quebec
Ravenna Riga Rijeka Rotterdam Santos Seattle Seville Shanghai Shenzhen Singapore Spain Stockholm Suez
Sweden Sydney Taiwan Tallinn Tokyo Toronto Trieste Tunis Turkey Uruguay Valencia Valparaiso Vancouver
Venice Veracruz Vietnam Warsaw Xiamen Yokohama Zagreb Zeebrugge Zurich
"""
DESTINATIONS = tuple(_NAMES.split())


@dataclass(frozen=True)
class Camera:
    """Where a camera stands and what comes past it, the most frequent destination first."""

    line: str
    destinations: tuple[str, ...]
    zone: str = ""
    """Digits every number at this camera begins with."""
    owners: tuple[str, ...] = ("CSQU",)
    """Owner codes of the containers at a ``codes`` line: three letters and U."""
    codes: float = 0.5
    """How often a destination is followed by a dock code (capitals) or rack code (small letters)."""


def draw_camera(line: str, draw: np.random.Generator) -> Camera:
    """Draw what a camera at this line serves."""
    served = draw.choice(len(DESTINATIONS), size=int(draw.integers(2, 6)), replace=False)
    owners = tuple(_word(draw, CAPITALS, 3) + "U" for _ in range(3))
    zone = _word(draw, CHARACTERS[:10], int(draw.integers(1, 4)))
    return Camera(line, tuple(DESTINATIONS[index] for index in served), zone, owners)


def read(camera: Camera, samples: int, draw: np.random.Generator) -> list[str]:
    """Return the words that come past the camera, together exactly ``samples`` characters."""
    words: list[str] = []
    missing = samples
    while missing > 0:
        for word in _record(camera, draw):
            words.append(word[:missing])
            missing -= len(words[-1])
            if missing == 0:
                break
    return words


def labels_and_neighbours(words: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the class of every character, and that of the one left and right of it in its word (or -1)."""
    labels: list[int] = []
    left: list[int] = []
    right: list[int] = []
    for word in words:
        classes = [CHARACTERS.index(character) for character in word]
        labels += classes
        left += [-1, *classes[:-1]]
        right += [*classes[1:], -1]
    return np.array(labels, np.uint8), np.array(left, np.int64), np.array(right, np.int64)


def _record(camera: Camera, draw: np.random.Generator) -> list[str]:
    """One box on the belt: the words on its label."""
    if camera.line == "digits":
        return [_number(camera, 12, draw)]
    # Zipf: the destination of rank r comes with weight 1/r, so that the warehouse's own one leads.
    weights = 1 / np.arange(1, len(camera.destinations) + 1)
    destination = camera.destinations[int(draw.choice(len(weights), p=weights / weights.sum()))]
    if camera.line == "caps":
        return [destination.upper(), *_code(camera, CAPITALS, draw)]
    if camera.line == "codes":
        owner = camera.owners[int(draw.integers(len(camera.owners)))]
        record = [owner, _number(camera, 7, draw)]
        return record if draw.random() < 0.75 else [*record, destination.upper()]
    return [destination, _number(camera, 5, draw), *_code(camera, SMALL, draw)]


def _number(camera: Camera, length: int, draw: np.random.Generator) -> str:
    return (camera.zone + _word(draw, CHARACTERS[:10], length))[:length]


def _code(camera: Camera, alphabet: str, draw: np.random.Generator) -> list[str]:
    return [_word(draw, alphabet, 4)] if draw.random() < camera.codes else []


def _word(draw: np.random.Generator, alphabet: str, length: int) -> str:
    return "".join(alphabet[index] for index in draw.integers(len(alphabet), size=length))
