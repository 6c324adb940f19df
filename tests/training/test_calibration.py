"""A station's own class mix is followed as it is, and the shift takes it out of the loss."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedgs.simulation.simulator import Simulator
from fedgs.tasks.cnn import build_model
from fedgs.training.calibration import FLOOR, ClassMix
from tests.simulation.small import small_federation, small_settings

TARGET = np.array([0.5, 0.25, 0.25])


def test_the_mix_worked_by_hand() -> None:
    mix = ClassMix(1, TARGET, memory=2, strength=1.0)
    shifts = mix.follow(np.array([[[4, 0, 0]], [[0, 2, 2]], [[0, 4, 0]]]))
    # (1, 0, 0); then the mean of two, (½, ¼, ¼); then half-way from there to (0, 1, 0), for the memory is two.
    ratios = np.array([[2, 0, 0], [1, 1, 1], [0.5, 2.5, 0.5]])
    np.testing.assert_allclose(shifts[:, 0], np.log(ratios + FLOOR), rtol=1e-6)
    np.testing.assert_allclose(mix.shares, [[0.25, 0.625, 0.125]])


def test_who_has_nobody_stays_where_it_was() -> None:
    mix = ClassMix(2, TARGET, memory=5, strength=1.0)
    first = mix.step(np.array([[2, 1, 1], [0, 0, 0]]))
    assert not first[1].any()
    np.testing.assert_allclose(mix.step(np.array([[0, 0, 0], [0, 8, 0]]))[0], first[0])
    assert mix.steps.tolist() == [1, 1]


def test_a_class_nobody_has_is_left_alone_and_strength_scales() -> None:
    target = np.array([0.5, 0.5, 0.0])
    whole, half = ClassMix(1, target, 5, 1.0), ClassMix(1, target, 5, 0.5)
    counts = np.array([[3, 1, 0]])
    shifts = whole.step(counts)
    assert shifts[0, 2] == 0.0
    np.testing.assert_allclose(half.step(counts), shifts / 2)


@given(st.lists(st.integers(1, 50), min_size=3, max_size=3), st.integers(0, 2**31))
def test_whatever_mix_a_station_sees_the_same_logits_are_best(counts: list[int], seed: int) -> None:
    """With the shift, the gradient of the loss under the station's mix is 0 at the logits of P_real."""
    likelihood = np.random.default_rng(seed).dirichlet(np.ones(5), 3)  # of five images in each of the three classes
    seen = np.array(counts) / sum(counts)
    shift = ClassMix(1, TARGET, 5, 1.0).step(np.array([counts]))[0]
    best = torch.tensor(np.log(TARGET[:, None] * likelihood + 1e-300).T, requires_grad=True)  # (images, classes)
    joint = torch.tensor((seen[:, None] * likelihood).T)
    losses = torch.stack(
        [cross_entropy(best + torch.from_numpy(shift), torch.full((5,), c), reduction="none") for c in range(3)], dim=1
    )
    (gradient,) = torch.autograd.grad((joint * losses).sum(), best)
    assert float(gradient.abs().max()) < FLOOR  # which is all that the floor leaves


def test_training_with_it_differs_and_the_test_is_of_plain_logits() -> None:
    federation = small_federation()
    ends = []
    for strength in (0, 1):
        with Simulator(small_settings(f"training.calibration={strength}"), federation, torch.device("cpu")) as run:
            states = list(run.rounds(run.begin()))
            ends.append(states[-1])
            model = build_model("compact", 4, (8, 8))
            run.layout.load(model, states[-1].weights)
            samples = np.asarray(federation.test.flat, dtype=np.int64)
            with torch.no_grad():
                logits = model(torch.from_numpy(federation.inputs[samples]).float()[:, None] / 255)
            labels = torch.from_numpy(federation.labels[samples].astype(np.int64))
            expected = float(cross_entropy(logits, labels))
            assert states[-1].metrics[-1]["loss"] == pytest.approx(expected, rel=1e-4)
    assert not torch.allclose(ends[0].weights, ends[1].weights)
