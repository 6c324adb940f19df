"""The classifier averaged class by class: by hand, and where it is the plain mean."""

import numpy as np
import pytest
import torch

from fedgs.algorithms.class_wise import FLOOR, ClassRows, row_weights
from fedgs.algorithms.synchronise import Synchroniser
from fedgs.config import load_settings
from fedgs.deploy.run_spec import check_deployable
from fedgs.errors import ConfigError
from fedgs.settings import ServerSettings
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.simulator import Simulator
from fedgs.tasks.cnn import build_model
from fedgs.training.layout import Layout
from fedgs.weights import WeightShapes
from tests.simulation.small import small_federation, small_settings

LAYOUT = Layout((("first", (2,)), ("last.weight", (3, 2)), ("last.bias", (3,))))  # three classes


def synchroniser_of(settings: ServerSettings) -> Synchroniser:
    return Synchroniser(settings, LAYOUT, ProcessGroup(), "last", 3)


def test_weights_worked_by_hand() -> None:
    seen = np.array([[6, 2, 0], [1, 3, 0], [9, 9, 9]])
    weights = row_weights(seen, np.array([True, True, False]))
    # Shares ¾, ¼ and ¼, ¾, their mean ½; nobody who trained saw the third class.
    high, low = 0.75 + FLOOR / 2, 0.25 + FLOOR / 2
    expected = [[high / (high + low), low / (high + low), 0.5], [low / (high + low), high / (high + low), 0.5], [0] * 3]
    np.testing.assert_allclose(weights, expected)


def test_rows_and_biases_go_by_class_and_all_else_by_the_mean() -> None:
    stations = torch.arange(22, dtype=torch.float32).view(2, 11) ** 2
    seen = np.array([[8, 0, 4], [0, 8, 4]])
    trained = np.array([True, True])
    synchroniser = synchroniser_of(ServerSettings(class_wise=True))
    found, _ = synchroniser.update({}, torch.zeros(11), stations, trained, (), seen)
    views = LAYOUT.views(found)
    one, other = LAYOUT.views(stations[0]), LAYOUT.views(stations[1])
    torch.testing.assert_close(views["first"], (one["first"] + other["first"]) / 2)
    say = row_weights(seen, trained)
    assert say[0, 0] > 0.99
    for name in ("last.weight", "last.bias"):
        for kind in range(3):
            expected = say[0, kind] * one[name][kind] + say[1, kind] * other[name][kind]
            torch.testing.assert_close(views[name][kind], expected.float())
    plain, _ = synchroniser_of(ServerSettings()).update({}, torch.zeros(11), stations, trained, (), seen)
    torch.testing.assert_close(plain, stations.mean(0))


def test_alike_stations_give_the_papers_mean_and_who_sat_out_counts_nothing() -> None:
    stations = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    stations[2] = torch.nan
    trained = np.array([True, True, False])
    synchroniser = synchroniser_of(ServerSettings(class_wise=True))
    found, _ = synchroniser.update({}, torch.zeros(11), stations, trained, (), np.array([[2, 4, 6]] * 2 + [[0, 0, 0]]))
    torch.testing.assert_close(found, stations[:2].mean(0))


@pytest.mark.parametrize("name", ["paper", "compact", "linear"])
def test_the_classifier_of_every_model_is_found(name: str) -> None:
    layout = Layout.of(build_model(name, 7, (28, 28)))
    assert ClassRows(layout, "dense" if name == "linear" else "dense2", 7).classes == 7


def test_a_run_with_it_differs_and_what_cannot_be_is_refused() -> None:
    federation = small_federation()
    ends = []
    for switch in ("false", "true"):
        with Simulator(small_settings(f"server.class_wise={switch}"), federation, torch.device("cpu")) as run:
            *_, last = run.rounds(run.begin())
            ends.append(run.layout.views(last.weights))
    assert not torch.allclose(ends[0]["dense2.bias"], ends[1]["dense2.bias"])
    check_deployable(load_settings(overrides=["server.class_wise=true"]))
    for shapes in ([(3,), (2,)], [(3, 2), (2,)], [(3, 2), (3, 1)], [(4, 2), (4,)]):
        with pytest.raises(ConfigError, match="last layer that is dense"):
            ClassRows(WeightShapes(tuple(zip(("last.weight", "last.bias"), shapes, strict=True))), "last", 3)
    with pytest.raises(ConfigError, match="last layer that is dense"):
        ClassRows(LAYOUT, None, 3)


def test_only_samples_that_were_trained_on_count() -> None:
    federation = small_federation()
    lossy = small_settings("dynamics.drop_out=0.4", "dynamics.straggle=0.4", "dynamics.straggle_share=0.5")
    plan = SelectionPlan(federation, lossy).next_round()
    assert (plan.sizes < plan.samples.shape[-1]).any()
    expected = np.zeros_like(plan.seen)
    for iteration, factory in np.ndindex(plan.devices.shape[:2]):
        labels = federation.labels[plan.union(iteration, factory)]
        expected[factory] += np.bincount(labels, minlength=expected.shape[1])
    np.testing.assert_array_equal(plan.seen, expected)
    assert plan.seen.sum() == plan.totals.sum()
