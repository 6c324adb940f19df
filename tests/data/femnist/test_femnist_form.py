import numpy as np
import pytest
from femnist_files import pictures
from hypothesis import given
from hypothesis import strategies as st

from fedgs.data.femnist.form import (
    CLASSES,
    LABEL_OF_HEX,
    check_labels,
    check_polarity,
    partition_attribute,
    partition_of,
    repeats,
    to_uint8,
)
from fedgs.errors import DataError, InputFileError


def test_class_folders_are_named_by_their_character() -> None:
    expected = {"30": 0, "39": 9, "41": 10, "5a": 35, "61": 36, "7a": 61, "4a": 19}
    assert {code: LABEL_OF_HEX[code] for code in expected} == expected
    assert [chr(int(code, 16)) for code in LABEL_OF_HEX] == list(CLASSES)
    assert len(CLASSES) == 62


@pytest.mark.parametrize(
    ("writer", "partition"),
    [
        *[("f0000_14", 0), ("f0499_00", 0), ("f0500_00", 1), ("f1499_10", 2), ("f2099_01", 3), ("f2100_01", 4)],
        *[("f3100_01", 6), ("f4099_01", 7), ("f2600_01", -1), ("7", -1)],
    ],
)
def test_partition_by_form_number(writer: str, partition: int) -> None:
    assert partition_of(writer) == partition


def test_what_the_source_says_of_a_partition_comes_before_the_form_number() -> None:
    assert partition_attribute(["f0000_14", "f2100_01"], {"f0000_14": 7})["hsf"].tolist() == [7, 4]
    assert partition_attribute(["a", "b"]) == {}


def test_uint8_is_exactly_the_value_that_was_divided() -> None:
    values = np.arange(256)
    assert np.array_equal(to_uint8(values / 255, "x"), values)
    assert np.array_equal(to_uint8((values / 255).astype(np.float32), "x"), values)


@pytest.mark.parametrize("bad", [-0.4242, 2.8215, np.nan])
def test_normalised_pixels_are_refused(bad: float) -> None:
    with pytest.raises(InputFileError, match=r"a.json: pixels must lie in 0..1"):
        to_uint8(np.array([0.5, bad]), "a.json")


@pytest.mark.parametrize("bad", [-1, 62])
def test_labels_outside_are_refused(bad: int) -> None:
    with pytest.raises(InputFileError, match=f"a.json: label {bad} of sample 1 "):
        check_labels(np.array([0, bad]), "a.json")


def test_polarity() -> None:
    images = pictures(10, "polarity")
    check_polarity(images, "a")
    with pytest.raises(DataError, match=r"a: the images are white on black .*--invert"):
        check_polarity(255 - images, "a")
    with pytest.raises(DataError, match="not FEMNIST images"):
        check_polarity(np.full((4, 28, 28), 140, np.uint8), "a")
    with pytest.raises(DataError, match="not one image"):
        check_polarity(images[:0], "a")


def test_a_copy_behind_its_original_is_marked() -> None:
    x = pictures(3, "copies")
    assert repeats(x[[0, 0, 1, 2]], np.uint8([5, 5, 5, 5])).tolist() == [False, True, False, False]


def test_the_same_picture_with_another_label_is_no_copy() -> None:
    assert not repeats(pictures(1, "copies")[[0, 0]], np.uint8([5, 6])).any()


def test_of_a_pair_across_the_split_the_training_one_stays() -> None:
    x = pictures(3, "copies")[[0, 1, 0, 2]]
    y = np.uint8([5, 5, 5, 5])
    # samples 0 and 2 are the pair, in whatever order the split lists them
    assert repeats(x, y, np.array([False, False, True, True])).tolist() == [False, False, True, False]
    assert repeats(x, y, np.array([True, True, False, False])).tolist() == [True, False, False, False]


def test_the_last_test_sample_of_a_writer_stays() -> None:
    x = pictures(2, "copies")[[0, 1, 0]]
    y = np.uint8([5, 5, 5])
    assert repeats(x, y, np.array([False, False, True])).tolist() == [True, False, False]
    assert repeats(x[[0, 2]], y[:2], np.array([False, True])).tolist() == [
        False,
        True,
    ]  # nothing would be left to learn


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), max_size=12))
def test_what_is_left_has_no_repeats_and_no_leak(samples: list[tuple[int, int, bool]]) -> None:
    x = pictures(4, "property")[[picture for picture, _, _ in samples]]
    y = np.array([label for _, label, _ in samples], np.uint8)
    test = np.array([is_test for _, _, is_test in samples], np.bool_)
    kept = np.flatnonzero(~repeats(x, y, test))
    content = [samples[index][:2] for index in kept]
    assert sorted(content) == sorted({sample[:2] for sample in samples})
