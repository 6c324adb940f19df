"""Federations from arrays and from torch data sets: who has what, and what is wrong in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from torch.utils.data import Dataset, TensorDataset

import fedgs
from fedgs.data import arrays, sources
from fedgs.data.arrays import JoinedArray
from fedgs.data.bearings import load_bearings
from fedgs.errors import DataError
from fedgs.tasks.prepare import as_tensor

ROWS = np.arange(24, dtype=np.float64).reshape(12, 2) / 7
LABELS = np.array([0, 1, 2] * 4)
IDS = np.repeat([3, 11, 7], 4)


def made(**options: Any) -> fedgs.Federation:
    return fedgs.Federation.from_arrays(
        **{"inputs": ROWS, "targets": LABELS, "devices": IDS, "factories": 1, "test": 0.25} | options
    )


def test_devices_are_lists_of_rows_and_arrays_stay_what_they_are() -> None:
    federation = made()
    assert federation.inputs is ROWS
    assert federation.device_names == ("03", "07", "11")
    assert federation.classes == ("0", "1", "2")
    for device, first in enumerate((0, 8, 4)):
        own = sorted([*federation.train[device].tolist(), *federation.test[device].tolist()])
        assert own == list(range(first, first + 4))
        assert len(federation.test[device]) == 1
    again = made()
    assert np.array_equal(federation.train.flat, again.train.flat)
    assert not np.array_equal(federation.train.flat, made(seed=1).train.flat)


def test_rows_in_any_order() -> None:
    order = np.random.default_rng(0).permutation(12)
    federation = made(inputs=ROWS[order], targets=LABELS[order], devices=IDS[order])
    for device, name in enumerate(federation.device_names):
        rows = np.concatenate([federation.train[device], federation.test[device]])
        assert set(IDS[order][rows]) == {int(name)}


def test_memory_maps_stay_memory_maps(tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", ROWS)
    mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
    federation = made(inputs=mapped)
    assert federation.inputs is mapped
    assert isinstance(federation.inputs, np.memmap)


@pytest.mark.parametrize(
    ("factories", "expected"),
    [
        (np.repeat(["b", "a", "b"], 4), {"03": "b", "11": "a", "07": "b"}),
        ({3: "x", 11: "y", 7: "x"}, {"03": "x", "11": "y", "07": "x"}),
        ({"3": 1, "11": 2, "07": 1}, {"03": "1", "11": "2", "07": "1"}),
    ],
)
def test_factories_by_sample_and_by_device(factories: Any, expected: dict[str, str]) -> None:
    federation = made(factories=factories)
    names = {
        name: federation.factory_names[federation.factory_of[row]] for row, name in enumerate(federation.device_names)
    }
    assert names == expected
    assert (np.diff(federation.factory_of) >= 0).all()


def test_factories_dealt_out() -> None:
    ids = np.arange(400) % 100
    rows = np.zeros((400, 1), np.float32)
    assert fedgs.Federation.from_arrays(rows, ids % 2, devices=ids).factories == 5  # ⌈√100 / 2⌉
    assert fedgs.Federation.from_arrays(rows, ids % 2, devices=ids, factories=3).factory_sizes.tolist() == [34, 33, 33]


def test_a_test_mask_and_test_arrays() -> None:
    mask = np.zeros(12, bool)
    mask[[0, 5, 10]] = True
    federation = made(test=mask)
    assert sorted(federation.test.flat.tolist()) == [0, 5, 10]
    more = made(test=(ROWS[:3] + 100, np.array([2, 1, 0]), np.array([11, 11, 3])))
    assert len(more.labels) == 15
    assert sorted(more.train.flat.tolist()) == list(range(12))
    own = more.device_names.index("11")
    assert np.array_equal(more.inputs[more.test[own]], ROWS[:2] + 100)
    assert more.targets[more.test[own]].tolist() == [2, 1]
    dealt = made(test=(ROWS[:6] + 100, LABELS[:6]))
    assert dealt.test.sizes.tolist() == [2, 2, 2]


def test_joined_arrays_read_as_one() -> None:
    joined = JoinedArray([ROWS[:5], ROWS[5:]])
    assert joined.shape == ROWS.shape
    for rows in (np.array([11, 0, 4, 5, 5]), slice(3, 8), np.array([], int)):
        assert np.array_equal(joined[rows], ROWS[rows])
    assert np.array_equal(joined[7], ROWS[7])


def test_nan_is_found_in_a_memory_map_which_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHECKED_AT_ONCE", 6)  # three rows at a time
    np.save(tmp_path / "rows.npy", ROWS)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r+")
    assert made(inputs=mapped).inputs is mapped
    mapped[10, 1] = -np.inf
    with pytest.raises(DataError, match=r"inputs of sample 10 \(device '07'\) hold NaN or infinity"):
        made(inputs=mapped)


def test_columns_of_a_table() -> None:
    federation = made(inputs=pd.DataFrame(ROWS), targets=pd.Series(LABELS), devices=pd.Series(IDS))
    assert federation.classes == ("0", "1", "2")
    assert np.array_equal(federation.inputs, ROWS)


def test_a_digest_reads_all_of_a_small_array_and_some_rows_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = arrays.digest_of(ROWS, LABELS)
    assert before == arrays.digest_of(JoinedArray([ROWS[:5], ROWS[5:]]), LABELS)
    for row in range(12):
        assert before != arrays.digest_of(np.where(np.arange(12)[:, None] == row, 9.0, ROWS), LABELS)
    assert before != arrays.digest_of(ROWS, LABELS.astype(np.float64))
    monkeypatch.setattr(arrays, "DIGESTED_BYTES", 4 * 16)
    read: list[int] = []

    class Spy(JoinedArray):
        def __getitem__(self, rows: Any) -> Any:
            read.extend(rows)
            return super().__getitem__(rows)

    arrays.digest_of(Spy([ROWS]))
    assert read == [0, 3, 6, 9]


def test_columns_of_mixed_tables_and_bytes_in_another_order() -> None:
    """Numbers are numbers, whatever a table holds them as; and a share may be numpy's."""
    numbers = np.arange(24) % 12
    federation = made(
        inputs=np.zeros((24, 2), ">f4"),
        targets=numbers.astype(object),
        devices=np.arange(24) % 2,
        test=np.float32(0.25),
    )
    assert federation.classes == tuple(map(str, range(12)))
    assert np.array_equal(federation.targets, numbers)
    assert as_tensor(federation.inputs).shape == (24, 2)
    assert federation.test.sizes.tolist() == [3, 3]
    assert made(targets=(numbers[:12] / 7).astype(object)).classes == ("all",)


