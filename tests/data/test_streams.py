import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sets import numbered

from fedgs.data import DeviceStreams, Drift, Federation, build_federation
from fedgs.data.streams import EPOCHS_PER_BLOCK
from fedgs.errors import ConfigError, DataError
from fedgs.rng import stream

SIZES = st.lists(st.integers(2, 40), min_size=1, max_size=6)


def federation_of(sizes: list[int], seed: int = 0) -> Federation:
    return build_federation(numbered(sizes, classes=4), 1, train_fraction=0.6, seed=seed)


def sequence(federation: Federation, device: int, seed: int, length: int) -> list[int]:
    """The plain definition: epochs after epochs, each in its own order."""
    samples, result, block = federation.train_indices(device), [], 0
    while len(result) < length:
        generator = stream(seed, "stream", federation.device_names[device], block)
        for row in generator.permuted(np.tile(samples, (EPOCHS_PER_BLOCK, 1)), axis=1):
            result.extend(int(sample) for sample in row)
        block += 1
    return result[:length]


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, batch_size=st.integers(1, 50), seed=st.integers(0, 99), data=st.data())
def test_sticky_hands_out_the_plain_sequence(sizes: list[int], batch_size: int, seed: int, data: st.DataObject) -> None:
    federation = federation_of(sizes)
    streams = DeviceStreams(federation, batch_size, seed)
    seen: list[list[int]] = [[] for _ in sizes]
    for _ in range(12):
        selected = data.draw(st.lists(st.integers(0, len(sizes) - 1), unique=True))
        waiting = [device for device in range(len(sizes)) if device not in selected]
        kept = streams.next_indices(waiting)
        taken = streams.take(selected)
        assert taken.shape == (len(selected), batch_size)
        assert streams.next_indices(waiting).tolist() == kept.tolist()
        for device, batch in zip(selected, taken, strict=True):
            seen[device].extend(batch.tolist())
    for device, samples in enumerate(seen):
        assert samples == sequence(federation, device, seed, len(samples))
        assert streams.samples_used[device] == len(samples)
        assert streams.epochs[device] == len(samples) // len(federation.train_indices(device))
    assert not streams.samples_lost.any()


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, batch_size=st.integers(1, 30), seed=st.integers(0, 99))
def test_no_sample_twice_within_an_epoch(sizes: list[int], batch_size: int, seed: int) -> None:
    federation = federation_of(sizes)
    streams = DeviceStreams(federation, batch_size, seed, "fresh")
    everyone = np.arange(len(sizes))
    handed = np.concatenate([streams.take(everyone) for _ in range(60)], axis=1)
    for device, samples in enumerate(handed):
        mine = federation.train_indices(device)
        epochs = [samples[first : first + len(mine)] for first in range(0, len(samples), len(mine))]
        assert all(sorted(epoch) == mine.tolist() for epoch in epochs[:-1])
        assert len(set(epochs[-1])) == len(epochs[-1])
        if len(mine) > 5:
            assert any(not np.array_equal(one, other) for one, other in pairwise(epochs[:-1])) or len(epochs) < 3


@settings(max_examples=40, deadline=None)
@given(
    sizes=SIZES,
    batch_size=st.integers(1, 30),
    mode=st.sampled_from(["sticky", "fresh", "buffer"]),
    drift=st.sampled_from([None, Drift("sudden", start=2), Drift("recurring", start=1, length=2, spread=3)]),
    data=st.data(),
)
def test_counts_are_those_of_the_next_batch(
    sizes: list[int], batch_size: int, mode: str, drift: Drift | None, data: st.DataObject
) -> None:
    federation = federation_of(sizes)
    streams = DeviceStreams(federation, batch_size, 3, mode, drift=drift)
    for _ in range(6):
        indices = streams.next_indices()
        assert indices.shape == (len(sizes), batch_size)
        for device, batch in enumerate(indices):
            expected = Counter(federation.labels[batch].tolist())
            assert streams.counts[device].tolist() == [expected[label] for label in range(4)]
            assert set(batch) <= set(federation.train_indices(device))
        streams.advance(data.draw(st.lists(st.integers(0, len(sizes) - 1), unique=True)))
    assert streams.counts.sum(axis=1).tolist() == [batch_size] * len(sizes)


