"""Named streams: the same name the same numbers, another name other numbers, nothing in between."""

import subprocess
import sys
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgs import rng

words = st.text(st.characters(codec="utf-8", exclude_characters="\x1f"), max_size=8)
names = st.lists(words | st.integers(-(2**70), 2**70), max_size=4).map(tuple)


@given(st.integers(0, 2**70), names)
def test_the_same_name_is_the_same_stream(seed: int, name: tuple) -> None:
    assert np.array_equal(rng.stream(seed, *name).random(5), rng.stream(seed, *name).random(5))
    assert 0 <= rng.key(seed, *name) < 2**64


@given(names, names)
def test_another_name_is_another_stream(one: tuple, other: tuple) -> None:
    assert (rng.key(0, *one) == rng.key(0, *other)) == (one == other)


def test_text_and_numbers_and_borders_matter() -> None:
    keys = [rng.key(0), rng.key(0, "1"), rng.key(0, 1), rng.key(0, "a", "b"), rng.key(0, "ab"), rng.key(1, "ab")]
    assert len(set(keys)) == len(keys)
    assert rng.key(0, np.int64(7)) == rng.key(0, 7)


def test_parts_that_would_lie_are_refused() -> None:
    with pytest.raises(TypeError):
        rng.key(0, 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        rng.key(0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="separates"):
        rng.key(0, "a\x1fb")


def test_a_fresh_process_draws_the_same() -> None:
    code = "from fedgs import rng; print(rng.key(3, 'a', 1), rng.stream(3, 'a', 1).integers(1 << 60))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [int(word) for word in printed] == [rng.key(3, "a", 1), rng.stream(3, "a", 1).integers(1 << 60)]


def test_streams_leave_the_global_generator_alone() -> None:
    np.random.seed(1)  # noqa: NPY002
    before = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    rng.stream(0, "x").random(100)
    assert np.random.random() == before  # noqa: NPY002


def test_one_generator_restarted_gives_the_same_streams() -> None:
    restarts = rng.Restarts()
    for name in (("a", 1), ("a", 2), ("b",), ("a", 1)):
        again = restarts.stream(7, *name)
        fresh = rng.stream(7, *name)
        assert again.random(5).tolist() == fresh.random(5).tolist()
        # Half a word left over by a 32-bit draw must not reach the next stream.
        assert (
            again.integers(100, size=3, dtype=np.int32).tolist() == fresh.integers(100, size=3, dtype=np.int32).tolist()
        )
        assert again.permutation(35).tolist() == fresh.permutation(35).tolist()


def test_streams_are_those_of_philox_with_the_key_of_the_name() -> None:
    """Hand-worked from the definition: runs of earlier versions must stay what they were."""
    key = int.from_bytes(blake2b(b"i3\x1fspresample\x1fi0", digest_size=16).digest(), "little")
    expected = np.random.Generator(np.random.Philox(key=key))
    assert rng.stream(3, "presample", 0).random(4).tolist() == expected.random(4).tolist()
    assert (
        rng.stream(np.int64(3), "presample", np.uint8(0)).random(1)[0]
        == np.random.Generator(np.random.Philox(key=key)).random(1)[0]
    )
