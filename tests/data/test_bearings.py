"""The embedded vibration: the physics in its spectra, its three kinds of targets, and the CWRU loader."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from scipy.signal import hilbert

from fedgs.data import build_federation
from fedgs.data.bearings import CLASSES, RATE, WINDOW, Machine, draw_machine, load_bearings, synthesise
from fedgs.data.cwru import load_cwru
from fedgs.errors import DataError, InputFileError

QUIET = Machine(9, 7.94 / 39.04, 30.0, 1.0, 3000.0, 0.05, 500.0, 0.0, np.ones(3), np.eye(3))


def test_fault_frequencies_of_a_6205_by_hand() -> None:
    """At 29.95 Hz (1797 rpm) CWRU's own table has 3.5848, 5.4152, 4.7135 and 0.39828 times the shaft speed."""
    found = {name: float(value[0]) / 29.95 for name, value in QUIET.frequencies(np.array([29.95])).items()}
    assert found["outer"] == pytest.approx(3.5848, abs=2e-3)
    assert found["inner"] == pytest.approx(5.4152, abs=2e-3)
    assert found["ball"] == pytest.approx(4.7135, abs=6e-3)
    assert found["cage"] == pytest.approx(0.39828, abs=2e-4)


@pytest.mark.parametrize(("label", "defect"), [(2, "outer"), (4, "inner"), (6, "ball")])
def test_the_envelope_has_a_line_at_the_fault_frequency(label: int, defect: str) -> None:
    """The mean envelope spectrum of many windows is highest near the frequency of the defect, or a multiple of it."""
    count = 150
    draws = np.random.default_rng(3)
    speed = np.full(count, 30.0)
    signal = synthesise(QUIET, np.full(count, label), np.full(count, 1.0), speed, np.full(count, 1.0), draws)[:, 0]
    spectrum = np.fft.rfft(signal - signal.mean(1, keepdims=True), axis=1)
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)
    spectrum[:, frequencies < 1200] = 0  # the resonance alone
    envelope = np.abs(hilbert(np.fft.irfft(spectrum, axis=1), axis=1))
    power = np.mean(
        np.abs(np.fft.rfft((envelope - envelope.mean(1, keepdims=True)) * np.hanning(WINDOW), axis=1)), axis=0
    )
    wanted = float(QUIET.frequencies(np.array([30.0]))[defect][0])
    band = (frequencies > 60) & (frequencies < 450)
    peak = frequencies[band][np.argmax(power[band])]
    step = frequencies[1]
    assert min(abs(peak - wanted), abs(peak - 2 * wanted), abs(peak - wanted / 2)) < 1.6 * step


def test_imbalance_is_at_the_shaft_speed_and_misalignment_at_twice_it() -> None:
    count = 40
    draws = np.random.default_rng(0)
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)
    for label, times in ((10, 1), (9, 2)):
        speed = np.full(count, 35.0)
        made = synthesise(QUIET, np.full(count, label), np.full(count, 1.0), speed, np.full(count, 1.0), draws)
        power = np.abs(np.fft.rfft(made * np.hanning(WINDOW), axis=2)).mean(0)
        assert abs(frequencies[np.argmax(power[0][1:40]) + 1] - 35.0 * times) < frequencies[1]
    assert np.argmax([power[2].sum(), 0]) == 0  # along the shaft too


def test_the_set_is_reproducible_and_its_plants_differ() -> None:
    one, again = load_bearings(24, 40, 3, plants=4), load_bearings(24, 40, 3, plants=4)
    assert np.array_equal(one.inputs, again.inputs)
    assert one.inputs.dtype == np.float32
    assert one.inputs.shape[1:] == (3, WINDOW)
    assert np.isfinite(one.inputs).all()
    other = load_bearings(24, 40, 4, plants=4)
    assert not np.array_equal(one.inputs[:5], other.inputs[:5])
    assert one.attributes["plant"].tolist() == sorted(list(range(4)) * 6)
    counts = np.zeros((4, len(CLASSES)))
    np.add.at(counts, (one.attributes["plant"][one.clients], one.targets), 1)
    shares = counts / counts.sum(1, keepdims=True)
    assert np.abs(shares[0] - shares[1]).sum() > 0.2
    assert (counts.sum(0) > 0).all()
    fewer = load_bearings(8, 40, 3, plants=2)
    assert draw_machine(3, 3).speed == draw_machine(3, 3).speed
    assert len(fewer.client_names) == 8


def test_three_kinds_of_targets_of_the_same_machines() -> None:
    faults, severity, anomaly = (
        load_bearings(16, 30, 0, plants=2, kind=kind) for kind in ("faults", "severity", "anomaly")
    )
    assert faults.classes == CLASSES
    assert severity.classes == anomaly.classes == ()
    healthy = faults.targets == 0
    assert (severity.targets[healthy] == 0).all()
    light, severe = np.isin(faults.targets, (1, 3, 5, 7)), np.isin(faults.targets, (2, 4, 6, 8))
    assert severity.targets[light].max() < severity.targets[severe].min()
    assert anomaly.test is not None
    train = ~anomaly.test
    assert (anomaly.targets["anomalous"][train] == 0).all()  # healthy windows alone to train on
    assert anomaly.targets["anomalous"][anomaly.test].mean() > 0.2
    assert set(np.unique(anomaly.targets["mode"])) <= {0, 1, 2, 3}
    federation = build_federation(anomaly, 2)
    assert not np.isin(federation.train.flat, np.flatnonzero(federation.targets["anomalous"])).any()


def test_sets_that_cannot_be() -> None:
    with pytest.raises(DataError, match="kind='wear'"):
        load_bearings(4, kind="wear")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="cannot be"):
        load_bearings(4, plants=9)


def recording(number: int, samples: int = 5000) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(number)
    return {
        f"X{number:03d}_DE_time": draws.normal(size=(samples, 1)),
        f"X{number:03d}_FE_time": draws.normal(size=(samples, 1)),
        f"X{number:03d}RPM": np.array([[1797]]),
    }


def test_recordings_of_cwru(tmp_path: Path) -> None:
    for number in (97, 98, 105, 106, 234):
        (tmp_path / "mats").mkdir(exist_ok=True)
        savemat(tmp_path / "mats" / f"{number}.mat", recording(number))
    savemat(tmp_path / "notes.mat", {"a": 1})
    found = load_cwru(tmp_path, devices_per_load=2)
    assert found.classes == ("normal", "inner race 0.007", "outer race 0.021")
    assert found.inputs.shape == (5 * 4, 2, 1024)
    assert found.client_names == ("load-0-0", "load-0-1", "load-1-0", "load-1-1")
    assert np.bincount(found.targets).tolist() == [8, 8, 4]
    first = recording(97)["X097_DE_time"][:1024, 0].astype(np.float32)
    assert any(np.array_equal(window[0], first) for window in found.inputs)
    with pytest.raises(InputFileError, match="no recording of the CWRU"):
        load_cwru(tmp_path / "nothing")
    (tmp_path / "mats/99.mat").write_bytes(b"not a mat file")
    with pytest.raises(InputFileError, match=r"99\.mat: cannot be read"):
        load_cwru(tmp_path)
    savemat(tmp_path / "mats/99.mat", {"X099_DE_time": np.zeros((5000, 1))})
    with pytest.raises(InputFileError, match="has no signal X099_FE_time"):
        load_cwru(tmp_path)