@settings(max_examples=40, deadline=None)
@given(
    sizes=SIZES,
    batch_size=st.integers(1, 30),
    mode=st.sampled_from(["sticky", "fresh", "buffer"]),
    drifting=st.booleans(),
    before=st.integers(0, 40),
)
def test_resume_continues_the_same_stream(
    sizes: list[int], batch_size: int, mode: str, drifting: bool, before: int
) -> None:
    federation = federation_of(sizes)
    drift = Drift("gradual", start=5, length=20) if drifting else None
    schedule = np.random.default_rng(before)
    streams = DeviceStreams(federation, batch_size, 1, mode, drift=drift)
    for _ in range(before):
        streams.advance(np.flatnonzero(schedule.random(len(sizes)) < 0.5))
    state = json.loads(json.dumps(streams.state_dict()))
    resumed = DeviceStreams(federation, batch_size, 1, mode, drift=drift)
    resumed.load_state(state)
    for _ in range(10):
        selected = np.flatnonzero(schedule.random(len(sizes)) < 0.5)
        assert resumed.counts.tolist() == streams.counts.tolist()
        assert resumed.take(selected).tolist() == streams.take(selected).tolist()
    assert resumed.state_dict() == streams.state_dict()


@settings(max_examples=30, deadline=None)
@given(others=SIZES, drifting=st.booleans(), data=st.data())
def test_a_schedule_does_not_depend_on_the_others(others: list[int], drifting: bool, data: st.DataObject) -> None:
    drift = Drift("gradual", start=1, length=4, spread=2) if drifting else None
    alone = DeviceStreams(federation_of([17]), 8, 5, drift=drift)
    crowd = DeviceStreams(federation_of([17, *others]), 8, 5, drift=drift)
    # The first client's samples are the same in both sets, but its labels must be too for drift to agree.
    first, second = alone.federation, crowd.federation
    assert first.train_labels(0).tolist() == second.train_labels(0).tolist()
    for _ in range(15):
        chosen = data.draw(st.booleans())
        noise = data.draw(st.lists(st.integers(1, len(others)), unique=True))
        assert alone.next_indices([0]).tolist() == crowd.next_indices([0]).tolist()
        alone.advance([0] if chosen else [])
        crowd.advance([0, *noise] if chosen else noise)


def test_fresh_moves_everyone_and_counts_what_is_lost() -> None:
    federation = federation_of([20, 20])
    streams = DeviceStreams(federation, 4, 0, "fresh")
    streams.advance([0])
    streams.advance([])
    assert streams.iteration == 2
    assert streams.samples_used.tolist() == [4, 0]
    assert streams.samples_lost.tolist() == [4, 8]
    assert streams.next_indices([1])[0].tolist() == sequence(federation, 1, 0, 12)[8:]


def test_buffer_by_hand() -> None:
    # Batches of 4, room for 6, 3 samples arrive at each iteration; the numbers are places in the sequence.
    federation = federation_of([40, 40, 40])
    streams = DeviceStreams(federation, 4, 0, "buffer", capacity=6, arrival=3)

    def places() -> list[int]:
        rows = [sequence(federation, device, 0, 40) for device in range(3)]
        return [rows[device].index(int(batch[0])) for device, batch in enumerate(streams.next_indices())]

    assert places() == [0, 0, 0]
    streams.advance([0])  # device 0 holds 4..8, the others lost 0..2
    assert places() == [4, 3, 3]
    assert streams.ready.all()
    streams.advance([0])  # device 0 holds 8..11, the others 6..11
    assert places() == [8, 6, 6]
    streams.advance([0, 1])  # device 0 holds 12..14: less than a batch
    assert streams.ready.tolist() == [False, True, True]
    assert streams.counts[0].sum() == 0
    with pytest.raises(DataError, match="'w000' has less than a batch in its buffer"):
        streams.next_indices()  # what has not arrived is not shown
    assert streams.next_indices([1, 2]).shape == (2, 4)
    assert streams.samples_lost.tolist() == [0, 6, 9]
    with pytest.raises(DataError, match="'w000' has less than a batch in its buffer"):
        streams.advance([0])
    streams.advance([])
    assert streams.ready.all()
    assert places() == [12, 12, 12]


