import json
from pathlib import Path

import numpy as np
import pytest

from fedgs.config import load_settings, settings_from
from fedgs.data.statistics import team_divergence
from fedgs.selection.coverage import fair_shares
from fedgs.simulation.selection_plan import SelectionPlan, count_classes, view_round
from fedgs.simulation.simulator import Simulator
from fedgs.simulation.summary import jain, summarise
from tests.simulation.small import small_federation, small_settings

FEDERATION = small_federation()
ON = ("selection.solver=auto", "selection.coverage.weight=0.3", "selection.presample=0")


def played(*options: str, rounds: int = 10) -> SelectionPlan:
    plan = SelectionPlan(FEDERATION, small_settings("training.iterations=20", "selection.pick=2", *options))
    for _ in range(rounds):
        plan.next_round()
    return plan


def epochs(plan: SelectionPlan) -> np.ndarray:
    return np.asarray(plan.streams.samples_used / FEDERATION.train.sizes)


def test_every_devices_data_are_used_alike() -> None:
    plain = jain(epochs(played("selection.presample=0")))
    fair = jain(epochs(played(*ON)))
    assert fair > 0.98  # factories have different amounts of data for the same number of turns
    assert fair > plain + 0.02


@pytest.mark.parametrize("solver", ["gbp-cs", "swap", "multistart", "exact", "large", "monte-carlo", "brute"])
def test_every_solver_that_takes_a_bonus_serves(solver: str) -> None:
    """What a device got is what it earned, but for a few turns."""
    plan = played(f"selection.solver={solver}", "selection.coverage.weight=1.0", "selection.presample=0", rounds=4)
    for factory in range(3):
        devices = FEDERATION.devices_of(factory)
        earned = 80 * fair_shares(FEDERATION.train.sizes[devices].astype(float), 2)
        assert plan.turns.selected[devices] == pytest.approx(earned, abs=4)
        assert plan.coverage.queue[devices] == pytest.approx(earned - plan.turns.selected[devices], abs=1e-9)


def test_equal_turns_and_fresh_streams() -> None:
    turns = played(*ON, "selection.coverage.share=turns")
    assert jain(turns.turns.selected.astype(float)) > 0.999
    assert turns.coverage.queue.reshape(3, 4).sum(axis=1) == pytest.approx([0, 0, 0], abs=1e-9)
    fresh = played(*ON, "selection.coverage.share=fresh")
    # The rest of an epoch is half of it on average: in the long run that is a share by data.
    assert jain(epochs(fresh)) > 0.97
    # In a stream that flows for all alike, all have the same that is new.
    flowing = played(*ON, "selection.coverage.share=fresh", "streams.mode=fresh")
    assert jain(flowing.turns.selected.astype(float)) > 0.999


def test_what_is_unused_in_a_stream() -> None:
    plan = SelectionPlan(FEDERATION, small_settings())
    sizes = FEDERATION.train.sizes
    assert plan.streams.unused.tolist() == sizes.tolist()
    plan.streams.advance([0])
    assert plan.streams.unused.tolist() == [sizes[0] - 5, *sizes[1:]]
    buffered = SelectionPlan(FEDERATION, small_settings("streams.mode=buffer", "streams.arrival=2.0"))
    buffered.streams.advance([0])
    assert buffered.streams.unused.tolist() == [17] + [20] * 11  # 20 fit in, 5 were used, 2 came


def test_offline_devices_earn_nothing_and_come_back_without_a_burst(tmp_path: Path) -> None:
    away = int(FEDERATION.devices_of(0)[0])
    trace = tmp_path / "trace.csv"
    trace.write_text(f"iteration,device,event\n41,{away},offline\n1041,{away},online\n")
    settings = small_settings(*ON, "selection.pick=2", "training.iterations=40", f"dynamics.trace='{trace}'")
    plan = SelectionPlan(FEDERATION, settings)
    plan.next_round()
    left_with, others = float(plan.coverage.queue[away]), FEDERATION.devices_of(0)[1:]
    for _ in range(25):
        before = plan.coverage.queue[others].sum()
        plan.next_round()
        assert plan.coverage.queue[away] == left_with
        # The others share all turns among themselves.
        assert plan.coverage.queue[others].sum() == pytest.approx(before, abs=1e-9)
    back = plan.next_round()
    turns = np.flatnonzero((back.devices == away).any(axis=(1, 2)))
    share = fair_shares(FEDERATION.train.sizes[FEDERATION.devices_of(0)].astype(float), 2)[0]
    assert len(turns) == pytest.approx(40 * share, abs=4)
    assert len(turns[turns < 8]) <= 7  # a thousand missed iterations would give it every one of them


