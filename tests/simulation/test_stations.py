"""All stations in one kernel against plain Python, problem by problem: the same plans, to the bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedgs.compiled import running
from fedgs.data import Federation, build_federation
from fedgs.settings import Settings
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.training.round_plan import RoundPlan
from tests.simulation.small import small_federation, small_set, small_settings

FEDERATION = small_federation(40, 4)
SIZE = ("federation.devices=40", "federation.factories=4", "training.iterations=8")


def assert_same(one: RoundPlan, other: RoundPlan) -> None:
    for name in ("devices", "samples", "sizes", "divergence", "window_divergence", "missing_classes"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert getattr(one, name).dtype == getattr(other, name).dtype
    assert one.state == other.state
    assert one.events == other.events


def both(federation: Federation, settings: Settings, rounds: int = 4) -> tuple[SelectionPlan, SelectionPlan]:
    """Play rounds both ways and hold them against each other."""
    slow, fast = SelectionPlan(federation, settings), SelectionPlan(federation, settings)
    for _ in range(rounds):
        with running(compiled=False):
            plain = slow.next_round()
        with running(compiled=True):
            assert_same(plain, fast.next_round())
    return slow, fast


@pytest.mark.parametrize("solver", ["gbp-cs", "swap", "multistart", "exact", "auto", "random", "random-by-data"])
@pytest.mark.parametrize("options", [(), ("selection.presample=0",), ("streams.drift.kind=sudden",)])
def test_every_solver_of_the_loop(solver: str, options: tuple[str, ...]) -> None:
    both(FEDERATION, small_settings(*SIZE, f"selection.solver={solver}", *options))


@pytest.mark.parametrize("solver", ["gbp-cs", "swap", "multistart", "exact", "auto"])
@pytest.mark.parametrize("share", ["data", "turns", "fresh"])
def test_queues(solver: str, share: str) -> None:
    options = ("selection.coverage.weight=0.3", f"selection.coverage.share={share}", "selection.presample=0")
    slow, _ = both(FEDERATION, small_settings(*SIZE, f"selection.solver={solver}", *options))
    assert np.abs(slow.coverage.queue).max() > 0.1


@hypothesis_settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    devices=st.integers(12, 40),
    pick=st.integers(1, 3),
    presample=st.integers(0, 2),
    batch=st.integers(1, 40),
    weight=st.sampled_from(["0", "0.3", "5.0"]),
    solver=st.sampled_from(["gbp-cs", "exact", "auto"]),
)
def test_any_federation(
    seed: int, devices: int, pick: int, presample: int, batch: int, weight: str, solver: str
) -> None:
    """Batches of one sample and batches longer than an epoch, uneven factories, one place."""
    federation = build_federation(small_set(devices, seed=seed), 3, "balanced", seed=seed)
    settings = small_settings(
        f"federation.devices={devices}", f"seed={seed}", f"selection.pick={pick}", f"selection.solver={solver}",
        f"selection.presample={min(presample, pick - 1)}", f"training.batch_size={batch}", "training.iterations=9",
        f"selection.coverage.weight={weight}",
    )  # fmt: skip
    both(federation, settings, rounds=2)


def test_rounds_can_be_taken_up_by_either_way() -> None:
    settings = small_settings(*SIZE, "selection.solver=auto", "selection.coverage.weight=0.3")
    slow, fast = both(FEDERATION, settings, rounds=2)
    crossed = SelectionPlan(FEDERATION, settings)
    crossed.load_state(slow.state_dict())
    with running(compiled=True):
        found = crossed.next_round()
    with running(compiled=False):
        assert_same(found, slow.next_round())
    again = SelectionPlan(FEDERATION, settings)
    again.load_state(fast.state_dict())
    with running(compiled=False):
        found = again.next_round()
    with running(compiled=True):
        assert_same(found, fast.next_round())


def test_a_weight_so_large_that_rounding_swallows_the_rest() -> None:
    options = ("selection.solver=exact", "selection.coverage.weight=1e17", "selection.presample=0")
    both(FEDERATION, small_settings(*SIZE, *options))


@pytest.mark.parametrize(
    "options",
    [
        ("streams.mode=fresh",),
        ("streams.mode=buffer",),
        ("dynamics.leave=0.1", "dynamics.move=0.1"),
        ("selection.solver=genetic",),
        ("selection.start=zero",),
        ("selection.pick=10", "selection.cap=true"),
        ("selection.presample=3",),
    ],
)
def test_other_streams_solvers_and_stations_without_a_choice(options: tuple[str, ...]) -> None:
    slow, _ = both(FEDERATION, small_settings(*SIZE, *options), rounds=2)
    assert slow.next_round().trained.all()
