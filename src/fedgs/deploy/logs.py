"""Logs of the processes of a park: a line for people, or a JSON object a line for machines.

    2026-03-09T12:03:07+01:00 INFO    device joined  device=camera-7 online=5

The last lines stay in memory (``recent``), for whoever asks a station or the top server how things stand.
"""

import json
import logging
import sys
import time
from collections import Counter, deque
from datetime import datetime
from typing import Any, TextIO

from fedgs.deploy.proto import fedgs_wire_pb2 as pb

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Log(logging.LoggerAdapter[logging.Logger]):
    """A log of events with details: ``log.info("device joined", device="camera-7")``."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the event and its details as logging takes them."""
        own = {key: kwargs.pop(key) for key in ("exc_info",) if key in kwargs}
        return msg, own | {"extra": kwargs}


log = Log(logging.getLogger("fedgs.deploy"))


class Recent(logging.Handler):
    """The last events, numbered, as messages."""

    def __init__(self, most: int = 500) -> None:
        super().__init__(logging.INFO)
        self._events: deque[pb.Event] = deque(maxlen=most)
        self._number = 0
        self.process = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an event of this process."""
        details = " ".join(f"{key}={value}" for key, value in _details(record).items())
        self.add(
            pb.Event(
                time=moment(record), level=record.levelname.lower(), process=self.process,
                what=record.getMessage()[:500], details=details[:1000],
            )
        )  # fmt: skip

    def add(self, event: pb.Event) -> None:
        """Keep an event, under the next number: the time in microseconds, so that it rises after a restart too."""
        self._number = max(self._number + 1, time.time_ns() // 1000)
        event.number = self._number
        self._events.append(event)

    def after(self, number: int) -> list[pb.Event]:
        """Return the events after this one; 0: none."""
        return [event for event in list(self._events) if event.number > number] if number else []


recent = Recent()


def set_up(level: str = "info", as_json: bool = False, out: TextIO | None = None, process: str = "") -> None:
    """Send the log to stderr, or to ``out``; ``process`` is named in each JSON line and event."""
    recent.process = process
    handler = logging.StreamHandler(out or sys.stderr)
    handler.setFormatter(JsonLines(process) if as_json else PlainLines())
    handler.setLevel(level.upper())
    log.logger.handlers[:] = [handler, recent]
    log.logger.propagate = False
    log.setLevel(min(handler.level, recent.level))


def moment(record: logging.LogRecord, precision: str = "milliseconds") -> str:
    """Return when a record was made: ISO 8601 in local time, with its offset."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec=precision)


class PlainLines(logging.Formatter):
    """Time, level, what happened, and its details; a traceback in the lines after, where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        details = "".join(f" {key}={value}" for key, value in _details(record).items())
        line = (
            f"{moment(record, 'seconds')} {record.levelname:<7} {record.getMessage()}{' ' if details else ''}{details}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, process, event, and its details."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        facts: dict[str, Any] = {
            "time": moment(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "event": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts | _details(record), default=str)


def _details(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class OnceEach:
    """Logs a warning the first time and then at most once an hour, with how often it came in between."""

    def __init__(self, period: float = 3600.0) -> None:
        self._period = period
        self._last: dict[str, float] = {}
        self._held: Counter[str] = Counter()

    def warning(self, event: str, **details: Any) -> None:
        """Log this, unless it was logged lately."""
        key = event + json.dumps(details, sort_keys=True, default=str)
        now = time.monotonic()
        if now - self._last.get(key, -self._period) < self._period:
            self._held[key] += 1
            return
        if len(self._last) > 1000:  # a peer is making up reasons
            self._last.clear()
            self._held.clear()
        self._last[key] = now
        held = self._held.pop(key, 0)
        log.warning(event, **(details | ({"times": held + 1} if held else {})))
