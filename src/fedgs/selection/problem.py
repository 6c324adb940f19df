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
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.compiled import kernel
from fedgs.errors import ProblemError

if TYPE_CHECKING:
    from fedgs.selection.feedback import Feedback

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


class KernelProblem(NamedTuple):
    """A problem as kernels take it: the fields of :class:`SelectionProblem`, in arrays of its own."""

    by_class: Floats
    """(F, N) the counts, so that loops over devices run along rows."""
    target: Floats
    base: Floats
    bonus: Floats
    sizes: Floats
    base_size: float
    expected_size: float
    ratio: bool
    """Whether batches differ in size, so that the divergence is not the distance in other units."""
    unit_sums: bool
    pick: int


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class SelectionProblem:
    """Select ``pick`` rows of ``counts`` whose sum with ``base`` comes closest to the distribution ``target``.

    Args:
        counts: (N, F) class counts of each candidate's next mini-batch; finite and not negative. Rows may have
            different sums, and a row of zeros is a device without data.
        target: (F,) class distribution to match; sums to 1.
        pick: the number of candidates to select, from 0 to N.
        base: (F,) class counts of devices that are already selected (default: none).
        bonus: (N,) fairness term in squared counts (default: none). Solvers minimise ``distance² − Σ bonus[chosen]``:
            a device with a larger bonus is preferred. A negative bonus is a penalty.
        weights: (N,) how much data each candidate holds, 0 or more (default: the sizes of the batches). Only solvers
            that draw in proportion to the data use it.
        feedback: what is known of the candidates from earlier rounds (default: nothing). Only solvers that learn from
            training use it.

    Examples:
        >>> import fedgs
        >>> counts = [[4, 0], [3, 1], [0, 4], [1, 3]]        # four devices, two classes
        >>> fedgs.solve(fedgs.SelectionProblem(counts, target=[0.5, 0.5], pick=2)).divergence
        0.0
    """

    counts: Floats
    target: Floats
    pick: int
    base: Floats
    bonus: Floats
    weights: Floats
    sizes: Floats
    base_size: float
    unit_sums: bool
    """Whether sums are normalised to distributions; False for a general matrix."""
    feedback: "Feedback | None"
    mean_size: float
    parts: KernelProblem
    """The problem as kernels take it."""

    def __init__(
        self,
        counts: ArrayLike,
        target: ArrayLike,
        pick: int,
        base: ArrayLike | None = None,
        bonus: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        feedback: "Feedback | None" = None,
    ) -> None:
        given = _numbers("counts", counts, dimensions=2)
        devices, classes = given.shape
        if devices == 0:
            raise ProblemError("counts has no rows: there must be at least one device to pick from")
        if classes == 0:
            raise ProblemError("counts has no columns: there must be at least one class")
        _not_negative("counts", given)
        wanted = _distribution(target, classes)
        number = _pick(pick, devices)
        there = np.zeros(classes) if base is None else _vector("base", base, classes, "class")
        _not_negative("base", there)
        extra = np.zeros(devices) if bonus is None else _vector("bonus", bonus, devices, "device")
        sizes = given.sum(axis=1)
        data = sizes if weights is None else _vector("weights", weights, devices, "device")
        _not_negative("weights", data)
        if feedback is not None and len(feedback.loss) != devices:
            raise ProblemError(f"feedback is of {len(feedback.loss)} devices; there are {devices}")
        self._fill(given, wanted, number, there, extra, data, sizes, float(there.sum()), True, feedback)

    @classmethod
    def trusted(
        cls, counts: Floats, target: Floats, pick: int, base: Floats, bonus: Floats, weights: Floats,
        feedback: "Feedback | None" = None,
    ) -> Self:  # fmt: skip
        """Return a problem without checking it, five times faster: for simulators that make thousands a second.

        The arrays must be right by construction (float64, C order, finite, not negative, a target that sums to 1),
        and belong to the problem from now on.
        """
        sizes, base_size = counts.sum(axis=1), float(base.sum())
        return cls.__new__(cls)._fill(counts, target, pick, base, bonus, weights, sizes, base_size, True, feedback)

    @classmethod
    def of_matrix(cls, matrix: ArrayLike, target: ArrayLike, pick: int) -> Self:
        """Return the general problem min ‖Mx − y‖ over ``pick`` columns, for any real matrix M and vector y.

        It is the same problem with nothing to normalise: batches without a size, b = −y and P = 0, so that
        ``divergence`` and ``distance`` are both ‖Mx − y‖.
        """
        columns = _numbers("matrix", matrix, dimensions=2)
        rows, number = columns.shape
        if number == 0:
            raise ProblemError("matrix has no columns: there must be at least one to pick from")
        pick = _pick(pick, number, "column")
        wanted = _vector("target", target, rows, "row of the matrix")
        # Exactly ``pick`` columns are taken, so what all of them share may go: large offsets would cost digits.
        shared = np.median(columns, axis=1)
        counts = np.ascontiguousarray((columns - shared[:, None]).T)
        return cls.__new__(cls)._fill(
            counts, np.zeros(rows), pick, pick * shared - wanted, np.zeros(number), np.ones(number), np.zeros(number),
            0.0, False, None,
        )  # fmt: skip

    def _fill(self, *values: Any) -> Self:
        """Set all fields but the last two, which follow from them, in their order; arrays become read-only."""
        for name, value in zip(_GIVEN, values, strict=True):
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "mean_size", float(self.sizes.mean()))
        parts = KernelProblem(
            self.counts.T.copy(), self.target.copy(), self.base.copy(), self.bonus.copy(), self.sizes.copy(),
            self.base_size, self.expected_size, not self.equal_sizes, self.unit_sums, self.pick,
        )  # fmt: skip
        object.__setattr__(self, "parts", parts)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, tuple(getattr(self, name) for name in _GIVEN)

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
        return measure(self.parts, chosen)

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


def measure_oracle(problem: KernelProblem, chosen: Indices) -> tuple[float, float]:
    """Plain numpy version of :func:`measure`."""
    size = float(np.cumsum([problem.base_size, *problem.sizes[chosen]])[-1])
    total = np.cumsum([problem.base, *problem.by_class.T[chosen]], axis=0)[-1]
    part = total * (1.0 / size if size > 0.0 else 1.0) - problem.target
    gap = total - problem.expected_size * problem.target
    divergence, distance = float(np.sqrt(np.cumsum(part * part)[-1])), float(np.sqrt(np.cumsum(gap * gap)[-1]))
    if not problem.unit_sums:
        return distance, distance
    return divergence if size > 0.0 else MOST_DIVERGENCE, distance


@kernel(measure_oracle)
def measure(problem: KernelProblem, chosen: Indices) -> tuple[float, float]:
    """Return divergence and distance of a choice."""
    size = problem.base_size
    for i in chosen:
        size += problem.sizes[i]
    scale = 1.0 / size if size > 0.0 else 1.0
    divergence, distance = 0.0, 0.0
    for k in range(len(problem.target)):
        total = problem.base[k]
        for i in chosen:
            total += problem.by_class[k, i]
        part, gap = total * scale - problem.target[k], total - problem.expected_size * problem.target[k]
        divergence += part * part
        distance += gap * gap
    if not problem.unit_sums:
        return np.sqrt(distance), np.sqrt(distance)
    return np.sqrt(divergence) if size > 0.0 else MOST_DIVERGENCE, np.sqrt(distance)


_GIVEN = tuple(field.name for field in fields(SelectionProblem))[:-2]


def _rebuild(*values: Any) -> SelectionProblem:
    return SelectionProblem.__new__(SelectionProblem)._fill(*values)


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
