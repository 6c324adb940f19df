"""``metrics.jsonl`` of the top server: a line a round, only ever added to.

A checkpoint says how many bytes of the file are its own, with their SHA-256, and holds the line of its newest round
itself: that one is added to the file once the checkpoint is on the disk. So a line that can be seen has a checkpoint,
and a checkpoint is no larger for the rounds before it. What the file has beyond its checkpoint is cut off at the next
start. A file that was changed costs a line in the log and what cannot be read of it, never the weights.
"""

import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedgs.deploy.logs import log
from fedgs.errors import OutputError
from fedgs.files import write_bytes

METRICS = "metrics.jsonl"
Lines = Sequence[Mapping[str, Any]]


class RoundFile:
    """The file of a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self._begin(b"", 0)

    def _begin(self, content: bytes, lines: int) -> None:
        self.lines, self._size, self._digest = lines, len(content), sha256(content)
        self._known: bytes | None = content
        """What the file has to hold before the first line is added; None: it does."""

    @property
    def stamp(self) -> dict[str, Any]:
        """What a checkpoint says of the file as it is."""
        return {"lines": self.lines, "bytes": self._size, "sha256": self._digest.hexdigest()}

    def read(self, stamp: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the lines that a checkpoint has stamped, and go on from there."""
        try:
            content = self.path.read_bytes()[: stamp["bytes"]]
        except OSError:
            content = b""
        if sha256(content).hexdigest() == stamp["sha256"]:
            found = [json.loads(line) for line in content.splitlines()]
        else:
            found = _readable(content)
            content, lost = _text(found), stamp["lines"] - len(found)
            log.error("metrics of earlier rounds are damaged", file=str(self.path), rounds_lost=lost)
        self._begin(content, len(found))
        return found

    def add(self, lines: Lines) -> None:
        """Add lines; before the first ones, what is not stamped is cut off."""
        text = _text(lines)
        try:
            if self._known is not None:
                write_bytes(self.path, self._known, durable=True)
                self._known = None
            with self.path.open("ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written ({error.strerror})") from None
        self.lines, self._size = self.lines + len(lines), self._size + len(text)
        self._digest.update(text)


def _text(lines: Lines) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _readable(content: bytes) -> list[dict[str, Any]]:
    """Return the lines of a damaged file that are those of rounds."""
    found = []
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("round"), int):
            found.append(row)
    return found
