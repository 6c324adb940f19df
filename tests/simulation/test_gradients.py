"""δ and β of a model: against gradients by class of the plain module, and where they are known beforehand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedgs.network import divergence_by_class
from fedgs.simulation.gradients import Gradients, measure
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.tasks.cnn import build_model
from fedgs.training.layout import Layout
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import SampleStore
from tests.simulation.small import small_federation, small_settings, small_task

FEDERATION, SETTINGS = small_federation(), small_settings()
CPU = torch.device("cpu")
TASK = small_task("compact", FEDERATION)
CLASSES = len(FEDERATION.classes)
MODEL = build_model("compact", CLASSES, FEDERATION.inputs.shape[1:], 3)
WEIGHTS = Layout.of(MODEL).flatten(dict(MODEL.named_parameters()))
EVERYTHING = np.asarray(FEDERATION.train.flat, dtype=np.int64)


def plain(samples: np.ndarray, weights: torch.Tensor = WEIGHTS) -> np.ndarray:
    """The gradient as anybody would write it: one module, one batch."""
    model = build_model("compact", CLASSES, FEDERATION.inputs.shape[1:], 3)
    layout = Layout.of(model)
    layout.load(model, weights)
    images, labels = SampleStore(TASK, CPU).batch(samples)
    found = torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()))
    return layout.flatten(dict(zip(layout.names, found, strict=True))).double().numpy()


def plan() -> RoundPlan:
    return SelectionPlan(FEDERATION, SETTINGS).next_round()


def test_delta_and_beta_are_those_of_gradients_by_class() -> None:
    coming, iterations = plan(), [0, 2]
    found = measure(Gradients(TASK, CPU), WEIGHTS, coming, iterations, 0.1, 0, per_class=None)
    labels = FEDERATION.labels
    central = np.stack([plain(EVERYTHING[labels[EVERYTHING] == kind]) for kind in range(CLASSES)])
    shares, nodes = [], []
    for iteration in iterations:
        for factory in range(3):
            union = coming.union(iteration, factory)
            shares.append(np.bincount(labels[union], minlength=CLASSES) / len(union))
            nodes.append([plain(union[labels[union] == kind]) if (labels[union] == kind).any() else 0 * central[0]
                          for kind in range(CLASSES)])  # fmt: skip
    expected = divergence_by_class(shares, nodes, FEDERATION.p_real(), central)
    np.testing.assert_allclose(found.divergence.bounds, expected.bounds, rtol=1e-4)
    np.testing.assert_allclose(found.divergence.actual, expected.actual, rtol=1e-4)
    assert found.delta == pytest.approx(expected.bounds.mean(), rel=1e-4)
    assert (found.nodes, found.samples) == (6, len(EVERYTHING))
    # β between here and one step of gradient descent on all data.
    gradient = plain(EVERYTHING)
    step = torch.from_numpy(0.1 * gradient).float()
    beta = np.linalg.norm(plain(EVERYTHING, WEIGHTS - step) - gradient) / np.linalg.norm(0.1 * gradient)
    assert found.smoothness == pytest.approx(beta, rel=1e-3)
    assert found.gradient == pytest.approx(np.linalg.norm(gradient), rel=1e-4)


def test_a_super_node_that_holds_all_data_does_not_diverge() -> None:
    coming = plan()
    samples = np.full((1, 1, 1, len(EVERYTHING)), -1, np.int32)
    samples[0, 0, 0] = EVERYTHING
    whole = replace(coming, devices=np.zeros((1, 1, 1), np.int32), samples=samples,
                    sizes=np.full((1, 1, 1), len(EVERYTHING), np.int32))  # fmt: skip
    found = measure(Gradients(TASK, CPU), WEIGHTS, whole, [0], 0.1, 0, per_class=None)
    assert found.delta == pytest.approx(0, abs=1e-5 * found.gradient)


def test_a_sample_of_every_class_comes_close_and_is_drawn_from_the_seed() -> None:
    gradients, coming = Gradients(TASK, CPU), plan()
    whole, *some = (
        measure(gradients, WEIGHTS, coming, [0], 0.1, seed, per_class=count)
        for seed, count in ((0, None), (0, 20), (0, 20), (1, 20))
    )
    assert some[0].samples == 20 * CLASSES
    assert some[0].delta == some[1].delta != some[2].delta
    assert some[0].delta == pytest.approx(whole.delta, rel=0.2)
