from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sets import numbered

from fedgs.data import DataSet, Federation, build_federation, clients_of, from_arrays, paper_federation, regroup
from fedgs.data.dataset import Clients, IndexLists
from fedgs.data.federation import train_size
from fedgs.errors import DataError


def test_train_size_is_leafs_rule() -> None:
    assert [train_size(n, 0.9) for n in (100, 227, 2, 1, 10, 19)] == [90, 204, 1, 1, 9, 17]


def test_p_real_by_hand() -> None:
    # Device a trains on classes 0 0 1, device b on 1 2; test samples are 2 and 2.
    labels = [0, 0, 1, 2, 1, 2, 2]
    test = [False, False, False, True, False, False, True]
    dataset = from_arrays(np.zeros((7, 2, 2), np.uint8), labels, ["a"] * 4 + ["b"] * 3, test=test)
    federation = build_federation(dataset, factories=1)
    assert federation.train_counts.tolist() == [[2, 1, 0], [0, 1, 1]]
    assert federation.test_counts.tolist() == [[0, 0, 1], [0, 0, 1]]
    np.testing.assert_allclose(federation.p_real(), [0.4, 0.4, 0.2], rtol=1e-15)
    np.testing.assert_allclose(federation.p_real(include_test=True), [2 / 7, 2 / 7, 3 / 7], rtol=1e-15)
    assert federation.train_labels(0).tolist() == [0, 0, 1]
    assert federation.test_indices(1).tolist() == [6]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 30), min_size=1, max_size=12),
    factories=st.integers(1, 12),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 10**6),
)
def test_every_sample_is_dealt_once(sizes: list[int], factories: int, fraction: float, seed: int) -> None:
    dataset = numbered(sizes)
    federation = build_federation(dataset, min(factories, len(sizes)), train_fraction=fraction, seed=seed)
    both = np.concatenate([federation.train.flat, federation.test.flat])
    assert sorted(both) == list(range(sum(sizes)))
    np.testing.assert_allclose(federation.p_real().sum(), 1, atol=1e-12)
    assert np.ptp(federation.factory_sizes) <= 1
    for device, name in enumerate(federation.device_names):
        samples = int(name[1:])
        train, test = federation.train_indices(device), federation.test_indices(device)
        assert len(train) == train_size(sizes[samples], fraction)
        assert np.all(np.diff(train) > 0)
        assert np.all(np.diff(test) > 0)
        assert set(dataset.clients[np.concatenate([train, test])]) == {samples}
    devices = np.concatenate([federation.devices_of(factory) for factory in range(federation.factories)])
    assert devices.tolist() == list(range(len(sizes)))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(8)), partition=st.sampled_from(["balanced", "random"]))
def test_the_order_of_files_does_not_matter(seed: int, order: list[int], partition: str) -> None:
    sizes = [7, 12, 5, 9, 30, 11, 6, 8]
    dataset = numbered(sizes)
    pieces = [np.flatnonzero(dataset.clients == client) for client in order]
    shuffled = np.concatenate(pieces)
    other = from_arrays(
        dataset.inputs[shuffled],
        dataset.labels[shuffled],
        np.repeat([dataset.client_names[client] for client in order], [len(piece) for piece in pieces]),
        classes=dataset.classes,
    )
    first, second = (_or_error(one, partition, seed) for one in (dataset, other))
    assert first == second


def _or_error(dataset: DataSet, partition: str, seed: int) -> tuple[object, ...]:
    try:
        federation = build_federation(dataset, 2, partition, seed=seed, devices=6)
    except DataError as error:
        return (str(error),)
    return federation.fingerprint(), federation.inputs.tobytes(), federation.device_names


def test_a_device_is_split_alike_in_any_company() -> None:
    many, few = build_federation(numbered([20] * 9), 3, seed=5), build_federation(numbered([20] * 3), 1, seed=5)
    device = many.device_names.index("w001")
    assert many.train_indices(device).tolist() == few.train_indices(1).tolist()
    assert build_federation(numbered([20] * 3), 1, seed=6).fingerprint() != few.fingerprint()


def test_images_are_shared_and_indices_are_views() -> None:
    dataset = numbered([10, 10])
    federation = build_federation(dataset, 1)
    assert federation.inputs is dataset.inputs
    assert np.shares_memory(federation.train_indices(0), federation.train.flat)
    with pytest.raises(ValueError, match="read-only"):
        federation.train_indices(0)[0] = 3
    flat, offsets = np.arange(4), np.array([0, 1, 4])
    lists = IndexLists(flat, offsets)
    flat[0] = offsets[0] = 0  # the caller's own arrays stay writable
    with pytest.raises(ValueError, match="read-only"):
        lists.flat[0] = 1


def test_the_data_sets_own_split_comes_first() -> None:
    test = np.arange(20) % 4 == 0
    dataset = numbered([10, 10], test=test)
    assert build_federation(dataset, 1).test.flat.tolist() == np.flatnonzero(test).tolist()
    assert len(build_federation(dataset, 1, split="draw").test.flat) == 2


def test_devices_by_number_by_name_and_by_size() -> None:
    dataset = numbered([10, 3, 10, 12, 10])
    assert set(build_federation(dataset, 2, min_samples=10).device_names) == {"w000", "w002", "w003", "w004"}
    assert len(build_federation(dataset, 2, devices=3, min_samples=10)) == 3
    assert len(build_federation(dataset, 2, devices=np.int64(3))) == 3  # type: ignore[arg-type]
    assert build_federation(dataset, 1, devices=["w003", "w001"]).device_names == ("w001", "w003")


