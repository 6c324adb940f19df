"""Ctrl-C and SIGTERM: one line, and the end of the process within two seconds, whatever it is doing.

Python's own handler waits until the main thread is back from compiled code: a kernel that is being compiled, a network
that is tested, a library that is loaded. So a thread listens too. It leaves the main thread a moment to save what it
has, then it ends the process. Files are written under another name and renamed, so none is torn.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, RLock, Thread
from types import FrameType
from typing import Any, NoReturn

PATIENCE = 1.0
"""Seconds the main thread has."""


def _nothing_left() -> str:
    return "interrupted"


last_words: Callable[[], str] = _nothing_left
"""What is said; a command that leaves something says what to do with it."""
SIGNALS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""What is listened to where nobody has changed what Python does with it."""
seen = Event()
"""Set when one of them came."""
said = Event()
"""Set when the last words were printed."""
_saying = RLock()
_code = 130
"""Of the process that it ends: 128 and the number of the signal."""


@contextmanager
def watched() -> Iterator[None]:
    """Listen while the block runs; handlers that a command installs itself take its place."""
    global last_words, _code
    last_words, _code = _nothing_left, 130
    seen.clear()
    said.clear()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before, hook = signal.set_wakeup_fd(writer, warn_on_full_buffer=False), sys.unraisablehook
    # Where a library calls Python, Ctrl-C is dropped with a traceback; the thread below has seen it all the same.
    sys.unraisablehook = lambda error: None if error.exc_type is KeyboardInterrupt else hook(error)
    ours = [number for number, usual in SIGNALS.items() if signal.getsignal(number) is usual]  # a shell may ignore some
    for number in ours:
        signal.signal(number, _handle)
    listener = Thread(target=_listen, args=(reader,), daemon=True)
    listener.start()
    try:
        yield
    finally:
        if not seen.is_set():  # or threads that are still at work would be waited for
            for number in ours:
                signal.signal(number, SIGNALS[number])
            signal.set_wakeup_fd(before)
            sys.unraisablehook = hook
            os.close(writer)
            listener.join()  # or it may still wake up while Python takes itself apart


def say(name: str = "fedgs") -> None:
    """Print the last words, once."""
    with _saying:
        if said.is_set():
            return
        # The display of a run may have hidden the cursor.
        reset = "\r\x1b[2K\x1b[?25h" if sys.stderr.isatty() else ""
        sys.stderr.write(f"{reset}{name}: {last_words()}\n")
        sys.stderr.flush()
        said.set()


def end() -> NoReturn:
    """Print the last words and end the process, whatever its threads do."""
    try:
        say()
        sys.stdout.flush()
    finally:
        os._exit(_code)


def _handle(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but never inside an import: libraries in C++ abort on it, others remember it."""
    global _code
    _code = 128 + number
    seen.set()
    above = frame
    while above is not None:
        if above.f_code.co_filename == "<frozen importlib._bootstrap>":
            end()
        above = above.f_back
    signal.default_int_handler(number, frame)


def _listen(reader: int) -> None:
    global _code
    while number := os.read(reader, 1):
        if number[0] in SIGNALS and signal.getsignal(number[0]) is _handle:
            _code = 128 + number[0]
            seen.set()
            time.sleep(PATIENCE)
            end()
    os.close(reader)
