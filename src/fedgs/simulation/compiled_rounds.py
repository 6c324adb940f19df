"""Whole rounds of selection in one compiled loop a station: counts of next batches → solve → use them up → queues.

Without churn the stations of a round do not depend on each other. So each station runs its T iterations in a thread of
its own. Python only draws the random orders beforehand, and more samples when the window of a stream ends. The oracle
is :func:`fedgs.selection.team.select_teams`, iteration by iteration: the results are the same to the bit. What this
file does not support (churn, other stream modes, other solvers) is selected there.
"""

from time import thread_time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs import rng
from fedgs.compiled import COMPILED, composed
from fedgs.data import DeviceStreams
from fedgs.data.streams import StreamArrays
from fedgs.selection.batch import IN_THE_LOOP, Piece, pieces_of, side_by_side, solve_one
from fedgs.selection.coverage import fair_shares, typical_batch
from fedgs.selection.draws import draw_subset
from fedgs.selection.problem import KernelProblem, measure
from fedgs.selection.sampling import draw_by_weight
from fedgs.selection.solve import EXACT_UP_TO, MULTISTART_UP_TO, SOLVERS, solver_key
from fedgs.settings import Settings

Devices = NDArray[np.int64]
METHODS = (*IN_THE_LOOP, "random", "random-by-data")


class Rules(NamedTuple):
    """What holds for all stations and iterations of a run."""

    target: NDArray[np.float64]
    pick: int
    presample: int
    batch_size: int
    method: int
    """The number of a solver in METHODS, also where nobody has a bonus …"""
    method_with_bonus: int
    """… and where somebody has one."""
    starts: int
    starts_with_bonus: int
    budget: int
    coverage: float
    """V; 0: no queues."""
    fresh_shares: bool
    """Shares by what is unused in the streams, anew in every iteration."""
    sizes: NDArray[np.float64]
    """(devices,) train samples."""


class Tally(NamedTuple):
    """What is counted for every device, as in ``Turns`` and ``Coverage``."""

    selected: NDArray[np.int64]
    last: NDArray[np.int64]
    longest_wait: NDArray[np.int64]
    queue: NDArray[np.float64]
    shares: NDArray[np.float64]


class RoundArrays(NamedTuple):
    """Where a round is written, as in ``RoundPlan``."""

    devices: NDArray[np.int32]
    samples: NDArray[np.int32]
    divergence: NDArray[np.float64]


class Draws(NamedTuple):
    """The randomness of a station's round."""

    orders: Devices
    """(iterations, devices) its devices in random order; the first are pre-sampled."""
    keys: NDArray[np.uint64]
    """(iterations, 2) keys of the solver: without and with a bonus."""


class Scratch(NamedTuple):
    """Room for one problem. Kernels are compiled for problems that cannot be written to, so there are two views."""

    counts: NDArray[np.float64]
    bonus: NDArray[np.float64]
    base: NDArray[np.float64]
    sizes: NDArray[np.float64]
    fixed_counts: NDArray[np.float64]
    fixed_bonus: NDArray[np.float64]
    fixed_base: NDArray[np.float64]
    fixed_sizes: NDArray[np.float64]


def make_rules(
    settings: Settings, target: NDArray[np.float64], sizes: NDArray[np.int64], stations: Devices
) -> Rules | None:
    """Return the rules of a run; None where select_teams must do it. ``stations``: devices of each."""
    selection = settings.selection
    name = selection.solver
    most, least = int(stations.max()) - selection.presample, int(stations.min())
    with_bonus = "multistart" if name == "auto" else name
    without = name if name != "auto" else "exact" if most <= EXACT_UP_TO else "multistart"
    by_size_alike = name != "auto" or (
        most <= MULTISTART_UP_TO and (most <= EXACT_UP_TO) == (least - selection.presample <= EXACT_UP_TO)
    )
    if (
        not COMPILED
        or settings.streams.mode != "sticky"
        or settings.dynamics.active
        or without not in METHODS
        or not by_size_alike
        or (name == "gbp-cs" and (selection.start != "mpinv" or selection.options))
        or not selection.presample < selection.pick < least
    ):
        return None
    options, options_with_bonus = (SOLVERS[one].options | selection.options for one in (without, with_bonus))
    return Rules(
        target=target,
        pick=selection.pick,
        presample=selection.presample,
        batch_size=settings.training.batch_size,
        method=METHODS.index(without),
        method_with_bonus=METHODS.index(with_bonus),
        starts=options.get("starts", 0),
        starts_with_bonus=options_with_bonus.get("starts", 0),
        budget=options.get("budget", 0),
        coverage=selection.coverage.weight,
        fresh_shares=selection.coverage.share == "fresh",
        sizes=sizes.astype(np.float64),
    )


