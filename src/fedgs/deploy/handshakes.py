"""TLS handshakes that a station refuses: counted, and logged with the peer's address.

gRPC tells them neither to Python nor with an address in its log: a wrong authority, an expired certificate, plain text,
a peer that says nothing. Its trace of handshakes (``GRPC_TRACE=handshaker``) has both, in several lines:

    I1119 21:22:33 3571 handshaker.cc:155] CallNext… grpc.internal.endpoint_peer_address=ipv4:10.0.0.7:41466, …
    I1119 21:22:33 3571 channel_trace.h:396] handshake manager 0x7f7c: calling handshaker security at index 1
    I1119 21:22:38 3572 channel_trace.h:396] handshake manager 0x7f7c: Shutdown called: UNKNOWN: Handshake timed out

The first two come from one thread (3571), the last from any. All go to the process's stderr, past Python; so that is
read here, and what is not gRPC's is passed on.
"""

import fcntl
import logging
import os
import re
import sys
import threading
from collections.abc import Callable

from fedgs.deploy.connections import HANDSHAKE, peer_of
from fedgs.deploy.logs import log

_OF_GRPC = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\S* +(\d+) |WARNING: All log messages before absl")
_REST_OF_GRPC = re.compile(r"=== Source Location Trace| shutdown=(true|false) index=|src/core/|\s*$")
_PEER = re.compile(r"endpoint_peer_address=([^,}]+)")
_MANAGER = re.compile(r"handshake manager (\w+): +(.*)")
_TLS = re.compile(r"OPENSSL_internal:([A-Z_0-9]+)(?:: (.*?))?(?:: OK)?$")
_WORDS = {
    "WRONG_VERSION_NUMBER": "plain text, not TLS",
    "HTTP_REQUEST": "plain text, not TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust our authority",
}
MOST = 4096
"""Handshakes whose peers are remembered; those that succeed are not taken out."""
PIPE = 1 << 20
"""Bytes that gRPC may be ahead of the reader."""


class RefusedHandshakes:
    """Reads the process's own stderr while it lasts."""

    def __init__(self, refused: Callable[[str, str], None]) -> None:
        """``refused`` is told why a handshake was refused, and the address of the peer."""
        self._trace = Trace(refused)
        self._real = os.dup(2)
        reading, writing = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE)
        os.set_blocking(writing, False)  # or gRPC would wait for a reader that may wait for gRPC
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
                if not self._trace.takes(raw.decode("utf-8", "replace")):
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


class Trace:
    """Puts the lines of gRPC's trace together."""

    def __init__(self, refused: Callable[[str, str], None]) -> None:
        self._refused = refused
        self._seen: dict[str, str] = {}
        """The peer that a thread of gRPC named last."""
        self._peers: dict[str, str] = {}
        """The peers of handshakes under way."""

    def takes(self, line: str) -> bool:
        """Take a line of stderr; False where it is not gRPC's."""
        own = _OF_GRPC.match(line)
        if own is None:
            return _REST_OF_GRPC.match(line) is not None
        thread = own.group(1) or ""
        if peer := _PEER.search(line):
            self._seen[thread] = peer.group(1)
        elif manager := _MANAGER.search(line):
            self._follow(manager.group(1), manager.group(2), thread)
        return True

    def _follow(self, handshake: str, told: str, thread: str) -> None:
        """Take what gRPC tells of a handshake."""
        if told.startswith("calling handshaker security") and thread in self._seen:
            self._peers.pop(handshake, None)
            self._peers[handshake] = self._seen.pop(thread)
            if len(self._peers) > MOST:
                del self._peers[next(iter(self._peers))]
        elif "Handshake timed out" in told:
            self._end(handshake, f"no handshake within {HANDSHAKE:g} s")
        elif told.startswith("Failed with error") and (found := _TLS.search(told.strip())):
            self._end(handshake, _reason(*found.groups()))

    def _end(self, handshake: str, reason: str) -> None:
        peer = self._peers.pop(handshake, "")
        self._refused(reason, peer_of(peer)[0] if peer else "")


def _reason(code: str, detail: str | None) -> str:
    if code == "CERTIFICATE_VERIFY_FAILED" and detail:
        return {"unable to get local issuer certificate": "a certificate of another authority"}.get(detail, detail)
    return _WORDS.get(code, code.lower().replace("_", " "))