def test_a_device_that_moves_takes_its_queue_along(tmp_path: Path) -> None:
    moving = int(FEDERATION.devices_of(0)[0])
    trace = tmp_path / "trace.csv"
    trace.write_text(f"iteration,device,event,factory\n5,{moving},move,factory-02\n")
    plan = SelectionPlan(FEDERATION, small_settings(*ON, "selection.pick=2", f"dynamics.trace='{trace}'"))
    plan.next_round()
    taken_along = float(plan.coverage.queue[moving])
    assert taken_along != 0.0
    moved = plan.next_round()
    there = np.append(FEDERATION.devices_of(2), moving)
    share = fair_shares(FEDERATION.train.sizes[there].astype(float), 2)[-1]
    turns = (moved.devices[:, 2] == moving).sum()
    assert plan.coverage.queue[moving] == pytest.approx(taken_along + 4 * share - turns, abs=1e-9)


def test_devices_without_a_whole_batch_do_not_earn() -> None:
    slow = ("streams.mode=buffer", "streams.arrival=0.5", "selection.cap=true")
    plan = played(*ON, *slow, rounds=5)
    queue = plan.coverage.queue.reshape(3, 4)
    # Whoever is there shares the turns that are given; nobody's queue runs away while buffers are empty.
    assert queue.sum(axis=1) == pytest.approx([0, 0, 0], abs=1e-9)
    assert np.abs(queue).max() < 5


@pytest.mark.parametrize(
    ("preset", "overrides", "weight", "presample"),
    [
        (None, [], 0.0, 2),
        (None, ["selection.solver=exact"], 0.0, 2),
        (None, ["selection.solver=auto"], 0.0, 2),  # the name of a solver does not change the objective
        (None, ["selection.solver=exact", "selection.coverage.weight=2.0"], 2.0, 0),
        (None, ["selection.coverage.weight=0.3", "selection.presample=1"], 0.3, 1),
        (None, ["selection.solver=random-by-data"], 0.0, 0),
        (None, ["selection.pick=6"], 0.0, 1),
        ("paper", [], 0.0, 2),
        ("quick", [], 0.0, 1),
        ("coverage", [], 0.3, 0),
        ("coverage", ["selection.coverage.weight=0"], 0.0, 2),
    ],
)
def test_coverage_is_a_switch_of_its_own(
    preset: str | None, overrides: list[str], weight: float, presample: int
) -> None:
    settings = load_settings(preset=preset, overrides=overrides)
    assert (settings.selection.coverage.weight, settings.selection.presample) == (weight, presample)
    assert settings_from(json.loads(json.dumps(settings.model_dump()))) == settings


@pytest.mark.parametrize(("solver", "weight"), [("auto", 0.3), ("gbp-cs", 0.0)])
def test_older_runs_had_coverage_with_solver_auto(solver: str, weight: float) -> None:
    stored = {"selection": {"solver": solver, "coverage": {"weight": None, "share": "data"}, "presample": 0}}
    assert settings_from(stored).selection.coverage.weight == weight


def test_a_round_is_seen_worked_by_hand() -> None:
    labels = np.array([0, 0, 1, 2], dtype=np.uint8)
    target = np.array([0.5, 0.25, 0.25, 0.0])
    samples = np.array([[[[0, 1], [-1, -1]]], [[[2, 3], [-1, -1]]]], dtype=np.int32)  # two iterations, one factory
    window, missing = view_round(count_classes(samples, labels, 4), target)
    assert missing.tolist() == [[2.0], [1.0]]  # the fourth class is in nobody's data
    assert window == pytest.approx([0.0])  # each iteration is far off, the round is not
    for nobody in view_round(count_classes(np.full((2, 1, 2, 2), -1, np.int32), labels, 4), target):
        assert np.isnan(nobody).all()


def test_a_run_reports_how_it_selected() -> None:
    settings = small_settings(*ON)
    with Simulator(settings, FEDERATION) as simulator:
        state = list(simulator.rounds(simulator.begin()))[-1]
    plan = SelectionPlan(FEDERATION, settings)
    plans = [plan.next_round() for _ in range(3)]
    summary = summarise(settings, simulator.task, state)
    assert summary["divergence"] == pytest.approx(np.mean([p.divergence for p in plans]))
    assert summary["divergence_of_round"] == pytest.approx(np.mean([p.window_divergence for p in plans]))
    assert summary["missing_classes"] == pytest.approx(np.mean([p.missing_classes for p in plans]))
    selection = summary["selection"]
    assert selection["coverage"] == 0.3
    found = team_divergence(FEDERATION, settings.selection.pick, settings.training.batch_size)
    assert [selection[f"{name}_divergence"] for name in ("random", "factory", "independent")] == list(found)
    assert found.independent < found.random
    assert selection["jain_of_turns"] == pytest.approx(jain(plan.turns.selected.astype(float)))
    assert selection["epochs_max"] == pytest.approx(epochs(plan).max())
