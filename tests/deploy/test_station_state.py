"""Calibration at a station: the simulator's shifts on the last bias, each round once; and a park that goes by them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgs.deploy.sources import Batch
from fedgs.deploy.station_state import StationCalibration, StationOptimizer
from fedgs.deploy.tensors import Flat
from fedgs.deploy.trainers import LinearTrainer
from fedgs.training.calibration import FLOOR, ClassMix
from fedgs.training.optimizers import Optimizer
from tests.deploy.devices import announcement, bad_device, counts_of, drawn, good_answer, good_devices, run_round
from tests.deploy.processes import BATCH, CLASSES, SHAPE, SHAPES, TASK, UNIFORM, Park, order

ZEROS = np.zeros(SHAPES.size, np.float32)
BIAS = slice(SHAPES.size - CLASSES, SHAPES.size)
Teams = NDArray[np.int64]


def shifts(mix: StationCalibration, teams: Teams, target: NDArray[np.float64] = UNIFORM) -> Flat:
    """Return the shift of the last bias for teams of one device each; nothing else may move."""
    moved = np.stack([mix.shifted(ZEROS, counts[None], target, BIAS) for counts in teams])
    assert not moved[:, :-CLASSES].any()
    return moved[:, -CLASSES:]


def test_a_team_worked_by_hand() -> None:
    """Two devices, (3, 2, 0, 0) and (2, 3, 0, 0): together halves of two classes of four, so log 2 and log ε."""
    mix = StationCalibration()
    mix.begin(order(calibration=0.5))
    weights = np.arange(SHAPES.size, dtype=np.float32)
    moved = mix.shifted(weights, np.array([[3, 2, 0, 0], [2, 3, 0, 0]]), UNIFORM, BIAS) - weights
    expected = 0.5 * np.log(np.array([2, 2, 0, 0]) + FLOOR)
    np.testing.assert_allclose(moved[-CLASSES:], expected, atol=1e-4)
    assert not moved[:-CLASSES].any()
    assert weights.tolist() == list(range(SHAPES.size))  # those that answers are added to


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4), st.integers(0, 2**31))
def test_however_often_a_round_is_begun_it_counts_once(attempts: list[list[int]], seed: int) -> None:
    """``attempts``: after how many of its three iterations a round was broken off, each time, before it was done."""
    draws = np.random.default_rng(seed)
    mix, oracle = StationCalibration(), ClassMix(1, UNIFORM, 3, 1.0)
    for number, broken in enumerate(attempts, start=1):
        target = draws.dirichlet(np.ones(CLASSES))  # an estimate differs from round to round
        asked = order(number, 3, calibration=1.0)
        for length in broken:
            mix.begin(asked)
            shifts(mix, draws.multinomial(BATCH, UNIFORM, length or 1), target)
        teams = draws.multinomial(BATCH, UNIFORM, 3)
        mix.begin(asked)
        oracle.target = target
        np.testing.assert_array_equal(shifts(mix, teams, target), oracle.follow(teams[:, None])[:, 0])


def test_another_task_or_an_earlier_round_begins_anew_and_a_roll_call_changes_nothing() -> None:
    teams = np.array([[5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0]])
    mix = StationCalibration()
    mix.begin(order(4, calibration=1.0))
    anew = shifts(mix, teams)
    mix.begin(order(5, calibration=1.0))
    gone_on = shifts(mix, teams)
    assert not np.array_equal(gone_on, anew)
    mix.begin(order(0, 0, calibration=1.0))
    mix.begin(order(5, calibration=1.0))
    np.testing.assert_array_equal(shifts(mix, teams), gone_on)
    mix.begin(order(4, calibration=1.0))
    np.testing.assert_array_equal(shifts(mix, teams), anew)
    mix.begin(order(5, calibration=1.0, task=replace(TASK, run="other")))
    np.testing.assert_array_equal(shifts(mix, teams), anew)


def trained(weights: Flat, batches: list[Batch], teams: Teams, mix: ClassMix) -> Flat:
    """One internal synchronisation in this process."""
    start = weights.copy()
    start[-CLASSES:] += mix.step(teams.sum(axis=0)[None])[0].astype(np.float32)
    trainer = LinearTrainer(CLASSES, SHAPE)
    changes = [trainer.step(start, batch, 0.1)[0] for batch in batches]
    return np.asarray(weights + np.mean(changes, axis=0), np.float32)


@pytest.mark.parametrize(("wire", "tolerance"), [("float32", 1e-6), ("float16", 3e-4)])
async def test_rounds_over_the_wire_and_one_asked_for_twice(park: Park, wire: str, tolerance: float) -> None:
    """Three devices in two rounds of two iterations; the mix of the first goes into the second once."""
    asked = {"task": replace(TASK, wire=wire), "calibration": 1.0}
    station = park.station("s1", "--min-devices", "3")
    async with good_devices(park, station, "a", "b", "c"):
        first = await run_round(station, 1, 2, **asked)
        again = await run_round(station, 1, 2, **asked)
        assert (again.weights == first.weights).all()
        second = await run_round(station, 2, 2, **asked, weights=first.weights)
    mix, weights = ClassMix(1, UNIFORM, 2, 1.0), ZEROS
    for number, batches in enumerate(drawn(range(3), 4), start=1):
        weights = trained(weights, batches, np.array(counts_of(batches)), mix)
        if number == 2:
            np.testing.assert_allclose(first.weights, weights, atol=tolerance)
    np.testing.assert_allclose(second.weights, weights, atol=tolerance)


async def test_who_was_selected_counts_without_an_answer_too(park: Park) -> None:
    """The third device announces class 0 alone and sends NaN: not in the mean, but in the mix, as in the simulator.

    What the station says it has ``seen`` is what was learned from: without the third.
    """
    nan = np.full(SHAPES.size, np.nan, np.float32)
    station = park.station("s1", "--min-devices", "3")
    async with (
        good_devices(park, station, "a", "b"),
        bad_device(park, station, lambda step: good_answer(step, change=nan), others=2, turns=2),
    ):
        result = await run_round(station, 1, 2, calibration=1.0, class_wise=True)
    assert result.events == {"rejected": 2}
    mix, weights = ClassMix(1, UNIFORM, 2, 1.0), ZEROS
    seen = np.zeros(CLASSES, np.int64)
    for batches in drawn(range(2), 2):
        seen += np.sum(counts_of(batches), axis=0)
        weights = trained(weights, batches, np.array([*counts_of(batches), announcement(1).counts]), mix)
    np.testing.assert_allclose(result.weights, weights, atol=1e-6)
    assert result.seen.tolist() == seen.tolist()


def test_a_stations_optimiser_survives_a_restart_and_counts_no_round_twice(tmp_path: Path) -> None:
    adam = Optimizer("adam")
    weights = np.linspace(-1, 1, 260, dtype=np.float32)

    def play(optimizer: StationOptimizer, number: int, start: np.ndarray) -> np.ndarray:
        optimizer.begin(order(number, 3, optimizer=adam, weights=start))
        now = start
        for step in range(3):
            change = np.float32(-0.1) * np.sin(now + step + number).astype(np.float32)
            now = optimizer.step(now, now + change, change, 0.1)
        return now

    whole = StationOptimizer(tmp_path)
    first = play(whole, 1, weights)
    whole.save()
    second = play(whole, 2, first)
    whole.save()
    third = play(whole, 3, second)
    restarted = StationOptimizer(tmp_path)
    assert np.array_equal(play(restarted, 3, second), third)
    again = StationOptimizer(tmp_path)
    assert np.array_equal(play(again, 2, first), second)  # asked for once more, it begins where it began
    fresh = StationOptimizer()
    assert not np.array_equal(play(fresh, 3, second), third)
    (tmp_path / "optimizer.npz").write_bytes(b"torn")
    torn = StationOptimizer(tmp_path)
    assert np.array_equal(play(torn, 3, second), play(StationOptimizer(), 3, second))
