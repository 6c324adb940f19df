"""What a station keeps: its calibration and its optimizer from round to round, and the answer of its last round."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgs.deploy.metrics import StationMetrics
from fedgs.deploy.round_messages import RoundOrder, RoundResult, decode_result
from fedgs.deploy.round_state import PartialRound, StationCalibration, StationOptimizer
from fedgs.deploy.rounds import RoundTrainer
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.station import Station
from fedgs.deploy.station_process import REMEMBERED, Control
from fedgs.deploy.tensors import Flat
from fedgs.errors import WireError
from fedgs.training.calibration import FLOOR, ClassMix
from fedgs.training.optimizers import Optimizer
from tests.deploy.devices import (
    announcement,
    bad_device,
    counts_of,
    drawn,
    good_answer,
    good_devices,
    run_round,
    trained,
)
from tests.deploy.processes import BATCH, CLASSES, SHAPES, UNIFORM, Park, named_task, order

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
    mix.begin(order(5, calibration=1.0, task=named_task("other")))
    np.testing.assert_array_equal(shifts(mix, teams), anew)


async def test_who_was_selected_counts_without_an_answer_too(park: Park) -> None:
    """The third device announces class 0 alone and sends NaN: not in the mean, but in the mix, as in the simulator.

    What the station says it has ``seen`` is what was learned from: without the third.
    """
    nan = np.full(SHAPES.size, np.nan, np.float32)
    station = await park.serve("s1", min_devices=3)
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


DIGEST = b"0123456789abcdef"


class Counting(RoundTrainer):
    """Answers with the order's weights and counts how often it was asked."""

    times = 0
    loss = 1.0

    async def carry_out(self, order: RoundOrder, part: PartialRound | None = None) -> RoundResult:
        self.times += 1
        return RoundResult(
            order.run, order.round, order.shapes, order.weights, 1, 5, self.loss, 0.0, 0, np.zeros(0)
        )  # fmt: skip


def control_in(folder: Path) -> tuple[Control, Counting]:
    station = Station(StationSettings(), StationMetrics(), None)
    control = Control("s1", station, folder)
    control.trainer = trainer = Counting(station)
    return control, trainer


def ask(control: Control) -> bytes:
    return asyncio.run(control.result_of(DIGEST, order(1, 1)))


def test_a_round_survives_a_restart_and_a_torn_file_is_trained_again(tmp_path: Path) -> None:
    control, trainer = control_in(tmp_path)
    answer = ask(control)
    assert ask(control) == answer
    assert trainer.times == 1
    restarted, trainer = control_in(tmp_path)
    assert ask(restarted) == answer
    assert trainer.times == 0
    file = tmp_path / REMEMBERED
    whole = file.read_bytes()
    for torn in (whole[:-1], whole[:20], b"", whole[:-1] + bytes([whole[-1] ^ 1]), bytes(len(whole))):
        file.write_bytes(torn)
        restarted, trainer = control_in(tmp_path)
        assert ask(restarted) == answer
        assert trainer.times == 1


def test_a_disk_that_cannot_be_written_loses_no_round(tmp_path: Path) -> None:
    control, trainer = control_in(tmp_path / "missing")
    answer = ask(control)
    assert decode_result(answer).iterations == 1
    assert ask(control) == answer
    assert trainer.times == 1


def test_an_answer_the_top_server_cannot_take_is_not_kept(tmp_path: Path) -> None:
    control, trainer = control_in(tmp_path)
    trainer.loss = math.inf
    with pytest.raises(WireError, match="loss"):
        ask(control)
    assert not (tmp_path / REMEMBERED).exists()
    trainer.loss = 1.0
    assert decode_result(ask(control)).loss == 1.0
    assert trainer.times == 2
