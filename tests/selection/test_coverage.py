import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.errors import ProblemError
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.coverage import fair_shares, largest_gap, queue_bound, typical_batch, wait_bound
from fedgs.selection.sampling import draw_by_weight


@pytest.mark.parametrize(
    ("weights", "places", "shares"),
    [
        ([1, 1, 1, 1], 2, [0.5, 0.5, 0.5, 0.5]),
        ([6, 3, 1], 1, [0.6, 0.3, 0.1]),
        ([6, 3, 1], 2, [1.0, 0.75, 0.25]),  # 1.2 is cut off; the place that is left is shared 3 : 1
        ([100, 10, 1, 1], 3, [1.0, 1.0, 0.5, 0.5]),  # the cut of the first cuts off the second
        ([5, 0, 0], 2, [1.0, 0.5, 0.5]),  # without weight there is nothing to go by
        ([5, 0], 1, [1.0, 0.0]),
        ([3, 2], 2, [1.0, 1.0]),
        ([3, 2], 5, [1.0, 1.0]),
    ],
)
def test_shares_worked_by_hand(weights: list[float], places: int, shares: list[float]) -> None:
    assert fair_shares(np.array(weights, dtype=float), places) == pytest.approx(shares)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.integers(0, 35))
def test_shares_fill_the_places_and_keep_the_proportions(weights: list[int], places: int) -> None:
    given_weights = np.array(weights, dtype=float)
    shares = fair_shares(given_weights, places)
    assert shares.sum() == pytest.approx(min(places, len(weights)), abs=1e-9)
    assert shares.min() >= 0
    assert shares.max() <= 1 + 1e-12
    inside = (shares < 1) & (given_weights > 0)
    if inside.any():
        scales = shares[inside] / given_weights[inside]
        assert scales == pytest.approx(np.full(inside.sum(), scales[0]), rel=1e-9)
        # Whoever is cut off would have had at least a whole turn.
        assert (given_weights[shares >= 1] * scales[0] >= 1 - 1e-9).all()


def test_the_unit_is_a_typical_batch() -> None:
    counts = np.array([[2.0, 0.0], [0.0, 4.0], [9.0, 9.0]])
    half = np.array([0.5, 0.5])
    # (2,0) − (1,1) has the square 2, (0,4) − (2,2) the square 8.
    assert typical_batch(counts, half, np.array([0, 1])) == pytest.approx(5.0)
    assert typical_batch(counts, half, np.array([0, 1, 2])) == pytest.approx(10 / 3)
    assert typical_batch(counts, half, np.array([2])) == 1.0  # all batches match
    assert typical_batch(counts, half, np.array([], dtype=np.int64)) == 1.0


def test_the_unit_makes_the_choice_independent_of_the_batch_size() -> None:
    """Ten times the samples everywhere: the same devices are chosen with the same V."""
    random = np.random.default_rng(3)
    counts = random.multinomial(16, random.dirichlet(np.ones(5)), size=12).astype(float)
    target, queue = np.full(5, 0.2), random.normal(0, 2, 12)
    everybody = np.arange(12)
    chosen = [
        solve(
            SelectionProblem(k * counts, target, 4, bonus=0.3 * typical_batch(k * counts, target, everybody) * queue)
        ).chosen.tolist()
        for k in (1, 10)
    ]
    assert chosen[0] == chosen[1]


def test_bounds_worked_by_hand() -> None:
    # Two devices, one place: Q = (1 − 1/2)(D + 2·1).
    assert queue_bound(2, 1, 3.0) == pytest.approx(2.5)
    # Three devices, two places: (2/3)(D + 2) + (1/3)(D + 2).
    assert queue_bound(3, 2, 5.0) == pytest.approx(7.0)
    assert wait_bound(2, 1, 3.0, share=0.25) == pytest.approx(21.0)
    assert largest_gap(10, 8, 0.5) == pytest.approx(2 * 10 * 5 / 0.5)
    assert queue_bound(1, 1, 5.0) == 0.0  # alone: always taken


