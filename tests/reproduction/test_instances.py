"""Instances as a base station meets them."""

import numpy as np
import pytest

from fedgs.config import load_settings
from fedgs.data import build_federation
from fedgs.errors import ConfigError
from fedgs.selection import solve
from reproduction.experiments.femnist_like import femnist_like_labels
from reproduction.experiments.samplers import draw_instances


def test_drawn_labels_are_like_femnist() -> None:
    labels = femnist_like_labels(350, seed=0)
    counts = np.stack([np.bincount(labels.labels[labels.clients == i], minlength=62) for i in range(350)])
    sizes = counts.sum(axis=1)
    assert 215 < sizes.mean() < 245  # FEMNIST: 228
    assert 0.47 < counts[:, :10].sum() / counts.sum() < 0.53  # FEMNIST: 0.50
    assert 0.3 < (sizes > 220).mean() < 0.5  # those who copied the text
    assert counts.sum(axis=0).min() > 0


def test_a_device_does_not_depend_on_the_others() -> None:
    few, many = femnist_like_labels(3, seed=5), femnist_like_labels(9, seed=5)
    assert np.array_equal(few.labels, many.labels[: len(few)])


def test_instances_have_the_papers_shape_and_ratio() -> None:
    settings = load_settings()
    federation = build_federation(femnist_like_labels(), 10)
    problems = draw_instances(federation, settings, 40)
    for problem in problems:
        assert problem.counts.shape == (33, 62)
        assert problem.pick == 8
        assert problem.base.sum() == 64
        assert problem.equal_sizes
    # The measured ratio of random to optimal on real FEMNIST is about 2.
    random = np.mean([solve(p, "random", i).divergence for i, p in enumerate(problems)])
    optimum = np.mean([solve(p, "exact").divergence for p in problems])
    assert 1.8 < random / optimum < 2.6
    again = draw_instances(federation, settings, 40)
    assert all(np.array_equal(a.counts, b.counts) for a, b in zip(problems, again, strict=True))


def test_small_factories_with_and_without_the_cap() -> None:
    federation = build_federation(femnist_like_labels(12), 3)
    capped = load_settings(
        None, ["federation.devices=12", "federation.factories=3", "selection.pick=9", "selection.cap=true"]
    )
    assert [problem.pick for problem in draw_instances(federation, capped, 3)] == [2, 2, 2]  # four, two pre-sampled
    tiny = build_federation(femnist_like_labels(6), 3)
    with pytest.raises(ConfigError, match=r"selection\.presample=2 leaves nobody to select"):
        draw_instances(tiny, capped, 1)
