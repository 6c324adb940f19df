import numpy as np
import pytest
from femnist_files import pictures
from hypothesis import given
from hypothesis import strategies as st

from fedgs.data.femnist.form import CLASSES, LABEL_OF_HEX, check_polarity, check_samples, partition_of, repeats
from fedgs.errors import DataError, InputFileError


def test_class_folders_are_named_by_their_character() -> None:
    expected = {"30": 0, "39": 9, "41": 10, "5a": 35, "61": 36, "7a": 61, "4a": 19}
    assert {code: LABEL_OF_HEX[code] for code in expected} == expected
    assert [chr(int(code, 16)) for code in LABEL_OF_HEX] == list(CLASSES)
    assert len(CLASSES) == 62


def test_partition_by_form_number() -> None:
    expected = {"f0000_14": 0, "f0499_00": 0, "f0500_00": 1, "f1499_10": 2, "f2099_01": 3, "f2100_01": 4}
    expected |= {"f3100_01": 6, "f4099_01": 7, "f2600_01": -1, "7": -1}
    assert {writer: partition_of(writer) for writer in expected} == expected


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_uint8_is_exactly_the_value_that_was_divided(kind: type) -> None:
    values = np.arange(784) % 256
    images, labels = check_samples((values / 255).astype(kind)[None], [61], "x")
    assert np.array_equal(images, values.reshape(1, 28, 28))
    assert (images.dtype, labels.dtype) == (np.uint8, np.uint8)


@pytest.mark.parametrize("bad", [-0.4242, 2.8215, np.nan])
def test_normalised_pixels_are_refused(bad: float) -> None:
    with pytest.raises(InputFileError, match=r"a.json: pixels must lie in 0..1"):
        check_samples(np.append(np.full(783, 0.5), bad)[None], [1], "a.json")


def test_polarity() -> None:
    images = pictures(10, "polarity")
    check_polarity(images, "a")
    with pytest.raises(DataError, match=r"a: the images are white on black .*--invert"):
        check_polarity(255 - images, "a")
    with pytest.raises(DataError, match="not FEMNIST images"):
        check_polarity(np.full((4, 28, 28), 140, np.uint8), "a")
    with pytest.raises(DataError, match="not one image"):
        check_polarity(images[:0], "a")


@pytest.mark.parametrize(
    ("shown", "label", "test", "marked"),
    [
        ([0, 0, 1, 2], [5, 5, 5, 5], [0, 0, 0, 0], [0, 1, 0, 0]),
        ([0, 0], [5, 6], [0, 0], [0, 0]),  # with another label it is no copy
        # of a pair across the split the training one stays, in whatever order the split lists them
        ([0, 1, 0, 2], [5, 5, 5, 5], [0, 0, 1, 1], [0, 0, 1, 0]),
        ([0, 1, 0, 2], [5, 5, 5, 5], [1, 1, 0, 0], [1, 0, 0, 0]),
        ([0, 1, 0], [5, 5, 5], [0, 0, 1], [1, 0, 0]),  # but a writer's last test sample stays
        ([0, 0], [5, 5], [0, 1], [0, 1]),  # unless nothing would be left to learn
    ],
)
def test_copies_are_marked(shown: list[int], label: list[int], test: list[int], marked: list[int]) -> None:
    found = repeats(pictures(3, "copies")[shown], np.array(label, np.uint8), np.array(test, bool))
    assert found.tolist() == [bool(mark) for mark in marked]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), max_size=12))
def test_what_is_left_has_no_repeats_and_no_leak(samples: list[tuple[int, int, bool]]) -> None:
    x = pictures(4, "property")[[picture for picture, _, _ in samples]]
    y = np.array([label for _, label, _ in samples], np.uint8)
    test = np.array([is_test for _, _, is_test in samples], np.bool_)
    kept = np.flatnonzero(~repeats(x, y, test))
    content = [samples[index][:2] for index in kept]
    assert sorted(content) == sorted({sample[:2] for sample in samples})
