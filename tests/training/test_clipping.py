"""No step is longer than the rate times c; what is shorter is left as it is."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgs.simulation.simulator import Simulator
from fedgs.training.step import clip_factor, clip_factors, clip_scale
from tests.simulation.small import small_federation, small_settings


def test_worked_by_hand() -> None:
    """(3, 4) has the length 5 and (0, 0, 12) with it 13; nothing stays nothing."""
    one = [torch.tensor([3.0, 4.0]), torch.tensor([[0.0], [0.0], [12.0]])]
    assert float(clip_factor(one, 6.5)) == pytest.approx(0.5)
    assert float(clip_factor(one, 14.0)) == 1.0
    assert float(clip_factor([torch.zeros(3)], 1.0)) == 1.0
    both = [torch.stack([gradient, 10 * gradient]) for gradient in one]
    assert clip_factors(both, 26.0).tolist() == pytest.approx([1.0, 0.2])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_never_longer_always_in_the_same_direction(numbers: list[float], most: float) -> None:
    gradient = torch.tensor(numbers, dtype=torch.float64)
    factor = float(clip_factor([gradient[:4], gradient[4:]], most))
    assert 0 < factor <= 1
    length = float(gradient.norm())
    assert factor * length == pytest.approx(min(length, most), rel=1e-6)


def test_what_is_no_number_stays_none_and_what_is_too_long_becomes_none() -> None:
    for norm in (torch.tensor(torch.inf), torch.tensor(torch.nan)):
        assert clip_scale(norm, 1.0).isnan()
    assert clip_factor([torch.full((1000,), 1e20)], 1.0).isnan()


def test_a_station_moves_by_no_more_than_rate_times_c() -> None:
    """One iteration a round and one factory: what the global model moves by is what the station does."""
    options = ("federation.factories=1", "training.iterations=1", "training.rounds=4", "training.learning_rate=0.5")
    lengths = {}
    for clip in ("", "training.clip=0.1"):
        settings = small_settings(*options, *([clip] if clip else []))
        with Simulator(settings, small_federation(factories=1)) as simulator:
            weights = [state.weights for state in simulator.rounds(simulator.begin())]
        lengths[clip] = [float((after - before).norm()) for before, after in pairwise(weights)]
    assert min(lengths[""]) > 0.05
    np.testing.assert_allclose(lengths["training.clip=0.1"], 0.05, rtol=1e-4)


def test_a_device_of_a_baseline_moves_by_no_more_than_that_a_step() -> None:
    """Everybody makes a few steps of rate 0.5; the mean of what they moved by is no longer than the longest."""
    options = ("algorithm.name=fedavg", "training.learning_rate=0.5", "training.rounds=1", "algorithm.local_epochs=1")
    moved = {}
    for clip in ("", "training.clip=0.01"):
        with Simulator(small_settings(*options, *([clip] if clip else [])), small_federation()) as simulator:
            first = simulator.begin()
            (last,) = simulator.rounds(first)
            steps = len(simulator.plan.next_round().sizes)
        moved[clip] = float((last.weights - first.weights).norm())
    assert moved["training.clip=0.01"] <= 0.5 * 0.01 * steps * 1.0001 < moved[""]
