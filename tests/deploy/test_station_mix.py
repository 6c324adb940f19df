"""Calibration at a station: the simulator's shifts on the last bias, each round once; and a park that goes by them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgs.deploy.sources import Batch
from fedgs.deploy.station_mix import StationMix
from fedgs.deploy.tensors import Flat
from fedgs.deploy.trainers import LinearTrainer
from fedgs.training.calibration import FLOOR, ClassMix
from tests.deploy.devices import Noise, announcement, good_answer, good_devices, misbehave, run_round
from tests.deploy.processes import BATCH, CLASSES, SHAPE, SHAPES, TASK, UNIFORM, order, park_in

ZEROS = np.zeros(SHAPES.size, np.float32)
BIAS = slice(SHAPES.size - CLASSES, SHAPES.size)
Teams = NDArray[np.int64]


def shifts(mix: StationMix, teams: Teams, target: NDArray[np.float64] = UNIFORM) -> Flat:
    """Return the shift of the last bias for teams of one device each; nothing else may move."""
    moved = np.stack([mix.moved(ZEROS, counts[None], target, BIAS) for counts in teams])
    assert not moved[:, :-CLASSES].any()
    return moved[:, -CLASSES:]


def test_a_team_worked_by_hand() -> None:
    """Two devices, (3, 2, 0, 0) and (2, 3, 0, 0): together halves of two classes of four, so log 2 and log ε."""
    mix = StationMix()
    mix.begin(order(calibration=0.5))
    weights = np.arange(SHAPES.size, dtype=np.float32)
    moved = mix.moved(weights, np.array([[3, 2, 0, 0], [2, 3, 0, 0]]), UNIFORM, BIAS) - weights
    expected = 0.5 * np.log(np.array([2, 2, 0, 0]) + FLOOR)
    np.testing.assert_allclose(moved[-CLASSES:], expected, atol=1e-4)
    assert not moved[:-CLASSES].any()
    assert weights.tolist() == list(range(SHAPES.size))  # those that answers are added to


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4), st.integers(0, 2**31))
def test_however_often_a_round_is_begun_it_counts_once(attempts: list[list[int]], seed: int) -> None:
    """``attempts``: after how many of its three iterations a round was broken off, each time, before it was done."""
    draws = np.random.default_rng(seed)
    mix, oracle = StationMix(), ClassMix(1, UNIFORM, 3, 1.0)
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
    mix = StationMix()
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


def counts_of(batches: list[Batch]) -> list[Teams]:
    return [np.bincount(batch.targets, minlength=CLASSES) for batch in batches]


def drawn(streams: list[Noise], number: int) -> list[list[Batch]]:
    """Return the batches of the first iterations, one of each stream."""
    sources = [stream.batches(BATCH, CLASSES) for stream in streams]
    return [[batch for batch in map(next, sources) if batch is not None] for _ in range(number)]


@pytest.mark.parametrize(("wire", "tolerance"), [("float32", 1e-6), ("float16", 3e-4)])
def test_rounds_over_the_wire_and_one_asked_for_twice(tmp_path: Path, wire: str, tolerance: float) -> None:
    """Three devices in two rounds of two iterations; the mix of the first goes into the second once."""
    task = replace(TASK, wire=wire)

    async def run() -> None:
        async with good_devices(park, station, "a", "b", "c"):
            first = await run_round(station, 1, 2, task=task, calibration=1.0)
            again = await run_round(station, 1, 2, task=task, calibration=1.0)
            assert (again.weights == first.weights).all()
            second = await run_round(station, 2, 2, task=task, calibration=1.0, weights=first.weights)
            mix, weights = ClassMix(1, UNIFORM, 2, 1.0), ZEROS
            for number, batches in enumerate(drawn([Noise(0), Noise(1), Noise(2)], 4), start=1):
                weights = trained(weights, batches, np.array(counts_of(batches)), mix)
                if number == 2:
                    np.testing.assert_allclose(first.weights, weights, atol=tolerance)
            np.testing.assert_allclose(second.weights, weights, atol=tolerance)

    with park_in(tmp_path) as park:
        station = park.station("s1", "--min-devices", "3")
        asyncio.run(run())


def test_who_was_selected_counts_without_an_answer_too(tmp_path: Path) -> None:
    """The third device announces class 0 alone and sends NaN: not in the mean, but in the mix, as in the simulator.

    What the station says it has ``seen`` is what was learned from: without the third.
    """

    async def run() -> None:
        async with good_devices(park, station, "a", "b"):
            nan = np.full(SHAPES.size, np.nan, np.float32)
            bad = asyncio.ensure_future(misbehave(park, station, "bad", lambda step: good_answer(step, change=nan), 2))
            await asyncio.to_thread(station.wait_ready, 3)
            result = await run_round(station, 1, 2, calibration=1.0, class_wise=True)
            bad.cancel()
            await asyncio.gather(bad, return_exceptions=True)
            assert result.events == {"rejected": 2}
            mix, weights = ClassMix(1, UNIFORM, 2, 1.0), ZEROS
            seen = np.zeros(CLASSES, np.int64)
            for batches in drawn([Noise(0), Noise(1)], 2):
                seen += np.sum(counts_of(batches), axis=0)
                weights = trained(weights, batches, np.array([*counts_of(batches), announcement(1).counts]), mix)
            np.testing.assert_allclose(result.weights, weights, atol=1e-6)
            assert result.seen.tolist() == seen.tolist()

    with park_in(tmp_path) as park:
        station = park.station("s1", "--min-devices", "3")
        asyncio.run(run())
