import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgs.deploy.tensors import Shapes, from_bytes, norm, to_bytes

SHAPES = Shapes((("a", (2, 3)), ("b", ())))


def test_weights_become_a_vector_and_come_back() -> None:
    weights = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(9.0)}
    flat = SHAPES.flatten(weights)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 9]
    views = SHAPES.views(flat)
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert views["b"] == 9
    assert Shapes.of(weights) == SHAPES


def test_bytes_are_little_endian_in_the_order_of_the_vector() -> None:
    flat = np.array([1.0, -2.0], np.float32)
    assert bytes(to_bytes(flat, "float32")) == b"\x00\x00\x80\x3f\x00\x00\x00\xc0"
    assert bytes(to_bytes(flat, "bfloat16")) == b"\x80\x3f\x00\xc0"
    assert bytes(to_bytes(flat, "float16")) == b"\x00\x3c\x00\xc0"


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even() -> None:
    # 1 + 2^-8 lies between 1 and 1 + 2^-7: the even one is 1; 1 + 3·2^-8 goes up to 1 + 2^-6.
    flat = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
    assert from_bytes(to_bytes(flat, "bfloat16"), "bfloat16").tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@given(arrays(np.float32, st.integers(1, 40), elements=finite))
def test_half_the_bytes_are_those_of_torch(flat: np.ndarray) -> None:  # type: ignore[type-arg]
    for wire, kind in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        expected = torch.from_numpy(flat).to(kind).float().numpy()
        np.testing.assert_array_equal(from_bytes(to_bytes(flat, wire), wire), expected)
    np.testing.assert_array_equal(from_bytes(to_bytes(flat, "float32"), "float32"), flat)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
def test_a_number_that_is_not_finite_is_seen_after_the_journey(bad: float, wire: str) -> None:
    flat = np.ones(1000, np.float32)
    flat[700] = bad
    assert not np.isfinite(norm(from_bytes(to_bytes(flat, wire), wire)))
    assert norm(np.array([3, 4], np.float32)) == 5


def test_models_that_differ_are_told_apart() -> None:
    assert SHAPES.difference(SHAPES) == ""
    assert SHAPES.difference(Shapes((("a", (2, 3)),))) == "lacks 'b'"
    assert "has 'c', which" in SHAPES.difference(Shapes((*SHAPES.tensors, ("c", (1,)))))
    assert "of shape (3, 2)" in SHAPES.difference(Shapes((("a", (3, 2)), ("b", ()))))
    assert SHAPES.difference(Shapes((("b", ()), ("a", (2, 3))))) == "has its tensors in another order"