class Station:
    """A base station that plays coverage by its definition, with streams that hypothesis makes as odd as it likes."""

    def __init__(self, seed: int, devices: int, pick: int, weight: float, kind: str) -> None:
        self.random = np.random.default_rng(seed)
        self.devices, self.pick, self.weight, self.kind = devices, pick, weight, kind
        self.classes = int(self.random.integers(2, 6))
        self.target = self.random.dirichlet(np.ones(self.classes))
        self.own = self.random.dirichlet(np.full(self.classes, 0.2), devices)
        self.shares = fair_shares(self.random.integers(1, 100, devices).astype(float), pick)
        self.queue = np.zeros(devices)
        self.gap = 0.0
        """The largest seen between a device left out and one taken."""

    def counts(self) -> np.ndarray:
        if self.kind == "one-class":
            kinds = self.random.integers(self.classes, size=self.devices)
            return 8.0 * np.eye(self.classes)[kinds]
        if self.kind == "one-odd":  # everybody matches but the first: the unit is small beside its batch
            counts = np.tile(100.0 * self.target, (self.devices, 1))
            counts[0] = 100.0 * np.eye(self.classes)[0]
            return counts
        return np.array([self.random.multinomial(8, own) for own in self.own], dtype=float)

    def play(self, solver: str) -> np.ndarray:
        counts = self.counts()
        unit = typical_batch(counts, self.target, np.arange(self.devices))
        problem = SelectionProblem(counts, self.target, self.pick, bonus=self.weight * unit * self.queue)
        chosen = solve(problem, solver, int(self.random.integers(2**31))).chosen
        out = np.setdiff1d(np.arange(self.devices), chosen)
        here = problem.distance(chosen) ** 2
        for j in chosen:
            for i in out:
                swapped = np.append(chosen[chosen != j], i)
                behind = self.queue[i] - self.queue[j]
                # The inequality all bounds rest on: no swap improves f − V·u·q.
                worth = (problem.distance(swapped) ** 2 - here) / (self.weight * unit)
                assert behind <= worth + 1e-6 * (1 + abs(worth))
                self.gap = max(self.gap, behind)
        taken = np.zeros(self.devices)
        taken[chosen] = 1.0
        self.queue = self.queue + self.shares - taken
        return chosen


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    devices=st.integers(2, 9),
    places=st.integers(1, 8),
    weight=st.sampled_from([0.02, 0.3, 1.0, 10.0]),
    kind=st.sampled_from(["own", "one-class", "one-odd"]),
    solver=st.sampled_from(["exact", "swap", "multistart", "brute"]),
)
def test_queues_and_waits_stay_within_their_bounds(
    seed: int, devices: int, places: int, weight: float, kind: str, solver: str
) -> None:
    station = Station(seed, devices, min(places, devices - 1), weight, kind)
    rounds, last, longest, lowest, highest = 120, np.zeros(devices), np.zeros(devices), 0.0, 0.0
    turns = np.zeros(devices)
    for iteration in range(1, rounds + 1):
        chosen = station.play(solver)
        longest[chosen] = np.maximum(longest[chosen], iteration - last[chosen])
        last[chosen] = iteration
        turns[chosen] += 1
        lowest, highest = min(lowest, station.queue.min()), max(highest, station.queue.max())
    longest = np.maximum(longest, rounds - last)
    assert station.queue.sum() == pytest.approx(0.0, abs=1e-9)
    assert station.gap <= largest_gap(devices, station.pick, weight)
    # With the gap that was seen the bounds are the sharpest that the argument gives.
    for gap in (station.gap, largest_gap(devices, station.pick, weight)):
        assert max(highest, -lowest) <= queue_bound(devices, station.pick, gap) + 1e-9
        waits = [wait_bound(devices, station.pick, gap, share) for share in station.shares]
        assert (longest <= np.array(waits) + 1e-9).all()
    # Turns are what was earned, up to the bound of the queues.
    bound = queue_bound(devices, station.pick, station.gap)
    assert (np.abs(turns - rounds * station.shares) <= bound + 1e-9).all()


def test_draws_by_data_have_the_chances_they_should() -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0, 50.0])
    draws = [draw_by_weight(weights, 2, np.uint64(1000 * number)) for number in range(4000)]
    assert all(len(set(chosen.tolist())) == 2 for chosen in draws)
    often = np.bincount(np.concatenate(draws), minlength=5) / len(draws)
    assert often == pytest.approx([0.1, 0.2, 0.3, 0.4, 1.0], abs=0.03)
    together = sum(0 in chosen and 1 in chosen for chosen in draws)
    assert together == 0  # the largest is always in, and takes one of the two places


def test_random_by_data_goes_by_the_weights_of_the_problem() -> None:
    problem = SelectionProblem(np.ones((4, 2)), [0.5, 0.5], 1, weights=[0, 0, 7, 0])
    assert {int(solve(problem, "random-by-data", seed).chosen[0]) for seed in range(20)} == {2}
    plain = SelectionProblem([[1, 0], [0, 9], [3, 0]], [0.5, 0.5], 1)
    assert plain.weights.tolist() == [1, 9, 3]
    with pytest.raises(ProblemError, match=r"weights\[1\] is negative"):
        SelectionProblem([[1, 0], [0, 9]], [0.5, 0.5], 1, weights=[1, -1])
    with pytest.raises(ProblemError, match="weights has 1 entries; one per device would be 2"):
        SelectionProblem([[1, 0], [0, 9]], [0.5, 0.5], 1, weights=[1])