def test_targets_that_are_no_classes() -> None:
    assert made(targets=np.linspace(0, 1, 12)).classes == ("all",)
    assert made(targets=ROWS).classes == ("all",)
    assert made(targets=LABELS - 1).classes == ("all",)
    assert made(targets=LABELS + 10**6).classes == ("all",)
    named = made(targets=np.array(["ok", "crack", "rust"] * 4))
    assert named.classes == ("crack", "ok", "rust")
    assert named.targets[:3].tolist() == [1, 0, 2]
    many = made(targets=np.arange(12) * 100)
    assert len(many.classes) == 1101
    assert many.labels.max() == 1100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": IDS[:5]}, "12 rows of inputs, 12 rows of targets, 5 rows of devices"),
        ({"devices": IDS.astype(float)}, "devices must be one name or one number a sample"),
        ({"inputs": ROWS[:0], "targets": LABELS[:0], "devices": IDS[:0]}, "the arrays hold no sample"),
        ({"test": 0.0}, "lies between 0 and 1"),
        ({"test": np.ones(5, bool)}, "test must be a share, 12 bools"),
        ({"test": np.ones(12, bool)}, "device '03' has no sample to train on"),
        ({"devices": np.arange(12)}, "no sample is left to test on"),
        ({"test": np.zeros(12, bool)}, "no sample is left to test on; test marks none$"),
        ({"test": (ROWS, LABELS, IDS + 1)}, r"test samples of \d"),
        ({"test": (np.where(ROWS[5, 1] == ROWS, np.nan, ROWS)[4:], LABELS[4:])}, "inputs of test sample 1 "),
        ({"inputs": [[1.0, 2.0], [3.0]]}, "inputs cannot be read as an array"),
        ({"inputs": torch.ones(12, 2, dtype=torch.bfloat16)}, "inputs cannot be read as an array .*BFloat16"),
        ({"test": (np.zeros((3, 5)), LABELS[:3])}, r"test inputs have shape \(3, 5\)"),
        ({"test": (ROWS,)}, r"test arrays are \(inputs, targets\)"),
        ({"factories": {3: "a"}}, "does not say where device '07' belongs"),
        ({"factories": np.arange(12)}, r"device '03' has samples in factories \d"),
        ({"factories": np.arange(5)}, "factories has 5 entries for 12 samples"),
        ({"factories": 7}, "cannot assign 3 devices to 7 factories"),
        ({"classes": 3}, "classes=3; give a list of names"),
        ({"classes": ["a", "b"]}, "label 2 has no class; there are 2 classes"),
        (
            {"inputs": np.where(ROWS[5, 1] == ROWS, np.nan, ROWS)},
            r"inputs of sample 5 \(device '11'\) hold NaN or infinity",
        ),
        ({"targets": np.where(np.arange(12) == 9, np.inf, 0.5)}, r"targets of sample 9 \(device '07'\) hold NaN"),
        ({"inputs": {"a": ROWS, "b": ROWS[:3]}}, "12 rows of inputs 'a', 3 rows of inputs 'b'"),
        ({"inputs": {"a": (ROWS, ROWS)}}, "inputs are nested; give an array, or a tuple or a dict of arrays"),
        ({"inputs": {}}, "inputs are empty; give an array"),
        ({"targets": ()}, "targets are empty"),
        (
            {"inputs": csr_array(ROWS)},
            r"inputs are sparse.*give dense arrays, with .toarray\(\)",
        ),
        ({"inputs": np.ma.masked_array(ROWS, ROWS[5, 1] == ROWS)}, "inputs hold masked values; fill them in"),
        ({"test": [ROWS, LABELS]}, "test must be a share, 12 bools, or a tuple of arrays"),
        ({"test": ({"a": ROWS}, LABELS)}, "test inputs are a dict of 'a', train inputs an array"),
        ({"test": (ROWS, (LABELS, LABELS))}, "test targets are a tuple of 2 arrays, train targets an array"),
        ({"factories": [None] * 12}, "factories of sample 0 is None; name it, or drop the sample"),
        ({"seed": "a"}, "seed='a'; give a whole number"),
        ({"classes": ["a", "b", "b"]}, "the class 'b' is there twice"),
    ],
)
def test_what_is_wrong_is_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        made(**options)
    assert "\n" not in str(error.value)


