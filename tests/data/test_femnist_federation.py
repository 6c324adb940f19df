"""The paper's federation from the real file; skipped where there is none."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedgs.data import DataSet, DeviceStreams, from_arrays, heterogeneity, paper_federation

FILE = Path(os.environ.get("FEDGS_FEMNIST", "femnist_350.npz"))
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="FEDGS_FEMNIST does not name the .npz file of FEMNIST")


@pytest.fixture(scope="module")
def femnist() -> DataSet:
    with np.load(FILE) as stored:
        keep = ~stored["leaf_dup"]
        return from_arrays(
            stored["images"][keep],
            stored["labels"][keep],
            stored["writers"][keep],
            client_names=[str(name) for name in stored["writer_names"]],
            classes=[str(name) for name in stored["classes"]],
            name="femnist",
        )


def test_ten_factories_of_35(femnist: DataSet) -> None:
    federation = paper_federation(femnist, seed=0)
    assert federation.factory_sizes.tolist() == [35] * 10
    sizes = federation.train.sizes + federation.test.sizes
    assert federation.train.sizes.tolist() == [int(0.9 * size) for size in sizes]
    summary = heterogeneity(federation).summary()
    assert summary["train samples per device"].mean == pytest.approx(204.45, abs=0.01)
    assert summary["TV divergence of devices"].mean == pytest.approx(0.268, abs=0.005)
    assert summary["TV divergence of factories"].mean < 0.06


def test_no_image_of_a_device_is_in_train_and_test(femnist: DataSet) -> None:
    federation = paper_federation(femnist, seed=0)
    shared = 0
    for device in range(len(federation)):
        train = {femnist.inputs[sample].tobytes() for sample in federation.train_indices(device)}
        shared += sum(femnist.inputs[sample].tobytes() in train for sample in federation.test_indices(device))
    assert shared == 0


def test_streams_of_all_devices(femnist: DataSet) -> None:
    streams = DeviceStreams(paper_federation(femnist, seed=0), 32)
    assert streams.counts.shape == (350, 62)
    assert streams.counts.sum(axis=1).tolist() == [32] * 350
