"""Does FedGS pay: hand-worked rounds, the best T against trying them all, and answers that cannot contradict."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgs.errors import NetworkError
from fedgs.network import KnownRounds, Park, ParkNetwork, fedavg_round, fedgs_round, make_plan
from fedgs.network.planner import best_schedules, fedavg_schedule, fedgs_schedule, worth
from tests.network.parks import HAND, hand_network, networks, parks

PAPER = KnownRounds()


def test_the_paper_by_hand() -> None:
    """q = 478/147, √L = √10: a = √10·(q − 1)/((q·√10 − 1)·49) = 0.0156544, of a super node 0.0049504."""
    assert PAPER.drift == pytest.approx(0.0156544, rel=1e-5)
    assert worth(50, PAPER.drift) == pytest.approx(11.6467, rel=1e-5)
    assert worth(50, PAPER.drift / math.sqrt(10)) == pytest.approx(37.8716, rel=1e-5)
    # With the T and L of the known rounds these come out again: 120 s and 200 s a round (T-TIME-1).
    fedgs = fedgs_schedule(HAND, hand_network(10.0), PAPER, iterations=50)
    fedavg = fedavg_schedule(HAND, hand_network(10.0), PAPER, iterations=50)
    assert fedgs is not None
    assert fedavg is not None
    assert (fedgs.rounds, fedavg.rounds) == (pytest.approx(147), pytest.approx(478))
    assert (fedgs.seconds, fedavg.seconds) == (pytest.approx(147 * 120), pytest.approx(478 * 200))
    # 20 + 2T seconds are worth T·(1 − 0.00495·(T − 1)) iterations: best at T = 36; 200 s alone, at T = 32.
    made = make_plan(HAND, hand_network(10.0))
    assert (made.fedgs.iterations, made.fedavg.iterations) == (36, 32)
    assert made.pays


@pytest.mark.parametrize(
    ("known", "drift"),
    [
        (KnownRounds(100, 100, 50, 10), 0.0),  # FedAvg needs no more: drift is not seen
        (KnownRounds(100, 50, 50, 10), 0.0),
        (KnownRounds(100, 300, 1, 10), 0.0),  # one iteration cannot drift
        (KnownRounds(100, 300, 50, 1), 0.0),  # a super node of one device is that device
        (KnownRounds(100, 300, 3, 4), 2 * 2 / (5 * 2)),
    ],
)
def test_drift_follows_from_two_numbers_of_rounds(known: KnownRounds, drift: float) -> None:
    assert known.drift == pytest.approx(drift)
    made = make_plan(HAND, hand_network(10.0), known)
    if not drift:  # nothing is known of other T
        assert made.fedgs.iterations == made.fedavg.iterations == HAND.iterations


@given(parks(), networks(), st.integers(1, 60), st.floats(0.3, 20))
def test_the_best_t_has_the_greatest_advantage(park: Park, network: ParkNetwork, most: int, more: float) -> None:
    known = KnownRounds(100, 100 * more, 20, 5)
    if not known.drift:
        return
    for best, schedule, time in zip(
        best_schedules(park, network, known, most), (fedgs_schedule, fedavg_schedule), (fedgs_round, fedavg_round),
        strict=True,
    ):  # fmt: skip
        tried = [schedule(park, network, known, iterations=length) for length in range(1, most + 1)]
        assert best.seconds == pytest.approx(min(one.seconds for one in tried if one is not None))
        assert best.round == time(park.but(iterations=best.iterations), network)


@given(parks(), networks())
def test_an_answer_does_not_contradict_itself(park: Park, network: ParkNetwork) -> None:
    made = make_plan(park, network)
    assert made.fedgs.seconds > 0
    assert made.as_set is None or made.as_set.seconds >= made.fedgs.seconds * (1 - 1e-9)
    if math.isclose(made.times_as_fast, 1, rel_tol=1e-3):
        return
    assert (made.times_as_fast > 1) == (network.ratio > made.break_even)
    assert made.as_dict()["pays"] == made.pays == (made.times_as_fast >= 1.1)


def test_a_factory_with_one_device_gains_nothing_and_a_round_too_long_learns_nothing() -> None:
    alone = make_plan(HAND.but(pick=1), hand_network(1e3))
    assert not alone.pays
    assert alone.as_dict()["break_even_ratio"] is None
    assert make_plan(HAND.but(iterations=2_000_000_000), hand_network(10.0)).as_set is None


def test_what_cannot_be_is_refused() -> None:
    for wrong, words in (
        (lambda: KnownRounds(0, 1), "fedgs=0"),
        (lambda: KnownRounds(1, 1, 0), "iterations=0"),
        (lambda: make_plan(HAND, hand_network(1.0), most_iterations=0), "most=0"),
    ):
        with pytest.raises(NetworkError, match=words):
            wrong()
