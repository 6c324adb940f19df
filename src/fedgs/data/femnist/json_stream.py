"""Read one big JSON object member by member, so that a file of hundreds of megabytes never stands in memory.

The standard decoder turns 100 writers into 18 million Python floats at once (some 600 MB). Here the text flows
through a window; each value is decoded as soon as the window holds all of it, and inside one named member
(``user_data``) each value is converted and let go at once.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from fedgs.errors import InputFileError

_WINDOW = 4 << 20  # a writer with 400 samples fits, so that most values are decoded at the first try
_SPACE = " \t\r\n"


class _Text:
    """A window on a JSON text: what is read but not yet used."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._ended = False
        self._decoder = json.JSONDecoder()

    def _more(self) -> bool:
        rest = self._text[self._at :]
        # Asking for as much again as is waiting keeps the retries of a long value linear in its length.
        new = self._file.read(max(_WINDOW, len(rest)))
        self._ended = not new
        self._text, self._at = rest + new, 0
        return bool(new)

    def next(self) -> str:
        """Return the next character that is not white space, without taking it; '' at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> None:
        found = self.next()
        if found != expected:
            raise ValueError(f"{expected!r} expected, {repr(found) if found else 'the end of the file'} found")
        self._at += 1

    def value(self) -> Any:
        if not self.next():
            raise ValueError("a value expected, the end of the file found")
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise ValueError(error.msg) from None
                continue
            # A number that touches the edge of the window may go on behind it.
            if end == len(self._text) and not self._ended and self._more():
                continue
            self._at = end
            return value

    def keys(self) -> Iterator[str]:
        """Yield the keys of the object that comes next; the caller takes each value before the next key."""
        self.take("{")
        if self.next() == "}":
            self.take("}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"a key expected, {key!r} found")
            self.take(":")
            yield key
            if self.next() == "}":
                self.take("}")
                return
            self.take(",")


def members(file: Path, inside: str, convert: Callable[[str, Any], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the members of the object in ``file``; of member ``inside``, a dict with each value converted."""
    try:
        with file.open(encoding="utf-8") as stream:
            text = _Text(stream)
            for key in text.keys():  # noqa: SIM118 (not a dict)
                if key == inside and text.next() == "{":
                    yield key, _converted(text, convert, inside)
                else:
                    yield key, text.value()
            if text.next():
                raise ValueError(f"{text.next()!r} found behind the end of the object")
    except InputFileError:
        raise
    except UnicodeDecodeError:
        raise InputFileError(f"{file}: not a text file; LEAF JSON expected") from None
    except ValueError as error:
        raise InputFileError(f"{file}: broken or truncated JSON ({error}); copy or make the file again") from None
    except RecursionError:
        raise InputFileError(f"{file}: nested too deeply to be LEAF JSON; make the file again") from None
    except OSError as error:
        raise InputFileError(f"{file}: cannot be read ({error.strerror})") from None


def _converted(text: _Text, convert: Callable[[str, Any], Any], inside: str) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for key in text.keys():  # noqa: SIM118 (not a dict)
        if key in converted:
            raise ValueError(f"{key!r} is twice in {inside!r}")
        converted[key] = convert(key, text.value())
    return converted
