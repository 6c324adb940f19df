"""Kernels: functions that run in plain Python at first, and as machine code once that pays.

``@kernel(oracle)`` marks a function that numba compiles. The oracle computes the same numbers in plain numpy, so that
choices are the same to the bit; ``@composed`` marks a function that is plain enough to be its own oracle. Tests hold
the two against each other. The oracle runs where numba is missing or ``FEDGS_NO_NUMBA=1`` is set, and until compiling
pays: a solver that is called once is done in milliseconds and would wait for seconds (:class:`WhereItPays`).

Kernels are loops over numbers and arrays. A call of numpy inside one costs a tenth of a second up to several seconds of
compiling (``lstsq``), and a library's sums have an order of their own, which decides ties. Each kernel is called with
one set of types, so that it is compiled once: arrays that can be written to, in C order, of float64 or int64.

Machine code is kept in the user's cache folder under the digest of all sources that have kernels. So it survives a
reinstall, serves installations that cannot be written to, and a kernel is never older than one that it calls.

Kernels release Python's global lock, so threads run them side by side. They never draw from a global generator:
randomness comes in as a 64-bit key (see ``fedgs.selection.draws``).
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property, update_wrapper
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

COMPILED = os.environ.get("FEDGS_NO_NUMBA", "") in ("", "0") and find_spec("numba") is not None
"""Whether kernels can be compiled."""
PATIENCE, PATIENCE_TO_LOAD = 0.5, 0.05
"""Seconds that a piece of work may take in plain Python, all its calls together, before it is compiled or loaded."""

_wanted: ContextVar[bool | None] = ContextVar("machine code", default=None)
_plain_seconds: defaultdict[str, float] = defaultdict(float)
_loaded: set[str] = set()


class Kernel(Generic[P, R]):
    """A function in two versions: plain, and as machine code where :func:`running` asks for it."""

    def __init__(self, function: Callable[P, R], plain: Callable[P, R]) -> None:
        self.plain = plain
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> R:  # noqa: D102
        return self.machine_code(*arguments) if _wanted.get() else self.plain(*arguments)  # type: ignore[call-arg]

    @cached_property
    def machine_code(self) -> Any:
        """The function as numba compiles it, or loads it, when it is first called."""
        numba = _numba()
        # Divisions are looked at before they are made; numpy's rule for them leaves the loops without branches.
        compiled = numba.njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(self._function)
        # Nowhere to write, or another numba's insides: compiled anew in each process.
        with suppress(ImportError, AttributeError, RuntimeError, TypeError):
            compiled._cache = _cache_class()(self._function)
        return compiled


def kernel(oracle: Callable[P, R]) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Mark a function to be compiled, whose plain version is ``oracle``."""
    return lambda function: Kernel(function, oracle)


def composed(function: Callable[P, R]) -> Kernel[P, R]:
    """Mark a function to be compiled that is plain enough to run as it stands."""
    return Kernel(function, function)


@contextmanager
def running(compiled: bool) -> Iterator[None]:
    """Run all kernels that are called from here as machine code, or all in plain Python."""
    token = _wanted.set(compiled and COMPILED)
    try:
        yield
    finally:
        _wanted.reset(token)


class WhereItPays:
    """Runs kernels as machine code once that pays: compiling takes seconds, loading what was compiled half a second.

    A class, not a generator: it is entered for every problem, and those take microseconds.
    """

    def __init__(self, work: str, warm_up: Callable[[], object]) -> None:
        """``work`` names what always calls the same kernels; ``warm_up`` calls all of them, untimed."""
        self._work, self._warm_up = work, warm_up

    def __enter__(self) -> bool:
        work, compiled = self._work, _wanted.get()
        if compiled is None:
            spent = _plain_seconds[work]
            pays = work in _loaded or spent > PATIENCE or (spent > PATIENCE_TO_LOAD and _is_kept(work))
            compiled = COMPILED and pays
        if compiled and work not in _loaded:
            _loaded.add(work)
            with running(True):
                self._warm_up()
            with suppress(OSError):
                (kernel_folder() / f"{work}.ready").touch()
        self._compiled, self._token, self._began = compiled, _wanted.set(compiled), time.perf_counter()
        return compiled

    def __exit__(self, *_: object) -> None:
        _wanted.reset(self._token)
        if not self._compiled:
            _plain_seconds[self._work] += time.perf_counter() - self._began


told = Event()
"""Set once somebody was told that this process compiles."""
_listeners: list[Callable[[str], object]] = []


@contextmanager
def telling(note: Callable[[str], object]) -> Iterator[None]:
    """Call ``note`` with a line if a kernel is compiled while the block runs; of blocks in blocks, the innermost's."""
    _listeners.append(note)
    try:
        yield
    finally:
        _listeners.remove(note)


def _tell() -> None:
    if _listeners and not told.is_set():
        told.set()
        _listeners[-1]("compiling kernels, once on this machine; this takes up to a minute …")


@cache
def _is_kept(work: str) -> bool:
    return (kernel_folder() / f"{work}.ready").exists()


@cache
def kernel_folder() -> Path:
    """Return where machine code is kept: below ``NUMBA_CACHE_DIR`` or the user's cache folder."""
    import platformdirs

    digest = blake2b(digest_size=8)
    for file in (Path(__file__), *sorted(Path(__file__).with_name("selection").glob("*.py"))):
        digest.update(file.read_bytes())
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    root = Path(chosen) if chosen else platformdirs.user_cache_path("fedgs", appauthor=False) / ".kernels"
    return root / digest.hexdigest()


@cache
def _numba() -> Any:
    """Return numba, which takes a kernel that another one calls for its machine code."""
    numba: Any = import_module("numba")
    from numba.extending import typeof_impl

    _listen()
    typeof_impl.register(Kernel)(lambda value, context: numba.core.types.Dispatcher(value.machine_code))
    return numba


@cache
def _listen() -> None:
    """Hear of each kernel that is compiled; one that is loaded from the disk is not."""
    from numba.core.event import Event as NumbaEvent
    from numba.core.event import Listener, register

    class Compiles(Listener):
        def on_start(self, event: NumbaEvent) -> None:
            _tell()

        def on_end(self, event: NumbaEvent) -> None:
            pass

    register("numba:compile", Compiles())  # type: ignore[no-untyped-call]


@cache
def _cache_class() -> Any:
    """Return numba's cache of one function, in our folder."""
    caching: Any = import_module("numba.core.caching")

    class Locator(caching._CacheLocator):  # type: ignore[misc]
        def __init__(self, function: Any, file: str) -> None:
            self._py_file, self._line = file, function.__code__.co_firstlineno

        def get_cache_path(self) -> str:
            return str(kernel_folder())

        def get_source_stamp(self) -> str:
            return ""  # the name of the folder is one

        def get_disambiguator(self) -> str:
            return str(self._line)

        @classmethod
        def from_function(cls, function: Any, file: str) -> Any:
            found = cls(function, file)
            try:
                found.ensure_cache_path()
            except OSError:
                return None
            return found

    class Place(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (Locator,)

    class Cache(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = Place

    return Cache