class Squares(Dataset[Any]):
    """A map-style data set that makes its items when they are asked for."""

    def __init__(self, count: int, named: bool = False) -> None:
        self.count, self.named = count, named

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        value = torch.full((2, 3), float(row))
        return ({"a": value, "b": np.array([row])} if self.named else value), row % 2


def test_torch_data_sets() -> None:
    sets: dict[str, Dataset[Any]] = {"press-1": Squares(8), "press-2": Squares(5)}
    federation = fedgs.Federation.from_datasets(sets, factories={"press-1": "a", "press-2": "b"}, test=0.2)
    assert federation.device_names == ("press-1", "press-2")
    assert federation.factory_names == ("a", "b")
    assert federation.inputs.shape == (13, 2, 3)
    assert federation.inputs.dtype == np.float32
    assert federation.train.sizes.tolist() == [6, 4]
    own = fedgs.Federation.from_datasets(sets, factories=1, test={"press-1": Squares(3)})
    assert own.test.sizes.tolist() == [3, 0]
    assert own.train.sizes.tolist() == [8, 5]
    named = fedgs.Federation.from_datasets({"x": Squares(4, named=True)}, factories=1)
    assert named.inputs["a"].shape == (4, 2, 3)
    tensors = TensorDataset(torch.rand(6, 4), torch.rand(6))
    assert fedgs.Federation.from_datasets({"x": tensors}, factories=1).classes == ("all",)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({}, "no data set in it"),
        ({"x": 3}, "device 'x': int has no length"),
        ([Squares(3)], "a list of data sets; give a dict"),
        ({"x": [(np.zeros(2), 0.5), (np.zeros(2), np.inf)]}, "device 'x': targets of item 1 hold NaN or infinity"),
        ({"x": Squares(0)}, "device 'x': its data set is empty"),
        ({"x": [1, 2, 3]}, "device 'x': item 0 is a int; \\(input, target\\) is expected"),
        ({"x": [(np.zeros(2), 0), (np.zeros(3), 1)]}, "device 'x': item 1 has shapes"),
        ({"x": [(np.zeros(2), 0), ({"a": np.zeros(2)}, 1)]}, "item 1 has shapes a dict of 'a'"),
        ({"x": [((np.zeros(2), {"a": np.zeros(2)}), 0)]}, "item 0 are nested"),
        (
            {"x": [(np.zeros(2), 0)] * 4, "y": [((np.zeros(2),), 1)] * 4},
            "samples of device 'y' are a tuple of 1 arrays",
        ),
        ({"x": [(np.zeros(2), 0)] * 4, "y": [(np.zeros(3), 1)] * 4}, "differ in the shape of their samples"),
    ],
)
def test_data_sets_that_cannot_be(sets: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        fedgs.Federation.from_datasets(sets, factories=1)
    with pytest.raises(DataError, match="test data of 'z'"):
        fedgs.Federation.from_datasets({"x": Squares(4)}, test={"z": Squares(2)})


def test_a_federation_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "embedded", lambda name: load_bearings(24, 8))
    federation = fedgs.Federation.load("bearings", devices=20, seed=0, partition="by-attribute", attribute="plant")
    assert len(federation) == 20
    assert federation.inputs.shape[1:] == (3, 1024)
    with pytest.raises(DataError, match=r"Federation\.load has no option 'facories'"):
        fedgs.Federation.load("glyphs", facories=3)
