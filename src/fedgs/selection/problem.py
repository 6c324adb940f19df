"""The selection problem of a base station (paper, section V-A) and what a solver answers.

A station with N candidate devices picks exactly q of them. Row i of ``counts`` (the paper's Aᵀ) holds the class
counts of device i's next mini-batch, ``base`` (b) the counts of the devices that are in already, ``target``
(P_real) the class distribution to match:

    divergence(x) = ‖(Aᵀx + b) / Σ(Aᵀx + b) − P‖₂                     eq. complex-goal, what the paper reports
    distance(x)   = ‖Aᵀx − y‖₂,   y = (n·q + Σb)·P − b               eq. simple-goal and y

With equal batches of n samples the two order all choices alike. Where batch sizes differ, n is their mean, and the
solvers named in ``SOLVERS`` as ratio-aware minimise the divergence itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.compiled import kernel
from fedgs.errors import ProblemError

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Record = Callable[[Indices], None]
"""Called by a solver with each choice worth noting, when a trace is asked for."""
Key = int | np.uint64
"""64 bits of randomness; always ``np.uint64`` where kernels are compiled, for they are compiled for that type."""
MOST_DIVERGENCE = 2.0**0.5
"""No two distributions are further apart; a choice without a single sample is given this divergence."""
LARGEST = 1e100
"""Numbers beyond this, or below its inverse, are refused: their squares would overflow or vanish."""
NO_LIMIT = 2**62
"""For kernels that take a limit: as far as it goes."""

TARGET_TOLERANCE = 1e-6
"""How far the target's sum may be from 1 (float32 histograms are); it is then scaled to 1 exactly."""