def draw_orders(seed: int, first: int, iterations: int, everybody: list[Devices], rules: Rules) -> list[Draws]:
    """Return the randomness of all stations for a round that begins with iteration ``first``."""
    restarts = rng.Restarts()
    names = METHODS[rules.method], METHODS[rules.method_with_bonus]
    # GBP-CS and the descent from its start draw nothing; two names only where they differ.
    drawing = [name not in ("gbp-cs", "swap") for name in names]
    alike = names[0] == names[1]
    found = [Draws(np.tile(devices, (iterations, 1)), np.zeros((iterations, 2), np.uint64)) for devices in everybody]
    for row in range(iterations):
        first_seed = rng.key(seed, "select", first + row)
        for factory, draws in enumerate(found):
            restarts.stream(seed, "presample", first + row, factory).shuffle(draws.orders[row])
            if drawing[0]:
                draws.keys[row, 0] = solver_key(first_seed + factory, names[0])
            if drawing[1]:
                draws.keys[row, 1] = draws.keys[row, 0] if alike else solver_key(first_seed + factory, names[1])
    return found


def select_round(
    rules: Rules, streams: DeviceStreams, tally: Tally, arrays: RoundArrays, everybody: list[Devices], seed: int
) -> float:
    """Select for a round of all stations: fill in the arrays and move streams and tally on.

    Return the seconds the stations' own loops took, one after the other: each thread's time on a processor, so that
    neither threads side by side nor a busy machine change what one selection costs. Compiling is not in it.
    """
    iterations, first = len(arrays.devices), streams.iteration
    pieces = pieces_of(rules.method)  # those of the method with a bonus are the same
    stage = streams.inside()
    draws = draw_orders(seed, first, iterations, everybody, rules)

    def work(factory: int, row: int = 0) -> float:
        """Run a station's iterations from ``row`` on."""
        scratch, seconds = _scratch(len(everybody[factory]), len(rules.target), rules.batch_size), 0.0
        while True:
            began = thread_time()
            # Batches are equal, so the matrix of a proof is positive definite: G + a·11ᵀ + ε·I.
            row, empty = select_station_round(
                rules, stage, tally, arrays, draws[factory], scratch, factory, first, row, *pieces
            )
            seconds += thread_time() - began
            for device in empty:
                streams.refill(int(device))
            if row == iterations:
                return seconds

    work(0, iterations)  # compiles or loads the loop by running no iteration: the time of the first round is its own
    seconds = sum(side_by_side(work, len(everybody)))
    streams.skip(iterations)
    return seconds


def _scratch(devices: int, classes: int, batch_size: int) -> Scratch:
    arrays = (np.empty((devices, classes)), np.empty(devices), np.empty(classes), np.full(devices, float(batch_size)))
    fixed = [array.view() for array in arrays]
    for view in fixed:
        view.flags.writeable = False
    return Scratch(*arrays, *fixed)


