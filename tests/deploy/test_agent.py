"""The agent by itself: how it waits, what it announces, and what it says of a source that does not fit."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgs.deploy.agent import Agent, as_counts, discrete_gaussian, noisy_counts
from fedgs.deploy.pki import Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.sources import Batch
from fedgs.errors import DataError
from fedgs.rng import stream
from tests.deploy.devices import Noise
from tests.deploy.processes import BATCH, CLASSES, SHAPE, named_task

TASK = named_task("r", batch_size=BATCH)


def agent(name: str = "a", source: object = None, **settings: float) -> Agent:
    chosen = DeviceSettings.model_validate(settings)
    return Agent(Identity("park", "device", name), "127.0.0.1:1", source or Noise(), None, chosen)  # type: ignore[arg-type]


def test_waits_grow_up_to_the_longest_and_differ_from_device_to_device() -> None:
    one, other = agent("a", first_wait=0.2, longest_wait=5.0), agent("b", first_wait=0.2, longest_wait=5.0)
    for attempt, most in ((0, 0.2), (1, 0.4), (4, 3.2), (5, 5.0), (1000, 5.0)):
        assert most / 2 <= one._wait(attempt) <= most
        assert one._wait(attempt) != other._wait(attempt)
        assert one._wait(attempt) == one._wait(attempt)


def announced(source: object, task: pb.Task = TASK, **settings: float) -> list[int]:
    async def run() -> list[int]:
        made = agent("a", source, **settings)
        await made._begin(task)
        ready = await made._next(None)
        assert ready is not None
        assert ready.batch_size == task.batch_size
        return ready.counts.tolist()

    return asyncio.run(run())


def test_what_is_announced_are_the_counts_of_the_next_batch_or_noise_around_them() -> None:
    batch = next(Noise(3).batches(BATCH, CLASSES))
    assert batch is not None
    true = np.bincount(batch.targets, minlength=CLASSES).tolist()
    assert announced(Noise(3)) == true
    assert any(announced(Noise(3), count_noise=4.0, noise_seed=seed) != true for seed in range(3))


def test_a_batch_that_is_announced_again_has_the_same_noise() -> None:
    async def run() -> list[list[int]]:
        made = agent("a", Noise(3), count_noise=4.0)
        await made._begin(TASK)
        told = [await made._next(None) for _ in range(5)]
        return [ready.counts.tolist() for ready in told if ready is not None]

    told = asyncio.run(run())
    assert len(told) == 5
    assert all(counts == told[0] for counts in told)


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        ((BATCH, 9, 9), range(BATCH), "inputs of shape [9, 9], the task has [8, 8]"),
        ((BATCH - 1, *SHAPE), range(BATCH - 1), "the source gives 4 samples"),
        ((BATCH, *SHAPE), [0, 1, 2, 3, 4], "the source gives label 4, the task has 4 classes"),
    ],
)
def test_batches_that_do_not_fit_the_task_are_named(images: tuple[int, ...], labels: object, reason: str) -> None:
    class Odd:
        def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
            yield Batch(np.zeros(images, np.uint8), np.array(list(labels)))  # type: ignore[call-overload]

    with pytest.raises(DataError) as wrong:
        announced(Odd())
    assert reason in str(wrong.value)


CLASS_NAMES = ["dent", "ok", "rust", "scratch"]


class Named:
    """A source whose classes have names; a batch has one sample of each, and zeros of the first."""

    def __init__(self, *classes: str) -> None:
        self.classes = classes

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        labels = np.zeros(size, np.int64)
        labels[: len(self.classes)] = np.arange(len(self.classes))
        while True:
            yield Batch(np.zeros((size, *SHAPE), np.uint8), labels, self.classes)


@pytest.mark.parametrize(
    ("mine", "counts"),
    [
        (("dent", "ok", "rust", "scratch"), [2, 1, 1, 1]),
        (("scratch", "ok"), [0, 1, 0, 4]),  # in another order, and two are missing
        (("0", "1", "2"), [3, 1, 1, 0]),  # numbers name nothing: they stay
        ((), [5, 0, 0, 0]),
    ],
)
def test_classes_are_those_of_the_task_by_name(mine: tuple[str, ...], counts: list[int]) -> None:
    task = named_task("r", batch_size=BATCH, class_names=CLASS_NAMES)
    assert announced(Named(*mine), task) == counts


@pytest.mark.parametrize(
    ("mine", "names", "reason"),
    [
        (
            ("OK", "dent"),
            CLASS_NAMES,
            "the class 'OK' is not one of the task's; did you mean 'ok'",
        ),
        (
            ("dent", "spot"),
            CLASS_NAMES,
            "'spot' is not one of the task's; they are dent, ok, rust",
        ),
        (("dent", "ok"), [], "the classes here have names (dent, ok), the task's have none"),
    ],
)
def test_an_unknown_class_is_refused_by_name(mine: tuple[str, ...], names: list[str], reason: str) -> None:
    with pytest.raises(DataError) as wrong:
        announced(Named(*mine), named_task("r", batch_size=BATCH, class_names=names))
    assert reason in str(wrong.value)


def test_missing_classes_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        made = agent("a", Named("ok", "dent"))
        await made._begin(named_task("r", batch_size=BATCH, class_names=CLASS_NAMES))
        for _ in range(3):
            await made._next(None)
            assert made._work is not None
            made._work.batch = None

    with caplog.at_level("INFO"):
        asyncio.run(run())
    said = [record.getMessage() for record in caplog.records if "missing here" in record.getMessage()]
    assert len(said) == 1


def test_a_new_run_goes_on_with_the_same_stream() -> None:
    """Another run of the same shape takes the batch that is waiting; another batch size begins the stream anew."""

    async def run() -> None:
        made = agent()
        await made._begin(TASK)
        first = await made._next(None)
        await made._begin(named_task("other", batch_size=BATCH))
        again = await made._next(None)
        await made._begin(named_task("other", batch_size=BATCH + 1))
        larger = await made._next(None)
        assert first is not None
        assert again is not None
        assert larger is not None
        assert again.counts.tolist() == first.counts.tolist()
        assert first.batch_id < again.batch_id < larger.batch_id
        assert larger.batch_size == BATCH + 1

    asyncio.run(run())


def test_a_source_that_failed_once_is_opened_again() -> None:
    class Flaky:
        opened = 0

        def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
            self.opened += 1
            if self.opened == 1:
                raise OSError("the camera is unplugged")
            if self.opened == 2:
                return
            yield from Noise().batches(size, classes)

    async def run() -> None:
        made = agent("a", source)
        for failure, reason in ((OSError, "unplugged"), (DataError, "has ended")):
            await made._begin(TASK)
            with pytest.raises(failure, match=reason):
                await made._next(None)
        await made._begin(TASK)
        assert await made._next(None) is not None

    source = Flaky()
    asyncio.run(run())
    assert source.opened == 3


def test_a_task_with_smaller_batches_than_allowed_is_refused() -> None:
    assert announced(Noise(), min_batch=BATCH)
    with pytest.raises(DataError, match=f"batches of {BATCH}; --min-batch is {BATCH + 1}"):
        announced(Noise(), min_batch=BATCH + 1)


def test_the_noise_is_a_discrete_gaussian() -> None:
    drawn = discrete_gaussian(1.5, 200_000, stream(0, "test"))
    values = np.arange(-4, 5)
    weights = np.exp(-(values**2) / (2 * 1.5**2))
    everything = np.exp(-(np.arange(-40, 41) ** 2) / (2 * 1.5**2)).sum()
    for value, weight in zip(values, weights, strict=True):
        assert np.mean(drawn == value) == pytest.approx(weight / everything, abs=0.004)


def test_counts_are_made_by_largest_remainders() -> None:
    assert as_counts(np.array([3, -1, 3]), 5).tolist() == [3, 0, 2]
    assert as_counts(np.array([-2, -1, 0]), 5).tolist() == [2, 2, 1]  # nothing is left: as even as can be
    assert as_counts(np.array([2, 0, 3]), 5).tolist() == [2, 0, 3]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    st.floats(0.2, 20),
    st.integers(0, 2**63),
    st.integers(0, 10**9),
)
def test_noisy_counts_are_counts_of_the_same_batch_size(
    counts: list[int], sigma: float, seed: int, batch_id: int
) -> None:
    true = np.array(counts)
    noisy = noisy_counts(true, sigma, seed, batch_id)
    assert noisy.min() >= 0
    assert noisy.sum() == true.sum()
    assert (noisy == noisy_counts(true, sigma, seed, batch_id)).all()
