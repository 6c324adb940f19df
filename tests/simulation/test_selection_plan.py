import json
import threading
from contextlib import closing
from time import process_time

import numpy as np
import pytest

from fedgs.compiled import running
from fedgs.errors import DataError
from fedgs.selection import SelectionProblem, solve, solve_batch
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.simulator import planned_ahead
from fedgs.training.round_plan import RoundPlan
from reproduction.experiments.samplers import draw_instances
from tests.simulation.small import small_federation, small_settings

FEDERATION = small_federation()


def same(one: RoundPlan, other: RoundPlan) -> bool:
    arrays = ("devices", "samples", "sizes", "divergence")
    return all(np.array_equal(getattr(one, a), getattr(other, a), equal_nan=a == "divergence") for a in arrays)


@pytest.mark.parametrize("solver", ["gbp-cs", "random", "exact"])
def test_a_plan_selects_what_the_paper_says(solver: str) -> None:
    settings = small_settings(f"selection.solver={solver}")
    plan = SelectionPlan(FEDERATION, settings).next_round()
    assert plan.devices.shape == (4, 3, 3)
    seen: set[int] = set()
    target = FEDERATION.p_real()
    for row in range(4):
        for factory in range(3):
            devices = plan.devices[row, factory]
            assert len(set(devices.tolist())) == 3
            assert set(devices.tolist()) <= set(FEDERATION.devices_of(factory).tolist())
            for place, device in enumerate(devices):
                assert set(plan.samples[row, factory, place].tolist()) <= set(FEDERATION.train_indices(int(device)))
            samples = plan.union(row, factory)
            counts = np.bincount(FEDERATION.labels[samples], minlength=4)
            assert plan.divergence[row, factory] == pytest.approx(np.linalg.norm(counts / 15 - target))
            seen |= set(devices.tolist())
    assert plan.trained.all()
    assert len(seen) > 9


def test_the_first_iteration_is_the_instance_that_benchmarks_use() -> None:
    settings = small_settings("selection.solver=exact")
    plan = SelectionPlan(FEDERATION, settings).next_round()
    for factory, problem in enumerate(draw_instances(FEDERATION, settings, 3)):
        assert plan.divergence[0, factory] == pytest.approx(solve(problem, "exact").divergence)


def test_batches_wait_until_they_are_used() -> None:
    """Sticky streams: what a device trains on next does not depend on how long it waited."""
    plan = SelectionPlan(FEDERATION, small_settings("training.iterations=12")).next_round()
    for device in range(len(FEDERATION)):
        mine = plan.samples[plan.devices == device].ravel()
        size = FEDERATION.train.sizes[device]
        assert len(np.unique(mine[:size])) == min(size, len(mine))


@pytest.mark.parametrize("depth", [1, 4])
def test_running_ahead_changes_nothing(depth: int) -> None:
    settings = small_settings()
    plain = SelectionPlan(FEDERATION, settings)
    expected = [plain.next_round() for _ in range(5)]
    found = [plan for plan, _ in planned_ahead(SelectionPlan(FEDERATION, settings).next_round, 5, depth)]
    assert [plan.round for plan in found] == [1, 2, 3, 4, 5]
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert found[1].state == expected[1].state


def test_leaving_early_ends_the_thread_and_errors_come_through() -> None:
    def broken() -> RoundPlan:
        raise DataError("nothing to select")

    with closing(planned_ahead(SelectionPlan(FEDERATION, small_settings()).next_round, 1000, 2)) as ahead:
        next(ahead)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fedgs-plan")]
    with pytest.raises(DataError, match="nothing"):
        next(planned_ahead(broken, 2, 2))


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("selection.solver=auto", "selection.presample=0"),
        ("selection.solver=random-by-data",),
        ("selection.coverage.weight=0.3", "selection.coverage.share=fresh", "dynamics.leave=0.1", "dynamics.move=0.1"),
        ("streams.mode=buffer",),
        ("training.calibration=1",),
    ],
)
def test_a_plan_goes_on_from_its_state(options: tuple[str, ...]) -> None:
    settings = small_settings(*options)
    plan = SelectionPlan(FEDERATION, settings)
    first = plan.next_round()
    expected = plan.next_round()
    other = SelectionPlan(FEDERATION, settings)
    other.load_state(json.loads(json.dumps(first.state)))
    found = other.next_round()
    assert same(found, expected)
    assert found.state == expected.state
    assert (found.shifts is not None) == (settings.training.calibration > 0)
    if found.shifts is not None:
        assert np.array_equal(found.shifts, expected.shifts)
        assert np.abs(found.shifts).max() > 0.1


def test_counters() -> None:
    plan = SelectionPlan(FEDERATION, small_settings())
    rounds = [plan.next_round() for _ in range(3)]
    devices = np.concatenate([r.devices for r in rounds])
    assert plan.turns.selected.tolist() == [int((devices == k).sum()) for k in range(12)]
    for device in range(12):
        turns = np.flatnonzero((devices == device).any(axis=(1, 2))) + 1
        waits = np.diff(np.concatenate([[0], turns]))
        assert plan.turns.longest_wait[device] == (waits.max() if len(waits) else 0)


def test_more_picks_than_devices_need_a_cap() -> None:
    with pytest.raises(DataError, match="smallest factory"):
        SelectionPlan(small_federation(12, 5), small_settings("federation.factories=4"))
    capped = SelectionPlan(FEDERATION, small_settings("selection.pick=9", "selection.cap=true")).next_round()
    assert (capped.devices[0, 0] >= 0).sum() == 4
    assert (capped.sizes.sum(axis=2) == 20).all()
    assert (capped.sizes < capped.samples.shape[-1]).any()


@pytest.mark.parametrize("solver", ["gbp-cs", "auto", "genetic"])
def test_the_seconds_of_a_round_are_those_of_its_selections(solver: str) -> None:
    """Several threads may select side by side, so it is the time of the whole process that bounds them."""
    plan = SelectionPlan(FEDERATION, small_settings(f"selection.solver={solver}"))
    before = process_time()
    with running(compiled=False):
        seconds = plan.next_round().seconds
    assert 0 < seconds < process_time() - before


def test_a_batch_is_as_long_as_its_problems_one_by_one() -> None:
    """Threads work side by side, and compiling is not counted."""
    problems = [SelectionProblem(np.eye(9), np.full(9, 1 / 9), 3)] * 40
    began = process_time()
    answers = solve_batch(problems, "exact", threads=2)
    assert 0 < sum(answer.seconds for answer in answers) < process_time() - began