@composed
def select_station_round(
    rules: Rules,
    stage: StreamArrays,
    tally: Tally,
    arrays: RoundArrays,
    draws: Draws,
    scratch: Scratch,
    factory: int,
    first: int,
    row: int,
    start: Piece,
    quadratic: Piece,
) -> tuple[int, Devices]:
    """Run iterations from ``row`` on; return the next one to run, and the devices to refill before it."""
    iterations, everybody = draws.orders.shape
    classes, size = len(rules.target), rules.batch_size
    drawn, pick = rules.presample, rules.pick - rules.presample
    places = np.arange(everybody)
    base_size, expected_size = float(drawn * size), float(pick * size) + float(drawn * size)
    chosen, taken = np.empty(pick, dtype=np.int64), np.empty(rules.pick, dtype=np.int64)
    empty = np.empty(rules.pick, dtype=np.int64)
    for t in range(row, iterations):
        order = draws.orders[t]
        for k in range(classes):
            scratch.base[k] = 0.0
        for place in range(everybody):
            for k in range(classes):
                scratch.counts[place, k] = stage.counts[order[place], k]
                if place < drawn:
                    scratch.base[k] += scratch.counts[place, k]
        any_bonus = False
        if rules.coverage > 0.0:
            scale = rules.coverage * typical_batch(scratch.fixed_counts, rules.target, places)
            for place in range(everybody):
                scratch.bonus[place] = scale * tally.queue[order[place]]
                any_bonus |= place >= drawn and scratch.bonus[place] != 0.0
        else:
            for place in range(everybody):
                scratch.bonus[place] = 0.0
        counts, bonus = scratch.fixed_counts[drawn:], scratch.fixed_bonus[drawn:]
        sizes = scratch.fixed_sizes[drawn:]
        method = rules.method_with_bonus if any_bonus else rules.method
        key = draws.keys[t, 1 if any_bonus else 0]
        problem = KernelProblem(
            counts, rules.target, scratch.fixed_base, bonus, sizes, base_size, expected_size, True, pick
        )
        if method < 4:
            starts = rules.starts_with_bonus if any_bonus else rules.starts
            solve_one(problem, key, method, starts, rules.budget, start, quadratic, chosen)
        elif method == 4:
            chosen[:] = draw_subset(everybody - drawn, pick, key)
        else:
            chosen[:] = draw_by_weight(rules.sizes[order[drawn:]], pick, key)
        divergence, _ = measure(problem, chosen)
        arrays.divergence[t, factory] = divergence
        for place in range(drawn):
            taken[place] = order[place]
        for place in range(pick):
            taken[drawn + place] = order[drawn + chosen[place]]
        taken.sort()
        if rules.coverage > 0.0:
            if rules.fresh_shares:
                share_by_fresh_samples(stage, tally, order, rules.pick)
            for place in range(everybody):
                device = order[place]
                tally.queue[device] += tally.shares[device]
        lacking = 0
        for place in range(rules.pick):
            device = taken[place]
            arrays.devices[t, factory, place] = device
            for k in range(size):
                arrays.samples[t, factory, place, k] = stage.next[device, k]
            if rules.coverage > 0.0:
                tally.queue[device] -= 1.0
            tally.selected[device] += 1
            tally.longest_wait[device] = max(tally.longest_wait[device], first + t + 1 - tally.last[device])
            tally.last[device] = first + t + 1
            stage.used[device] += size
            stage.position[device] += size
            if not move_on(stage, device, size):
                empty[lacking] = device
                lacking += 1
        if lacking:
            return t + 1, empty[:lacking].copy()
    return iterations, empty[:0].copy()


@composed
def share_by_fresh_samples(stage: StreamArrays, tally: Tally, order: Devices, pick: int) -> None:
    """Set the shares of a station's devices by what is unused in their streams before this iteration's batches."""
    devices = np.sort(order)
    unused = np.empty(len(devices))
    for place in range(len(devices)):
        whole = stage.sizes[devices[place]]
        unused[place] = whole - stage.position[devices[place]] % whole
    shares = fair_shares(unused, pick)
    for place in range(len(devices)):
        tally.shares[devices[place]] = shares[place]


@composed
def move_on(stage: StreamArrays, device: int, size: int) -> bool:
    """Bring a device's next batch and its counts up to its position; False when its window ends before."""
    position = stage.position[device]
    if position + size > stage.end[device]:
        return False
    where = stage.base[device] + position - stage.start[device]
    for k in range(stage.counts.shape[1]):
        stage.counts[device, k] = 0
    for k in range(size):
        sample = stage.window[where + k]
        stage.next[device, k] = sample
        stage.counts[device, stage.labels[sample]] += 1
    return True
