"""The reference without skew: what stays, and what is drawn anew."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from fedgs.data import DataSet, build_federation
from reproduction.experiments.selection_study import deal_out, without_skew


def pile(samples: int = 1200, writers: int = 12) -> DataSet:
    """Return images without content; each of the writers has a class of its own."""
    owners = np.arange(samples) * writers // samples
    return DataSet(
        "pile", np.zeros((samples, 2, 2), np.uint8), (owners % 4).astype(np.uint8), owners.astype(np.int32),
        tuple(f"writer-{n:02}" for n in range(writers)), ("a", "b", "c", "d"), {},
    )  # fmt: skip


@given(some.integers(0, 2**31), some.integers(1, 4), some.floats(0.5, 0.9))
def test_devices_keep_all_but_which_train_images_are_theirs(seed: int, factories: int, share: float) -> None:
    skewed = build_federation(pile(), factories, train_fraction=share, seed=seed)
    dealt = without_skew(skewed, seed)
    assert (dealt.train.offsets == skewed.train.offsets).all()
    assert sorted(dealt.train.flat) == sorted(skewed.train.flat)
    assert (dealt.train.flat != skewed.train.flat).any()
    assert dealt.test is skewed.test
    assert (dealt.factory_of == skewed.factory_of).all()
    assert dealt.device_names == skewed.device_names
    assert (dealt.p_real() == skewed.p_real()).all()
    assert (without_skew(skewed, seed).train.flat == dealt.train.flat).all()
    assert (without_skew(skewed, seed + 1).train.flat != dealt.train.flat).any()


def test_devices_of_one_class_come_to_have_all() -> None:
    skewed = build_federation(pile(), 2, train_fraction=0.5, seed=0)
    assert ((skewed.train_counts > 0).sum(axis=1) == 1).all()
    mixes = without_skew(skewed, 0).train_counts / 50
    # 12.5 of each class on average; a class of 50 drawn from 600 has a standard deviation of 2.9.
    assert np.abs(mixes - 0.25).max() < 5 * 2.9 / 50


def test_the_study_deals_it_out_by_name() -> None:
    data = pile()
    skewed, dealt = (deal_out(data, key, 3, 12, 2, 0.8) for key in ("alpha-0.1", "alpha-0.1-unskewed"))
    assert dealt.fingerprint() == without_skew(skewed, 3).fingerprint() != skewed.fingerprint()