def test_wrong_use() -> None:
    federation = federation_of([20, 20])
    streams = DeviceStreams(federation, 4)
    for use, devices, message in (
        (streams.advance, [1, 1], "selected twice"),
        (streams.advance, [2], "there is no device 2; they are numbered 0 to 1"),
        (streams.next_indices, [-1], "no device -1"),
        (streams.take, [-1, 1], "no device -1"),
        (streams.advance, np.array([True, False]), "list of their numbers"),
    ):
        with pytest.raises(DataError, match=message):
            use(devices)  # type: ignore[operator]
    assert streams.iteration == 0
    for other in (
        DeviceStreams(federation, 5),
        DeviceStreams(federation, 4, 1),
        DeviceStreams(federation, 4, 0, "fresh"),
        DeviceStreams(federation, 4, 0, drift=Drift("sudden")),
        DeviceStreams(federation_of([20, 21]), 4),
    ):
        with pytest.raises(DataError, match="resume with the settings"):
            other.load_state(streams.state_dict())
    with pytest.raises(ValueError, match="read-only"):
        streams.counts[0, 0] = 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "drift"}, "no stream mode 'drift'; choose one of sticky, fresh, buffer"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"capacity": 9}, "belong to stream mode 'buffer'"),
        ({"mode": "buffer", "capacity": 3}, "cannot serve batches of 4"),
        ({"mode": "buffer", "arrival": 0}, "cannot serve batches of 4"),
        ({"batch_size": 4.0}, "batch_size is 4.0; it must be a whole number"),
        ({"mode": "buffer", "capacity": 9.5}, "capacity is 9.5; it must be a whole number"),
        ({"mode": "buffer", "arrival": float("inf")}, "arrival is inf; it must be a finite number"),
    ],
)
def test_wrong_settings(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeviceStreams(federation_of([20]), **{"batch_size": 4} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("arrival", "iterations", "came"), [(0.29, 100, 29), (1 / 3, 9, 3), (2.5, 3, 7)])
def test_arrivals_are_counted_exactly(arrival: float, iterations: int, came: int) -> None:
    streams = DeviceStreams(federation_of([40]), 4, 0, "buffer", capacity=4, arrival=arrival)
    for _ in range(iterations):
        streams.advance([])
    assert streams.samples_lost.tolist() == [came]


@pytest.mark.parametrize(
    "change",
    [
        {"samples_used": [0]},
        {"samples_used": [8, 0]},
        {"position": [-4, 0], "samples_used": [-4, 0]},
        {"iteration": -1},
        {"iteration": None},
        {"position": "far"},
    ],
)
def test_a_broken_state_is_refused(change: dict[str, object]) -> None:
    streams = DeviceStreams(federation_of([20, 20]), 4)
    for state in (streams.state_dict() | change, {}):
        with pytest.raises(DataError, match="the saved stream state is broken"):
            streams.load_state(state)
    assert streams.next_indices().tolist() == DeviceStreams(federation_of([20, 20]), 4).next_indices().tolist()


def test_the_same_drift_written_differently_is_the_same_stream() -> None:
    state = DeviceStreams(federation_of([20]), 4, drift=Drift("sudden", start=10)).state_dict()
    DeviceStreams(federation_of([20]), 4, drift=Drift("sudden", start=np.float64(10.0))).load_state(state)