def test_paper_recipe_shape() -> None:
    federation = paper_federation(numbered([100] * 40 + [99] * 5), seed=3, devices=30, factories=10)
    assert federation.factory_sizes.tolist() == [3] * 10
    assert not {f"w{number:03d}" for number in range(40, 45)} & set(federation.device_names)
    assert set(federation.train.sizes) == {90}
    assert set(federation.test.sizes) == {10}


def test_empty_devices_are_an_error_or_dropped() -> None:
    dataset = numbered([10, 1, 10])
    with pytest.raises(DataError, match=r"'w001' has 1 train and 0 test samples.*empty='drop'"):
        build_federation(dataset, 2)
    assert build_federation(dataset, 1, empty="drop").device_names == ("w000", "w002")
    with pytest.raises(DataError, match="no client is left"):
        build_federation(numbered([1, 1]), 1, empty="drop")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 4}, "4 devices were asked for, 3 clients"),
        ({"devices": ["w009"]}, "no device 'w009'"),
        ({"factories": 4}, "cannot assign 3 devices to 4 factories"),
        ({"factories": 0}, "to 0 factories"),
        ({"factories": None}, "needs the number of factories"),
        ({"partition": "fair"}, "no partition 'fair'; choose one of balanced, random, by-attribute"),
        ({"partition": "by-attribute"}, "None is not among them"),
        ({"train_fraction": 1.0}, "train_fraction is 1.0"),
        ({"split": "own"}, "brings no test mask"),
        ({"split": "half"}, "no split 'half'"),
        ({"min_samples": 11, "factories": 1}, r"none of 3 clients has at least 11 samples \(the largest has 10\)"),
        ({"empty": "skip"}, "no way 'skip' to treat empty devices"),
        ({"attribute": "line"}, "attribute 'line' has no effect on partition 'balanced'"),
        ({"devices": "0"}, "devices='0'; give a number of devices or a list of names"),
        ({"devices": True}, "devices=True; give"),
        ({"devices": ["w001", "w001"]}, "device 'w001' is asked for twice"),
        (
            {"clients": Clients(("a", "b"), IndexLists.of([np.array([0, 1]), np.array([2, 30])]))},
            "sample 30, the data set",
        ),
        (
            {"clients": Clients(("a", "b"), IndexLists.of([np.array([-1, 1]), np.array([2, 3])]))},
            "sample -1, the data set",
        ),
    ],
)
def test_what_cannot_be_dealt(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        build_federation(numbered([10, 10, 10]), **{"factories": 2} | options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_regroup_carries_every_sample_to_its_new_client() -> None:
    dataset = numbered([3, 4], test=[True, False] * 3 + [True])
    clients = Clients(("z", "a"), IndexLists.of([np.array([0, 2, 4, 6]), np.array([5, 1, 3])]))
    dealt = regroup(dataset, clients)
    assert dealt.client_names == ("a", "z")
    assert dealt.inputs.reshape(7, 4).view("<u4").ravel().tolist() == [5, 1, 3, 0, 2, 4, 6]
    assert dealt.labels.tolist() == dataset.labels[[5, 1, 3, 0, 2, 4, 6]].tolist()
    assert dealt.test is not None
    assert dealt.test.tolist() == [False] * 3 + [True] * 4
    assert [clients_of(dealt).samples[row].tolist() for row in (0, 1)] == [[0, 1, 2], [3, 4, 5, 6]]


def test_two_clients_of_one_name() -> None:
    with pytest.raises(DataError, match="'a' is there twice"):
        Clients(("a", "a"), IndexLists.of([np.array([0]), np.array([1])]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factory_of": np.array([0], np.int32)}, "differ in their number of devices"),
        ({"device_names": ("a", "a")}, "same name"),
        ({"factory_of": np.array([1, 0], np.int32)}, "not ordered by factory"),
        ({"factory_names": ("one", "two", "three")}, "a factory has no device"),
        ({"test": IndexLists.of([np.array([0]), np.array([9])])}, "both train and test"),
    ],
)
def test_an_inconsistent_federation(change: dict[str, object], message: str) -> None:
    consistent = Federation(
        name="two",
        inputs=np.zeros((10, 2, 2), np.uint8),
        targets=np.zeros(10, np.uint8),
        labels=np.zeros(10, np.int32),
        classes=("x",),
        device_names=("a", "b"),
        factory_names=("one", "two"),
        factory_of=np.array([0, 1], np.int32),
        train=IndexLists.of([np.arange(4), np.arange(5, 9)]),
        test=IndexLists.of([np.array([4]), np.array([9])]),
    )
    with pytest.raises(IndexError, match="factory 2 of 2"):
        consistent.devices_of(2)
    with pytest.raises(IndexError, match="list 2 of 2"):
        consistent.train_indices(2)
    with pytest.raises(DataError, match=message):
        replace(consistent, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": np.zeros((3, 1), np.uint8)}, r"labels are uint8 \(3, 1\)"),
        ({"clients": np.array([0.0, 0.0, 1.0])}, "clients are float64"),
        ({"client_names": ("a", "a")}, "the client name 'a' is there twice"),
        (
            {"attributes": {"line": np.array([0.5, 1.0])}},
            "attribute 'line' has 2 values for 2 clients; one whole number",
        ),
        ({"test": np.array([0, 1, 0])}, "the test mask has 3 entries .int64. for 3 samples; one bool each"),
    ],
)
def test_an_inconsistent_data_set(change: dict[str, object], message: str) -> None:
    consistent = DataSet(
        "three", np.zeros((3, 2, 2), np.uint8), np.uint8([0, 1, 1]), np.int32([0, 0, 1]), ("a", "b"), ("x", "y")
    )
    with pytest.raises(DataError, match=message):
        replace(consistent, **change)  # type: ignore[arg-type]