class SelectionProblem:
    """Pick exactly ``pick`` rows of ``counts`` that, added to ``base``, look most like ``target``.

    Args:
        counts: (N, F) class counts of each candidate's next mini-batch; finite and not negative. Rows may have
            different sums, and a row of zeros is a device with nothing to give.
        target: (F,) class distribution to match; sums to 1.
        pick: how many candidates to take, from 0 to N.
        base: (F,) class counts that are in already (default: none).
        bonus: (N,) fairness term in squared counts (default: none). Solvers minimise ``distance² − Σ bonus[chosen]``:
            a device with a larger bonus is taken more readily. A negative bonus is a penalty.
        weights: (N,) how much data each candidate holds, 0 or more (default: the sizes of the batches). Only solvers
            that draw in proportion to it look at it.
    """

    __slots__ = (
        "_sealed",
        "base",
        "base_size",
        "bonus",
        "counts",
        "mean_size",
        "pick",
        "sizes",
        "target",
        "unit_sums",
        "weights",
    )
    counts: Floats
    target: Floats
    pick: int
    base: Floats
    bonus: Floats
    weights: Floats
    sizes: Floats
    base_size: float
    mean_size: float
    unit_sums: bool
    """Whether sums are normalised to distributions; False for a general matrix."""

    def __init__(
        self,
        counts: ArrayLike,
        target: ArrayLike,
        pick: int,
        base: ArrayLike | None = None,
        bonus: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        self.counts = _numbers("counts", counts, dimensions=2)
        devices, classes = self.counts.shape
        if devices == 0:
            raise ProblemError("counts has no rows: there must be at least one device to pick from")
        if classes == 0:
            raise ProblemError("counts has no columns: there must be at least one class")
        _not_negative("counts", self.counts)
        self.target = _distribution(target, classes)
        self.pick = _pick(pick, devices)
        self.base = np.zeros(classes) if base is None else _vector("base", base, classes, "class")
        _not_negative("base", self.base)
        self.bonus = np.zeros(devices) if bonus is None else _vector("bonus", bonus, devices, "device")
        sizes = self.counts.sum(axis=1)
        self.weights = sizes if weights is None else _vector("weights", weights, devices, "device")
        _not_negative("weights", self.weights)
        self._measure(sizes, float(self.base.sum()), unit_sums=True)

    @classmethod
    def trusted(cls, counts: Floats, target: Floats, pick: int, base: Floats, bonus: Floats, weights: Floats) -> Self:
        """Return a problem without checking it, five times faster: for simulators that make thousands a second.

        The arrays must be right by construction (float64, C order, finite, not negative, a target that sums to 1),
        and belong to the problem from now on.
        """
        problem = cls.__new__(cls)
        problem.counts, problem.target, problem.pick, problem.base, problem.bonus = counts, target, pick, base, bonus
        problem.weights = weights
        problem._measure(counts.sum(axis=1), float(base.sum()), unit_sums=True)
        return problem

    @classmethod
    def of_matrix(cls, matrix: ArrayLike, target: ArrayLike, pick: int) -> Self:
        """Return the general problem min ‖Mx − y‖ over ``pick`` columns, for any real matrix M and vector y.

        It is the same problem with nothing to normalise: batches without a size, b = −y and P = 0, so that
        ``divergence`` and ``distance`` are both ‖Mx − y‖.
        """
        problem = cls.__new__(cls)
        columns = _numbers("matrix", matrix, dimensions=2)
        if columns.shape[1] == 0:
            raise ProblemError("matrix has no columns: there must be at least one to pick from")
        problem.pick = _pick(pick, columns.shape[1], "column")
        wanted = _vector("target", target, len(columns), "row of the matrix")
        # Exactly ``pick`` columns are taken, so what all of them share may go: large offsets would cost digits.
        shared = np.median(columns, axis=1)
        problem.counts = np.ascontiguousarray((columns - shared[:, None]).T)
        problem.target = np.zeros(len(columns))
        problem.base = problem.pick * shared - wanted
        problem.bonus = np.zeros(columns.shape[1])
        problem.weights = np.ones(columns.shape[1])
        problem._measure(np.zeros(columns.shape[1]), 0.0, unit_sums=False)
        return problem

    def _measure(self, sizes: Floats, base_size: float, unit_sums: bool) -> None:
        self.unit_sums = unit_sums
        self.sizes = sizes
        self.base_size = base_size
        self.mean_size = float(sizes.mean())
        for array in (self.counts, self.target, self.base, self.bonus, self.weights, self.sizes):
            array.flags.writeable = False
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_sealed", False):
            raise AttributeError("a SelectionProblem cannot be changed; make a new one")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        values = (
            self.counts,
            self.target,
            self.pick,
            self.base,
            self.bonus,
            self.weights,
            self.sizes,
            self.base_size,
            self.unit_sums,
        )
        return _rebuild, values

    @property
    def equal_sizes(self) -> bool:
        """Whether all batches have the same number of samples, as the paper assumes."""
        return bool(np.ptp(self.sizes) <= 1e-9 * self.mean_size)

    @property
    def expected_size(self) -> float:
        """Samples of a super node: n·q + Σb (the paper's n·L), with n the mean batch size."""
        return self.mean_size * self.pick + self.base_size

    @property
    def wanted(self) -> Floats:
        """The counts the picked devices should add up to (y)."""
        return self.expected_size * self.target - self.base

    def divergence(self, chosen: ArrayLike) -> float:
        """‖normalised sum − target‖₂ of a choice; √2, the most there is, for a choice without a single sample."""
        return self.measure(chosen)[0]

    def distance(self, chosen: ArrayLike) -> float:
        """‖Aᵀx − y‖₂ of a choice."""
        return self.measure(chosen)[1]

    def measure(self, chosen: ArrayLike) -> tuple[float, float]:
        """Return divergence and distance of a choice, which is a list of different device numbers."""
        return self.measure_unchecked(_indices(chosen, len(self.counts)))

    def measure_unchecked(self, chosen: Indices) -> tuple[float, float]:
        """Return divergence and distance of a choice that is known to be one."""
        return measure(
            self.counts,
            self.target,
            self.base,
            self.sizes,
            self.base_size,
            self.expected_size,
            self.unit_sums,
            chosen,
        )

    def __repr__(self) -> str:
        devices, classes = self.counts.shape
        return f"SelectionProblem({devices} devices, {classes} classes, pick={self.pick})"


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """The answer of a solver."""

    chosen: Indices
    """Sorted indices of the picked rows."""
    divergence: float
    """‖normalised sum − target‖₂, the paper's measure."""
    distance: float
    """‖Aᵀx − y‖₂, the paper's objective."""
    proven: bool
    """True only when no other choice can be better (within rounding)."""
    trace: list[tuple[float, float]] | None
    """(seconds, divergence) at each step when asked for with ``trace=True``, else None."""
    solver: str
    """The solver that gave it; for ``auto``, the one it picked."""
    seconds: float
    """How long the solver took."""


def measure_oracle(
    counts: Floats,
    target: Floats,
    base: Floats,
    sizes: Floats,
    base_size: float,
    expected_size: float,
    unit_sums: bool,
    chosen: Indices,
) -> tuple[float, float]:
    """Plain numpy version of :func:`measure`."""
    total = counts[chosen].sum(axis=0) + base
    size = float(sizes[chosen].sum()) + base_size
    distance = float(np.linalg.norm(total - expected_size * target))
    if not unit_sums:
        return distance, distance
    return float(np.linalg.norm(total / size - target)) if size > 0.0 else MOST_DIVERGENCE, distance


@kernel(measure_oracle)
def measure(
    counts: Floats,
    target: Floats,
    base: Floats,
    sizes: Floats,
    base_size: float,
    expected_size: float,
    unit_sums: bool,
    chosen: Indices,
) -> tuple[float, float]:
    """Return divergence and distance of a choice."""
    size = base_size
    for i in chosen:
        size += sizes[i]
    scale = 1.0 / size if size > 0.0 else 1.0
    divergence, distance = 0.0, 0.0
    for k in range(len(target)):
        total = base[k]
        for i in chosen:
            total += counts[i, k]
        divergence += (total * scale - target[k]) ** 2
        distance += (total - expected_size * target[k]) ** 2
    if not unit_sums:
        return np.sqrt(distance), np.sqrt(distance)
    return np.sqrt(divergence) if size > 0.0 else MOST_DIVERGENCE, np.sqrt(distance)


def _rebuild(*values: Any) -> SelectionProblem:
    problem = SelectionProblem.__new__(SelectionProblem)
    problem.counts, problem.target, problem.pick, problem.base, problem.bonus, problem.weights, *measures = values
    problem._measure(*measures)
    return problem


def _indices(chosen: ArrayLike, devices: int) -> Indices:
    found = np.asarray(chosen)
    if found.size == 0:
        return np.empty(0, dtype=np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ProblemError("a choice is a one-dimensional list of device numbers")
    if found.min() < 0 or found.max() >= devices or len(np.unique(found)) != len(found):
        raise ProblemError(f"a choice names different devices from 0 to {devices - 1}, not {found.tolist()[:20]}")
    return found.astype(np.int64)


def _numbers(name: str, values: ArrayLike, dimensions: int) -> Floats:
    try:
        if np.ma.isMaskedArray(values) or np.iscomplexobj(values):
            raise ProblemError(f"{name} must be plain real numbers, not a masked or complex array")
        array = np.array(values, dtype=np.float64, order="C")
    except ProblemError:
        raise
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(f"{name} must be a {dimensions}-dimensional array of numbers") from None
    if array.ndim != dimensions:
        raise ProblemError(f"{name} must have {dimensions} dimension(s), not shape {array.shape}")
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ProblemError(f"{name}{where} is not a finite number: {array[tuple(where)]}")
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST or 0.0 < largest < 1.0 / LARGEST:
        raise ProblemError(f"{name} goes up to {largest:g}, whose square is out of range; scale it to ordinary numbers")
    return array


def _vector(name: str, values: ArrayLike, length: int, per: str) -> Floats:
    array = _numbers(name, values, dimensions=1)
    if len(array) != length:
        raise ProblemError(f"{name} has {len(array)} entries; one per {per} would be {length}")
    return array


def _not_negative(name: str, array: Floats) -> None:
    if array.min() < 0:
        where = np.argwhere(array < 0)[0].tolist()
        raise ProblemError(f"{name}{where} is negative: {array[tuple(where)]:g}; it must be 0 or more")


def _distribution(target: ArrayLike, classes: int) -> Floats:
    array = _vector("target", target, classes, "class")
    _not_negative("target", array)
    total = float(array.sum())
    if abs(total - 1.0) > TARGET_TOLERANCE:
        raise ProblemError(f"target must be a distribution, but its entries sum to {total:g}; divide by the sum")
    scaled: Floats = array / total
    return scaled


def _pick(pick: int, devices: int, of: str = "device") -> int:
    if isinstance(pick, bool) or not isinstance(pick, int | np.integer):
        raise ProblemError(f"pick must be a whole number, not {pick!r}")
    if not 0 <= pick <= devices:
        raise ProblemError(f"pick={pick} is impossible with {devices} {of}(s); it must be from 0 to {devices}")
    return int(pick)
