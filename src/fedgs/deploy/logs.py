"""Logs of the processes of a park: a line for people, or a JSON object a line for machines.

    12:03:07 INFO  device joined  device=camera-7 online=5

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
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Log(logging.LoggerAdapter[logging.Logger]):
    """A log of events with details: ``log.info("device joined", device="camera-7")``."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the event and its details as logging takes them."""
        own = {key: kwargs.pop(key) for key in ("exc_info",) if key in kwargs}
        return msg, own | {"extra": kwargs}


log = Log(logging.getLogger("fedgs.deploy"))


def set_up(level: str = "info", as_json: bool = False, out: TextIO | None = None) -> None:
    """Send the log to stderr, or to ``out``."""
    handler = logging.StreamHandler(out or sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    log.logger.handlers[:] = [handler]
    log.logger.propagate = False
    log.setLevel(level.upper())


class PlainLines(logging.Formatter):
    """Time, level, what happened, and its details; a traceback in the lines after, where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        details = "".join(f" {key}={value}" for key, value in _details(record).items())
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{moment} {record.levelname:<7} {record.getMessage()}{' ' if details else ''}{details}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line: time (seconds since 1970), level, event, and its details."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        facts: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
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


def _reason(code: str, detail: str | None) -> str:
    if code == "CERTIFICATE_VERIFY_FAILED" and detail:
        return {"unable to get local issuer certificate": "a certificate of another authority"}.get(detail, detail)
    return _WORDS.get(code, code.lower().replace("_", " "))
