import numpy as np
import pytest
from small_sets import numbered

from fedgs.data import DeviceStreams, Drift, build_federation
from fedgs.errors import ConfigError

TIMES = np.array([0.0, 9.9, 10.0, 12.0, 14.0, 15.0, 20.0, 25.0])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sudden", [0, 0, 1, 1, 1, 1, 1, 1]),
        ("gradual", [0, 0, 0, 0.4, 0.8, 1, 1, 1]),
        ("recurring", [0, 0, 1, 1, 1, 0, 1, 0]),
    ],
)
def test_schedules_by_hand(kind: str, expected: list[float]) -> None:
    np.testing.assert_allclose(Drift(kind, start=10, length=5).weight(TIMES), expected, atol=1e-12)  # type: ignore[arg-type]


def test_a_device_draws_from_the_distribution_it_announces() -> None:
    federation = build_federation(numbered([400, 400], classes=6), 1)
    streams = DeviceStreams(federation, 50, 2, "fresh", drift=Drift("sudden", start=40, alpha=0.5))
    own = streams.distributions()
    plain = DeviceStreams(federation, 50, 2, "fresh")
    for _ in range(40):
        # Until the drift begins the stream is the one without drift, batch for batch.
        assert streams.next_indices().tolist() == plain.next_indices().tolist()
        streams.advance([])
        plain.advance([])
    target = streams.distributions()
    assert np.abs(target - own).sum(axis=1).min() > 0.2
    np.testing.assert_allclose(target.sum(axis=1), 1)
    drawn = np.zeros((2, 6))
    for _ in range(200):
        drawn += streams.counts
        streams.advance([])
    # 10,000 draws a device: a share's standard error is at most 0.005.
    np.testing.assert_allclose(drawn / drawn.sum(axis=1, keepdims=True), target, atol=0.02)


def test_gradual_drift_is_halfway_in_the_middle() -> None:
    federation = build_federation(numbered([100], classes=6), 1)
    streams = DeviceStreams(federation, 10, 0, drift=Drift("gradual", start=0, length=20))
    own = streams.distributions()
    for _ in range(10):
        streams.advance([0])
    middle = streams.distributions()
    for _ in range(10):
        streams.advance([0])
    np.testing.assert_allclose(middle, (own + streams.distributions()) / 2)


def test_target_keeps_to_the_classes_a_device_owns() -> None:
    counts = np.array([3, 0, 5, 0, 1])
    target = Drift("sudden").target(7, "w", counts)
    assert target[[1, 3]].tolist() == [0, 0]
    np.testing.assert_allclose(target.sum(), 1)
    assert target.tolist() == Drift("sudden").target(7, "w", counts).tolist()
    assert target.tolist() != Drift("sudden").target(8, "w", counts).tolist()


def test_spread_delays_each_device_by_its_own_time() -> None:
    drift = Drift("sudden", spread=10)
    delays = [drift.delay(0, f"d{number}") for number in range(50)]
    assert 0 <= min(delays) < 2 < 8 < max(delays) < 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "slow"}, "no drift 'slow'; choose one of sudden, gradual, recurring"),
        ({"start": -1}, "drift start is -1"),
        ({"length": 0}, "drift length is 0"),
        ({"spread": float("nan")}, "drift spread is nan"),
        ({"alpha": 0}, "drift alpha is 0"),
        ({"alpha": float("inf")}, "drift alpha is inf; it must be finite"),
        ({"start": "soon"}, "drift start is 'soon'; it must be a number"),
    ],
)
def test_wrong_settings(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Drift(**{"kind": "sudden"} | options)  # type: ignore[arg-type]
