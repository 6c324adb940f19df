import os
import random
from pathlib import Path

import numpy as np
import pytest
from small_sets import numbered

from fedgs.data import DeviceStreams, heterogeneity, leaf_federation, load_femnist, paper_federation
from fedgs.errors import DataError

REAL = Path(os.environ.get("FEDGS_FEMNIST", "femnist_350.npz"))


def leaf_by_hand(users: dict[str, list[int]], keep: int) -> dict[str, tuple[list[int], list[int]]]:
    """LEAF's three scripts on plain lists: sample a tenth per file, remove small users, split by sample."""
    sampler, splitter = random.Random(0), random.Random(0)
    names = sorted(users)
    files = [names[first : first + 100] for first in range(0, len(names), 100)]
    result = {}
    for file in files:
        budget = int(0.1 * sum(len(users[user]) for user in file))
        sampler.shuffle(file)
        used, sampled = 0, {}
        while used < budget:
            user = file[len(sampled)]
            data = users[user]
            if used + len(data) > budget:
                order = sampler.sample(list(range(budget - used)), budget - used)
                data = [data[position] for position in order]
            sampled[user] = data
            used += len(data)
        for user, data in sampled.items():
            if len(data) >= keep:
                train = splitter.sample(list(range(len(data))), max(1, int(0.9 * len(data))))
                inside = [value for position, value in enumerate(data) if position in train]
                outside = [value for position, value in enumerate(data) if position not in train]
                result[user] = (inside, outside)
    return result


@pytest.mark.parametrize("keep", [2, 25])
def test_leaf_federation_is_leafs_scripts(keep: int) -> None:
    sizes = np.random.default_rng(1).integers(10, 60, 230)
    dataset = numbered(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    users = {name: list(range(starts[row], starts[row + 1])) for row, name in enumerate(dataset.client_names)}
    expected = leaf_by_hand(users, keep)
    federation = leaf_federation(dataset, min_samples=keep, factories=4)
    assert sorted(federation.device_names) == sorted(expected)
    for device, name in enumerate(federation.device_names):
        assert federation.train_indices(device).tolist() == expected[name][0]
        assert federation.test_indices(device).tolist() == expected[name][1]


def test_leaf_federation_takes_about_a_tenth_per_file_and_may_leave_the_last_out() -> None:
    dataset = numbered([20] * 250)
    whole = leaf_federation(dataset, min_samples=2)
    assert len(whole.train.flat) + len(whole.test.flat) == 200 + 200 + 100
    older = leaf_federation(dataset, min_samples=2, partial_file=False)
    assert max(older.device_names) < "w200" <= max(whole.device_names)


def test_recipes_on_too_small_a_set() -> None:
    with pytest.raises(DataError, match=r"none of 5 clients has at least 100 samples \(the largest has 99\); lower"):
        paper_federation(numbered([99] * 5))
    with pytest.raises(DataError, match="no device with at least 100 samples"):
        leaf_federation(numbered([99] * 5))
    with pytest.raises(DataError, match="fraction 0"):
        leaf_federation(numbered([99] * 5), fraction=0)


@pytest.mark.skipif(not REAL.is_file(), reason="FEDGS_FEMNIST does not name the .npz file of FEMNIST")
def test_the_papers_federation_of_the_real_file() -> None:
    femnist = load_femnist(REAL, use_cache=False)
    federation = paper_federation(femnist, seed=0)
    assert federation.factory_sizes.tolist() == [35] * 10
    sizes = federation.train.sizes + federation.test.sizes
    assert federation.train.sizes.tolist() == [int(0.9 * size) for size in sizes]
    summary = heterogeneity(federation).summary()
    assert summary["train samples per device"].mean == pytest.approx(204.45, abs=0.01)
    assert summary["TV divergence of devices"].mean == pytest.approx(0.268, abs=0.005)
    assert summary["TV divergence of factories"].mean < 0.06
    for device in range(len(federation)):  # no image of a device is in train and test
        train = {femnist.inputs[sample].tobytes() for sample in federation.train_indices(device)}
        assert not any(femnist.inputs[sample].tobytes() in train for sample in federation.test_indices(device))
    streams = DeviceStreams(federation, 32)
    assert streams.counts.shape == (350, 62)
    assert streams.counts.sum(axis=1).tolist() == [32] * 350
