"""Policies of other papers, each with numbers worked out by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedgs.errors import ProblemError, SolverError
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.divfl import distances as gradient_distances
from fedgs.selection.divfl import facilities
from fedgs.selection.fed_cbs import first_logs, imbalance
from fedgs.selection.fedcgd import bound
from fedgs.selection.feedback import Feedback
from fedgs.selection.group_fel import variation
from fedgs.selection.hics_fl import clusters, distances, entropies
from fedgs.selection.oort import paced, utilities

EVEN = [0.5, 0.5]


def known(**values: object) -> Feedback:
    """Feedback of three devices with some values of its own."""
    arrays = {key: value if isinstance(value, int) else np.array(value, float) for key, value in values.items()}
    return replace(Feedback.nothing(3), **arrays)  # type: ignore[arg-type]


def chosen(solver: str, feedback: Feedback | None, pick: int = 1, counts: object = None, **options: object) -> list:
    """Return all answers that twenty seeds give."""
    return sorted(frequencies(solver, feedback, pick, counts, 20, **options))


def frequencies(
    solver: str, feedback: Feedback | None, pick: int = 1, counts: object = None, seeds: int = 1000,
    base: object = None, **options: object,
) -> dict:  # fmt: skip
    """Return the answers that some seeds give, each with its share."""
    counts = np.ones((3, 2)) if counts is None else counts
    problem = SelectionProblem(counts, EVEN, pick, feedback=feedback, base=base)  # type: ignore[arg-type]
    found = Counter(tuple(solve(problem, solver, seed, **options).chosen.tolist()) for seed in range(seeds))
    return {answer: number / seeds for answer, number in found.items()}


# Fed-CBS


def test_fed_cbs_imbalance_and_chances() -> None:
    counts = np.array([[4.0, 0.0], [0.0, 4.0], [3.0, 1.0]])
    # ‖(1, 0) − (½, ½)‖² = ½; ‖(¾, ¼) − (½, ½)‖² = ⅛; as inner products: ⟨n, n⟩/(Σn)² − 1/2 = 10/16 − 8/16 = ⅛
    assert imbalance(counts).tolist() == [0.5, 0.5, 0.125]
    assert imbalance(counts[0] + counts).tolist() == pytest.approx([0.5, 0.0, 0.28125])  # (7, 1)/8: 2·(3/8)²
    assert imbalance(np.zeros((1, 2))).tolist() == [1.0]
    # √(1.5 ln 4 / T) = 1.4420268 / √T: T = 0 counts as 1
    found = np.exp(first_logs(imbalance(counts), known(turn=4, selected=[0, 1, 4]), beta=1.0, exploration=10.0))
    assert found == pytest.approx([2 + 14.420268, 2 + 14.420268, 8 + 7.210134])
    found = np.exp(first_logs(imbalance(counts), known(turn=1), 2.0, 10.0))  # ln 1 = 0
    assert found == pytest.approx([4, 4, 64])
    assert np.isfinite(first_logs(np.array([1e-12]), known(turn=2), 100.0, 10.0)).all()


def test_fed_cbs_completes_a_set_to_an_even_one() -> None:
    counts = [[4, 0], [0, 4], [4, 0]]
    assert chosen("fed-cbs", None, 2, counts) == [(0, 1), (1, 2)]  # (0, 2) has no second class
    assert len(chosen("fed-cbs", None, 2, counts, beta=0)) == 3  # uniform
    assert list(frequencies("fed-cbs", None, 1, [[4, 0], [0, 4]], 20, base=[0, 40], beta=50)) == [(0,)]


def test_fed_cbs_draws_by_these_chances() -> None:
    counts = [[4, 0], [4, 0], [4, 0]]
    # QCID ½ for all: 2 + 14.42 for the first two, 2 + 14.42/4 for the one that was selected 16 times
    found = frequencies("fed-cbs", known(turn=4, selected=[0, 1, 16]), 1, counts)
    assert found[2,] == pytest.approx(5.605 / (2 * 16.42 + 5.605), abs=0.04)
    # (4, 4) is always first. Then (8, 4)/12 has QCID 1/18 and (6, 4)/10 has 1/50; β_2 = 2·½: chances as 18 to 50.
    found = frequencies("fed-cbs", None, 2, [[4, 4], [4, 0], [2, 0]], beta=0.5)
    assert found[0, 1] == pytest.approx(18 / 68, abs=0.05)


# Power-of-Choice


def test_power_of_choice_takes_the_largest_known_loss_and_whom_nobody_knows_first() -> None:
    losses = known(loss=[1.0, 3.0, 2.0])
    assert chosen("power-of-choice", losses, candidates=3) == [(1,)]
    assert chosen("power-of-choice", losses, 2, candidates=3) == [(1, 2)]
    assert chosen("power-of-choice", losses, candidates=2) == [(1,), (2,)]  # of {0, 2} the second
    assert chosen("power-of-choice", losses) == [(1,), (2,)]  # twice the pick
    assert chosen("power-of-choice", losses, candidates=1) == [(0,), (1,), (2,)]
    assert chosen("power-of-choice", known(loss=[1.0, 3.0, np.nan]), candidates=3) == [(2,)]
    counts = np.array([[0, 0], [1, 1], [1, 1]])
    assert chosen("power-of-choice", None, 1, counts, candidates=1) == [(1,), (2,)]  # drawn by data


# Oort


def test_oort_utilities() -> None:
    feedback = known(turn=10, rms_loss=[0.5, 1.0, 2.0], loss=[0.5, 1.0, 2.0], last=[1, 2, 5], seconds=[1, 2, 4])
    # n·rms = 2, 4, 8, the last cut off at the 95th percentile, 7.6: scaled 0, 2/5.6, 1.
    # √(0.1 ln 10 / t_i), ln 10 = 2.302585: √0.2302585 = 0.479853, √0.1151293 = 0.339307, √0.0460517 = 0.214597
    plain = [0.479853, 2 / 5.6 + 0.339307, 1.214597]
    found = utilities(np.full(3, 4.0), feedback, preferred=4.0, alpha=2.0)
    assert found == pytest.approx(plain, abs=1e-6)
    found = utilities(np.full(3, 4.0), feedback, preferred=2.0, alpha=2.0)  # the last takes twice that: a quarter
    assert found == pytest.approx([plain[0], plain[1], plain[2] / 4], abs=1e-6)


def test_oort_exploits_and_explores() -> None:
    feedback = known(turn=10, rms_loss=[0.1, 5.0, 1.0], loss=[0.1, 5.0, 1.0], last=[9, 9, 9])
    assert chosen("oort", feedback) == [(1,)]  # nobody is unknown
    assert chosen("oort", feedback, cutoff=0.0) != [(1,)]
    unknown = replace(feedback, loss=np.array([np.nan, 5.0, np.nan]))
    assert chosen("oort", unknown, epsilon=0.0, least_epsilon=0.0) == [(1,)]
    assert chosen("oort", unknown, epsilon=1.0, decay=1.0) == [(0,), (2,)]
    slow = replace(unknown, seconds=np.array([1.0, 1.0, 1e30]))
    assert chosen("oort", slow, epsilon=1.0, decay=1.0) == [(0,)]  # drawn by speed
    assert chosen("oort", unknown, 3) == [(0, 1, 2)]


def test_oort_draws_by_utility_size_and_time() -> None:
    # Scaled utilities of 1, 2 and 3, cut off at 2.9: 0, 1/1.9, 1
    found = frequencies("oort", known(loss=[1, 2, 3], rms_loss=[1, 2, 3]), cutoff=0.0)
    assert found[1,] == pytest.approx((1 / 1.9) / (1 + 1 / 1.9), abs=0.05)
    sizes = [[10, 10], [1, 1], [1, 1]]
    assert chosen("oort", known(loss=[1, 2, 2.5], rms_loss=[1, 2, 2.5]), 1, sizes) == [(0,)]  # 20, 4, 5
    slow = known(loss=[1, 2, 3], rms_loss=[1, 2, 3], seconds=[1, 1, 8])
    assert chosen("oort", slow) == [(1,)]  # T = 1, so the last one's utility is a 64th
    assert chosen("oort", slow, preferred=100.0) == [(2,)]
    flagging = replace(slow, utility=np.array([2.0, 1.0]))
    assert chosen("oort", flagging, window=1, pacer=100.0) == [(2,)]  # the pacer has raised T
    assert chosen("oort", flagging, pacer=100.0) == [(1,)]  # not before the second window


def test_oort_explores_less_and_less_but_never_stops() -> None:
    loss = np.where(np.arange(10) < 5, 1.0, np.nan)
    feedback = replace(Feedback.nothing(10), loss=loss, rms_loss=loss)

    def explored(turn: int, pick: int, **options: object) -> float:
        found = frequencies("oort", replace(feedback, turn=turn), pick, np.ones((10, 2)), 400, **options)
        return sum(share * sum(device >= 5 for device in answer) for answer, share in found.items())

    assert explored(1, 5) == pytest.approx(4.5, abs=0.1)  # ε = 0.9
    assert explored(21, 5) == pytest.approx(5 * 0.9 * 0.98**20, abs=0.1)
    assert explored(500, 5) == pytest.approx(1)  # ε = 0.2, and 1 needs no rounding
    assert explored(500, 1) == pytest.approx(0.2, abs=0.07)  # rounded at random, not to 0
    assert explored(500, 5, least_epsilon=0.0) < 0.1


def test_oort_paces_itself() -> None:
    # Windows of two: 10, then 8 (less), then 12 (more), then 2 (less); of the last round alone nothing is known yet
    assert paced(np.array([5, 5, 4, 4, 6, 6, 1, 1, 9.0]), 30.0, 5.0, 2) == 40
    assert paced(np.array([5, 5, 5, 5.0]), 30.0, 5.0, 2) == 30
    assert paced(np.array([2.0, 1.0]), 98.0, 5.0, 1) == 100


# FedCGD


def test_fedcgd_adds_mismatch_and_sampling_variance() -> None:
    counts = np.array([[4.0, 0.0], [3.0, 1.0], [8.0, 8.0], [0.0, 0.0]])
    # |1 − ½| + |0 − ½| + 1/√4; |¾ − ½|·2 + ½; 0 + ¼
    assert bound(counts, np.array(EVEN), 1.0)[:3].tolist() == [1.5, 1.0, 0.25]
    assert bound(counts, np.array(EVEN), 0.0).tolist() == [1.0, 0.5, 0.0, 2.0]
    assert chosen("fedcgd", None, 2, [[4, 0], [3, 1], [0, 4]]) == [(0, 2)]
    # Large and uneven against small and even: 0.5 + σ/√16 against 0 + σ/√1, equal at σ = ⅔.
    unequal = [[12, 4], [0.5, 0.5], [0, 0]]
    assert chosen("fedcgd", None, 1, unequal, sigma=0.6) == [(1,)]
    assert chosen("fedcgd", None, 1, unequal, sigma=0.7) == [(0,)]
    one_class_or_nothing = SelectionProblem(np.vstack([np.eye(10) * 32, np.zeros((4, 10))]), np.full(10, 0.1), 3)
    assert solve(one_class_or_nothing, "fedcgd").chosen.max() < 10
    assert list(frequencies("fedcgd", None, 1, [[4, 0], [0, 4]], 5, base=[0, 40])) == [(0,)]
    assert len(chosen("fedcgd", None, 1, [[3, 1], [2, 2], [4, 0]])) == 1
    assert len(chosen("fedcgd", None, 2, candidates=1)) == 3  # any two, but never one
    assert chosen("fedcgd", None, 1, [[3, 1], [2, 2], [4, 0]], candidates=2) == [(0,), (1,)]  # of two random ones


# Group-FEL


def test_group_fel_groups_by_the_coefficient_of_variation() -> None:
    # (4, 0): std 2, mean 2; (3, 1): std 1, mean 2
    assert variation(np.array([[4.0, 0.0], [3.0, 1.0], [0.0, 0.0]])).tolist() == [1.0, 0.5, 1.0]
    problem = SelectionProblem([[4, 0], [4, 0], [0, 4], [0, 4]], EVEN, 2)
    found = {tuple(solve(problem, "group-fel", seed).chosen.tolist()) for seed in range(40)}
    assert found == {(0, 2), (0, 3), (1, 2), (1, 3)}
    # Whoever of 0 and 1 begins takes 2, and the other one is left over.
    assert (0, 1) not in chosen("group-fel", None, 2, [[4, 0], [4, 0], [0, 4]])


def test_group_fel_draws_even_groups_more_often() -> None:
    # Groups of one: CoV 1, ½ and 1, so chances are as 1 : 2 : 1
    found = frequencies("group-fel", None, 1, [[4, 0], [3, 1], [0, 4]])
    assert found[1,] == pytest.approx(0.5, abs=0.05)
    found = frequencies("group-fel", None, 1, [[4, 0], [3, 1], [0, 4]], power=2.0)
    assert found[1,] == pytest.approx(4 / 6, abs=0.05)
    assert list(frequencies("group-fel", None, 1, [[4, 0], [0, 4]], 20, base=[0, 4])) == [(0,)]  # (4, 4): CoV 0


# DivFL


def test_divfl_takes_devices_that_stand_for_all() -> None:
    apart = gradient_distances(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    assert apart[0].tolist() == [0, 5, 1]
    assert apart[1, 2] == pytest.approx(18**0.5)
    # G({0}) = 5 + 1, G({1}) = 5 + √18, G({2}) = 1 + √18 = 5.24; then 1 leaves 1 + 0, 0 leaves √18
    random = np.random.default_rng(0)
    assert facilities(apart, 2, 3, random).tolist() == [2, 1]
    gradients = known(gradient=[[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    assert chosen("divfl", gradients, 2, epsilon=1e-9) == [(1, 2)]
    assert chosen("divfl", gradients, 2) == [(1, 2)]  # (3/2) ln 10: all
    assert len(chosen("divfl", gradients, 2, epsilon=0.9)) > 1  # the better of one
    assert chosen("divfl", replace(gradients, gradient=gradients.gradient * [[1], [1], [np.nan]])) == [(2,)]


# HiCS-FL


def test_hics_fl_estimates_entropies_and_clusters() -> None:
    change = np.log([[3.0, 1.0], [1.0, 1.0], [1.0, 3.0]])
    # softmax(log(3, 1)) = (¾, ¼): ¾ ln 4/3 + ¼ ln 4 = 0.562335
    assert entropies(change, 1.0) == pytest.approx([0.562335, np.log(2), 0.562335], abs=1e-6)
    assert entropies(change, 0.5)[0] == pytest.approx(0.9 * np.log(10 / 9) + 0.1 * np.log(10))  # (9, 1)/10
    flat = distances(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]), np.array([0.0, 0.5, 0.0]), 2.0)
    assert flat[0] == pytest.approx([0, np.pi / 2 + 1, np.pi])
    assert clusters(flat, 3).tolist() == [0, 1, 2]
    near = clusters(np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 0.0]]), 2)
    assert near[0] == near[1] != near[2]
    places = np.array([0.0, 1.0, 2.1, 3.3])  # by the nearest member the third would join the first two
    pairs = clusters(np.abs(places[:, None] - places), 2)
    assert pairs[0] == pairs[1] != pairs[2] == pairs[3]
    # Gradients are −change: the even one has the largest entropy, and γ = 1000 leaves nothing to chance.
    told = known(gradient=-change)
    assert chosen("hics-fl", told, gamma=1000.0, temperature=1.0, entropy_weight=0.0) != [(1,)]  # one cluster for all
    assert (0, 2) not in chosen("hics-fl", told, 2, gamma=1000.0, temperature=1.0)
    assert chosen("hics-fl", replace(told, gradient=told.gradient * [[1], [np.nan], [1]])) == [(1,)]


def test_hics_fl_prefers_even_devices_until_the_end() -> None:
    # Devices 0 and 2 have raised all classes but one, device 1 a single class: its labels are the least even.
    gradient = -np.array([[-2.0, 0.1, 0.0], [2.0, 0.0, 0.0], [-2.1, 0.0, 0.1]])
    told = known(gradient=gradient)
    assert chosen("hics-fl", told, 2, gamma=1000.0) == [(0, 2)]
    assert len(chosen("hics-fl", replace(told, turn=5), 2, gamma=1000.0, turns=5)) == 3  # γ has fallen to 0
    assert len(chosen("hics-fl", replace(told, turn=5, turns=5), 2, gamma=1000.0)) == 3  # over the rounds of the run
    assert chosen("hics-fl", replace(told, turn=4, turns=5), 2, gamma=1000.0) == [(0, 2)]
    # Now device 1 is the even one and comes first, then one of the others in proportion to its data.
    uneven = replace(told, gradient=-gradient)
    assert chosen("hics-fl", uneven, 2, [[50, 50], [1, 1], [0, 0]], gamma=1000.0) == [(0, 1)]


# All


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ProblemError, match="feedback is of 3 devices; there are 2"):
        SelectionProblem(np.ones((2, 2)), EVEN, 1, feedback=Feedback.nothing(3))
    for solver, options, words in (
        ("power-of-choice", {"candidates": -1}, "candidates=-1"),
        ("oort", {"epsilon": 2.0}, "from 0 to 1"),
        ("fed-cbs", {"betta": 1}, "did you mean 'beta'"),
    ):
        with pytest.raises(SolverError, match=words):
            solve(SelectionProblem(np.ones((3, 2)), EVEN, 1), solver, **options)
