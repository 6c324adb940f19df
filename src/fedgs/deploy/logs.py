"""Logs of the processes of a park: a line for people, or a JSON object a line for machines.

    2026-03-09T12:03:07+01:00 INFO    device joined  device=camera-7 online=5

The last lines stay in memory (``recent``), for whoever asks a station or the top server how things stand.

What gRPC itself writes about refused handshakes (a wrong authority, an expired certificate, a plain-text client) goes
to the process's stderr, past Python. ``RefusedHandshakes`` reads that: every reason is logged, once, and counted.
"""

import json
import logging
import os
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
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


_HANDSHAKE = re.compile(r"Handshake failed with error .*?OPENSSL_internal:([A-Z_0-9]+)(?:: (.*))?")
_WORDS = {
    "WRONG_VERSION_NUMBER": "plain text, not TLS",
    "HTTP_REQUEST": "plain text, not TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust our authority",
}
_OWN_LINES = re.compile(r"^[IWE]\d{4} \d\d:\d\d:\d\d|^WARNING: All log messages before absl")


class RefusedHandshakes:
    """Reads the process's own stderr and turns gRPC's lines about handshakes into calls; the rest is passed on."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        self._refused = refused
        self._real = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        self.stderr = os.fdopen(os.dup(self._real), "w", buffering=1)
        """The real one, for the log."""
        self._before, sys.stderr = sys.stderr, self.stderr
        self._thread = threading.Thread(target=self._read, args=(reading,), daemon=True, name="stderr")
        self._thread.start()

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for raw in lines:
                found = _HANDSHAKE.search(raw.decode("utf-8", "replace").strip())
                if found:
                    self._refused(_reason(*found.groups()))
                elif not _OWN_LINES.match(raw.decode("utf-8", "replace")):
                    os.write(self._real, raw)

    def close(self) -> None:
        """Give stderr back."""
        os.dup2(self._real, 2)  # the last writer of the pipe goes, the reader comes to its end
        self._thread.join(timeout=2)
        sys.stderr = self._before
        for handler in log.logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is self.stderr:
                handler.setStream(sys.stderr)
        self.stderr.close()
        if not self._thread.is_alive():  # a child process may still have the pipe
            os.close(self._real)


def _reason(code: str, detail: str | None) -> str:
    if code == "CERTIFICATE_VERIFY_FAILED" and detail:
        return {"unable to get local issuer certificate": "a certificate of another authority"}.get(detail, detail)
    return _WORDS.get(code, code.lower().replace("_", " "))
