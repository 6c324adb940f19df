"""The ingredients of a better model: the regularised network, weak augmentation, samples for tuning."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgs
from fedgs.errors import ConfigError, TrainingError
from fedgs.tasks.augment import weak_affine
from fedgs.tasks.cnn import build_model
from fedgs.tasks.regularised import RegularisedCNN
from tests.simulation.small import small_federation


def test_without_dropout_and_normalisation_it_is_the_papers_network() -> None:
    paper, own = build_model("paper", 5, (12, 8), seed=3), RegularisedCNN(5, (12, 8), dropout=0.0)
    with torch.no_grad():
        for mine, theirs in zip(own.parameters(), paper.parameters(), strict=True):
            mine.copy_(theirs)
    images = torch.rand(4, 1, 12, 8)
    torch.testing.assert_close(own(images), paper(images))


def test_dropout_and_normalisation_are_where_they_are_asked_for() -> None:
    images, network = torch.rand(4, 1, 12, 8), RegularisedCNN(5, (12, 8), norm="group")
    assert sum(isinstance(layer, torch.nn.GroupNorm) for layer in network.modules()) == 2
    assert not torch.equal(network(images), network(images))
    network.eval()
    assert torch.equal(network(images), network(images))
    with pytest.raises(ConfigError, match="norm"):
        RegularisedCNN(5, (12, 8), norm="batch")  # type: ignore[arg-type]


def test_half_of_the_images_change_weakly_and_each_in_its_own_way() -> None:
    point = torch.zeros(64, 1, 29, 29)
    point[:, :, 14, 14] = 1.0  # the middle: turning, stretching and shearing leave it where it is
    moved = weak_affine(point, torch.Generator().manual_seed(0))
    assert torch.equal(moved, weak_affine(point, torch.Generator().manual_seed(0)))
    changed = [image for image in moved if not torch.equal(image, point[0])]
    assert 22 <= len(changed) <= 42  # 32 ± 2.5 standard deviations
    assert len({tuple(image.flatten().tolist()) for image in changed}) == len(changed)
    places = torch.nonzero(moved[:, 0] > 0.01)[:, 1:]
    assert (places - 14).abs().max() <= 3  # 8 % of half a side of 14.5 pixels are 1.2, and a neighbour's share
    flat = torch.full((3, 2, 9, 9), 0.7)
    torch.testing.assert_close(weak_affine(flat, torch.Generator().manual_seed(1)), flat)  # edges go on


def test_a_run_for_tuning_never_sees_the_test_samples() -> None:
    federation = small_federation()
    tuning = federation.for_tuning(0.25, seed=1)
    for device in range(len(federation)):
        train, validation = tuning.train[device], tuning.test[device]
        assert sorted([*train, *validation]) == sorted(federation.train[device])
        assert len(train) == max(1, int(0.75 * len(federation.train[device])))
    assert not np.array_equal(tuning.test.flat, federation.for_tuning(0.25, seed=2).test.flat)

    # Test samples that were looked at would ruin every number: they are no numbers.
    inputs = federation.inputs.astype(np.float32)
    inputs[federation.test.flat] = np.inf
    task = fedgs.Task("linear")
    ruined = replace(federation, inputs=inputs)
    options = {"rounds": 1, "iterations": 2, "batch_size": 5, "pick": 2}
    history = fedgs.run(task, ruined, **options, settings={"data": {"validation": 0.25}})
    assert np.isfinite(history.rows[-1]["loss"])
    with pytest.raises(TrainingError):
        fedgs.run(task, ruined, **options)


def test_the_network_by_its_name_with_augmentation_learns() -> None:
    settings = {
        "task": {"model": "regularised", "options": {"dropout": 0.1, "norm": "group", "hidden": 32},
                 "augment": "fedgs.tasks.augment:weak_affine"},
        "data": {"name": "glyphs", "samples_per_device": 40}, "federation": {"devices": 8, "factories": 2},
        "selection": {"pick": 2},
        "training": {"rounds": 4, "iterations": 10, "batch_size": 16, "learning_rate": 0.1, "optimizer": "momentum"},
    }  # fmt: skip
    losses = [row["loss"] for row in fedgs.run(settings=settings).rows]
    assert losses[-1] < losses[0] - 0.1
