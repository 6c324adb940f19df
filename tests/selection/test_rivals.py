"""Policies of other papers, each with numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedgs.errors import ProblemError, SolverError
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.divfl import distances as gradient_distances
from fedgs.selection.divfl import facilities
from fedgs.selection.fed_cbs import first_weights, imbalance
from fedgs.selection.fedcgd import bound
from fedgs.selection.feedback import Feedback
from fedgs.selection.group_fel import variation
from fedgs.selection.hics_fl import clusters, distances, entropies
from fedgs.selection.oort import utilities

EVEN = [0.5, 0.5]


def known(**values: object) -> Feedback:
    """Feedback of three devices with some values of its own."""
    arrays = {key: value if key == "turn" else np.array(value, float) for key, value in values.items()}
    return replace(Feedback.nothing(3), **arrays)  # type: ignore[arg-type]


def chosen(solver: str, feedback: Feedback | None, pick: int = 1, counts: object = None, **options: object) -> list:
    """Return all answers that twenty seeds give."""
    problem = SelectionProblem(np.ones((3, 2)) if counts is None else counts, EVEN, pick, feedback=feedback)
    return sorted({tuple(solve(problem, solver, seed, **options).chosen.tolist()) for seed in range(20)})


# Fed-CBS


def test_fed_cbs_imbalance_and_chances() -> None:
    counts = np.array([[4.0, 0.0], [0.0, 4.0], [3.0, 1.0]])
    # ‖(1, 0) − (½, ½)‖² = ½; ‖(¾, ¼) − (½, ½)‖² = ⅛; as inner products: ⟨n, n⟩/(Σn)² − 1/2 = 10/16 − 8/16 = ⅛
    assert imbalance(counts).tolist() == [0.5, 0.5, 0.125]
    assert imbalance(counts[0] + counts).tolist() == pytest.approx([0.5, 0.0, 0.28125])  # (7, 1)/8: 2·(3/8)²
    assert imbalance(np.zeros((1, 2))).tolist() == [1.0]
    # √(1.5 ln 4 / T) = 1.4420268 / √T: T = 0 counts as 1
    found = first_weights(imbalance(counts), known(turn=4, selected=[0, 1, 4]), beta=1.0, exploration=10.0)
    assert found == pytest.approx([2 + 14.420268, 2 + 14.420268, 8 + 7.210134])
    assert first_weights(imbalance(counts), known(turn=1), 2.0, 10.0).tolist() == [4, 4, 64]  # ln 1 = 0


def test_fed_cbs_completes_a_set_to_an_even_one() -> None:
    counts = [[4, 0], [0, 4], [4, 0]]
    assert chosen("fed-cbs", None, 2, counts) == [(0, 1), (1, 2)]  # (0, 2) has no second class
    assert len(chosen("fed-cbs", None, 2, counts, beta=0)) == 3  # uniform


# Power-of-Choice


def test_power_of_choice_takes_the_largest_known_loss_and_whom_nobody_knows_first() -> None:
    losses = known(loss=[1.0, 3.0, 2.0])
    assert chosen("power-of-choice", losses, candidates=3) == [(1,)]
    assert chosen("power-of-choice", losses, 2, candidates=3) == [(1, 2)]
    assert chosen("power-of-choice", losses, candidates=2) == [(1,), (2,)]  # of {0, 2} the second
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


# FedCGD


def test_fedcgd_adds_mismatch_and_sampling_variance() -> None:
    counts = np.array([[4.0, 0.0], [3.0, 1.0], [8.0, 8.0], [0.0, 0.0]])
    # |1 − ½| + |0 − ½| + 1/√4; |¾ − ½|·2 + ½; 0 + ¼
    assert bound(counts, np.array(EVEN), 1.0)[:3].tolist() == [1.5, 1.0, 0.25]
    assert bound(counts, np.array(EVEN), 0.0).tolist() == [1.0, 0.5, 0.0, 1.0]
    assert chosen("fedcgd", None, 2, [[4, 0], [3, 1], [0, 4]]) == [(0, 2)]
    # Large and uneven against small and even: 0.5 + σ/√16 against 0 + σ/√1, equal at σ = ⅔.
    unequal = [[12, 4], [0.5, 0.5], [0, 0]]
    assert chosen("fedcgd", None, 1, unequal, sigma=0.6) == [(1,)]
    assert chosen("fedcgd", None, 1, unequal, sigma=0.7) == [(0,)]


# Group-FEL


def test_group_fel_groups_by_the_coefficient_of_variation() -> None:
    # (4, 0): std 2, mean 2; (3, 1): std 1, mean 2
    assert variation(np.array([[4.0, 0.0], [3.0, 1.0], [0.0, 0.0]])).tolist() == [1.0, 0.5, 1.0]
    problem = SelectionProblem([[4, 0], [4, 0], [0, 4], [0, 4]], EVEN, 2)
    found = {tuple(solve(problem, "group-fel", seed).chosen.tolist()) for seed in range(40)}
    assert found == {(0, 2), (0, 3), (1, 2), (1, 3)}
    # Groups are {0, 2} or {1, 2}, both of CoV 0, when 2 is there; else what is left.
    assert (0, 1) not in chosen("group-fel", None, 2, [[4, 0], [4, 0], [0, 4]])


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
    # Gradients are −change: the even one has the largest entropy, and γ = 1000 leaves nothing to chance.
    told = known(gradient=-change)
    assert chosen("hics-fl", told, gamma=1000.0, temperature=1.0, entropy_weight=0.0) != [(1,)]  # one cluster for all
    assert (0, 2) not in chosen("hics-fl", told, 2, gamma=1000.0, temperature=1.0)
    assert len(chosen("hics-fl", replace(told, turn=5), turns=5)) == 3  # γ has fallen to 0
    assert chosen("hics-fl", replace(told, gradient=told.gradient * [[1], [np.nan], [1]])) == [(1,)]


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
