"""Vibration of rolling bearings, generated from the physics: an embedded data set that is not pictures.

200 machines in 8 plants, each with three-axis windows of 1,024 samples at 12 kHz. A machine turns at a shaft speed f_r
that drifts; a defect makes an impact each time it is rolled over. With n balls of diameter d on a pitch circle D and
contact angle φ (Randall and Antoni, 2011, "Rolling element bearing diagnostics – a tutorial", Mech. Syst. Signal
Process. 25):

    outer race  BPFO = n f_r/2 (1 − d/D cos φ)          the same load at every impact
    inner race  BPFI = n f_r/2 (1 + d/D cos φ)          louder in the load zone: modulated by f_r
    ball        BSF  = D f_r/2d (1 − (d/D cos φ)²)      two impacts a turn of the ball, modulated by FTF
    cage        FTF  = f_r/2 (1 − d/D cos φ)            one impact a turn of the cage, of uneven strength

Balls slip, so intervals jitter by a per cent or two. Every impact excites a resonance of the machine, a decaying sine.
Imbalance is a strong component at f_r across the shaft, misalignment one at 2 f_r with a part along it. Beside them
there is the hum of a gear, a noise floor, and a sensor whose gains and mounting are each machine's own. Plants have
different fault mixes, and a machine sees some faults more than others: the skew that federated learning meets.

Classes: healthy; outer race, inner race, ball and cage, each light or severe; misalignment; imbalance. The same windows
serve three kinds of tasks: the class (``faults``), how severe the defect is from 0 to 1 (``severity``), and anomaly
detection (``anomaly``: healthy windows alone to train on, targets with the operating mode and a mark).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.errors import DataError
from fedgs.rng import stream

RATE, WINDOW, AXES = 12_000, 1_024, 3
BEFORE = 384
"""Samples in front of a window in which impacts may lie whose ringing is still heard in it."""
CLASSES = (
    "healthy", "outer race, light", "outer race, severe", "inner race, light", "inner race, severe", "ball, light",
    "ball, severe", "cage, light", "cage, severe", "misalignment", "imbalance",
)  # fmt: skip
KINDS = ("faults", "severity", "anomaly")
Kind = Literal["faults", "severity", "anomaly"]
MODES = 4
"""Operating modes: slow or fast, lightly or heavily loaded."""
GEOMETRY = {"6203": (8, 6.746, 28.50), "6204": (8, 7.938, 33.50), "6205": (9, 7.940, 39.04), "6206": (9, 9.525, 46.00),
            "6207": (9, 11.112, 53.50)}  # fmt: skip
"""Deep-groove ball bearings: balls, their diameter and that of the pitch circle in millimetres (nominal; φ = 0)."""


@dataclass(frozen=True)
class Machine:
    """What a machine is, beside what breaks in it."""

    balls: int
    ratio: float
    """d/D."""
    speed: float
    """Mean shaft speed f_r in hertz."""
    load: float
    """Mean load, 0 to 1."""
    resonance: float
    """In hertz."""
    damping: float
    gear: float
    """Frequency of a gear's hum in hertz."""
    noise: float
    gains: NDArray[np.float64]
    """(axes,) of the sensor."""
    mounting: NDArray[np.float64]
    """(axes, axes) how the sensor is turned."""

    def frequencies(self, shaft: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return how often each kind of defect is rolled over in a second, at these shaft speeds."""
        return {
            "outer": self.balls * shaft / 2 * (1 - self.ratio),
            "inner": self.balls * shaft / 2 * (1 + self.ratio),
            "ball": 2 * shaft / (2 * self.ratio) * (1 - self.ratio**2),
            "cage": shaft / 2 * (1 - self.ratio),
        }


def load_bearings(
    machines: int = 200, windows: int = 60, seed: int = 0, *, plants: int = 8, kind: Kind = "faults"
) -> DataSet:
    """Return the vibration of so many machines, about so many windows each.

    Args:
        machines: the clients; each plant (attribute ``plant``) has as many, or one more.
        windows: mean number of windows of a machine.
        seed: the same seed gives the same windows.
        plants: whose fault mixes differ.
        kind: ``faults``: the class; ``severity``: how severe, 0 to 1; ``anomaly``: operating mode and whether a window
            is anomalous, with anomalous ones in the test split alone.
    """
    if kind not in KINDS:
        raise DataError(f"bearings: kind={kind!r}; choose one of {', '.join(KINDS)}")
    if machines < 1 or windows < 2 or not 1 <= plants <= machines:
        raise DataError(f"bearings: {machines} machines in {plants} plants with {windows} windows each cannot be")
    mixes = [_mix(seed, plant) for plant in range(plants)]
    plant_of = np.arange(machines) * plants // machines
    made = [_windows(machine, int(plant_of[machine]), mixes[plant_of[machine]], windows, seed, kind)
            for machine in range(machines)]  # fmt: skip
    labels = np.concatenate([one["label"] for one in made])
    targets: Any = labels.astype(np.uint8)
    test = None
    if kind == "severity":
        targets = np.concatenate([one["severity"] for one in made]).astype(np.float32)
    elif kind == "anomaly":
        mode = np.concatenate([one["mode"] for one in made])
        targets = {"mode": mode.astype(np.int64), "anomalous": (labels > 0).astype(np.int64)}
        held_out = np.concatenate([one["held_out"] for one in made])
        test = (labels > 0) | held_out
    return DataSet(
        name="bearings" if kind == "faults" else f"bearings-{kind}",
        inputs=np.concatenate([one["signal"] for one in made]),
        targets=targets,
        clients=np.repeat(np.arange(machines, dtype=np.int32), [len(one["label"]) for one in made]),
        client_names=tuple(f"machine-{machine:03d}" for machine in range(machines)),
        classes=CLASSES if kind == "faults" else (),
        attributes={"plant": plant_of.astype(np.int32)},
        test=test,
    )


def _mix(seed: int, plant: int) -> NDArray[np.float64]:
    """Return how often each class occurs in a plant: a third healthy, the rest as the plant's machines break."""
    faults = stream(seed, "bearings", "plant", plant).dirichlet(np.full(len(CLASSES) - 1, 0.5))
    return np.concatenate([[1 / 3], faults * 2 / 3])


def draw_machine(machine: int, seed: int) -> Machine:
    """Return one machine of the set."""
    draws = stream(seed, "bearings", "machine", machine)
    balls, ball, pitch = GEOMETRY[sorted(GEOMETRY)[int(draws.integers(len(GEOMETRY)))]]
    turned, _ = np.linalg.qr(np.eye(AXES) + 0.35 * draws.normal(size=(AXES, AXES)))
    return Machine(
        balls=balls,
        ratio=ball / pitch,
        speed=float(draws.uniform(22, 48)),
        load=float(draws.uniform(0.3, 1.0)),
        resonance=float(draws.uniform(2_000, 4_500)),
        damping=float(draws.uniform(0.03, 0.08)),
        gear=float(draws.uniform(300, 900)),
        noise=float(draws.uniform(0.06, 0.14)),
        gains=np.exp(draws.normal(0, 0.2, AXES)),
        mounting=turned * np.sign(np.diag(turned)),
    )


def _windows(
    machine: int, plant: int, mix: NDArray[np.float64], windows: int, seed: int, kind: Kind
) -> dict[str, NDArray[Any]]:
    """Return the windows of one machine and what is known of each."""
    own = draw_machine(machine, seed)
    draws = stream(seed, "bearings", "windows", machine)
    count = max(8, int(draws.poisson(windows)))
    shares = draws.dirichlet(np.maximum(3.0 * mix, 1e-3))
    if kind == "anomaly":
        shares = np.concatenate([[0.75], 0.25 * shares[1:] / shares[1:].sum()])
    label = np.sort(draws.choice(len(CLASSES), count, p=shares))
    if kind == "anomaly":
        label[:4] = 0
    label = label[draws.permutation(count)]
    severity = _severity(label, draws)
    drift = np.cumsum(draws.normal(0, 0.004, count))
    shaft = own.speed * np.exp(np.clip(drift, -0.12, 0.12))
    load = np.clip(own.load + np.cumsum(draws.normal(0, 0.01, count)), 0.2, 1.1)
    signal = synthesise(own, label, severity, shaft, load, draws)
    mode = (shaft > 35).astype(np.int64) + 2 * (load > 0.65)
    held_out = (label == 0) & (np.cumsum(label == 0) % 5 == 0)
    return {"signal": signal, "label": label, "severity": severity, "mode": mode, "held_out": held_out}


def _severity(label: NDArray[np.int64], draws: np.random.Generator) -> NDArray[np.float64]:
    """Return how severe each defect is: 0 healthy, light below a half, severe above."""
    drawn = draws.random(len(label))
    light = (label % 2 == 1) & (label < 9)
    severity = np.where(light, 0.10 + 0.25 * drawn, 0.60 + 0.40 * drawn)
    severity[label >= 9] = 0.25 + 0.75 * drawn[label >= 9]
    severity[label == 0] = 0.0
    return severity


def synthesise(
    machine: Machine,
    label: NDArray[np.int64],
    severity: NDArray[np.float64],
    shaft: NDArray[np.float64],
    load: NDArray[np.float64],
    draws: np.random.Generator,
) -> NDArray[np.float32]:
    """Return windows (count, axes, samples) of a machine with these defects, speeds and loads."""
    count, length = len(label), BEFORE + WINDOW
    time = (np.arange(length) - BEFORE) / RATE
    impacts = np.zeros((count, length))
    rolled = machine.frequencies(shaft)
    for number, defect in enumerate(("outer", "inner", "ball", "cage")):
        for row in np.flatnonzero((label == 2 * number + 1) | (label == 2 * number + 2)):
            _add_impacts(impacts[row], defect, machine, rolled, int(row), severity[row], shaft[row], load[row], draws)
    ringing = np.exp(-machine.damping * 2 * np.pi * machine.resonance * np.arange(BEFORE) / RATE)
    ringing *= np.sin(2 * np.pi * machine.resonance * np.arange(BEFORE) / RATE)
    size = 1 << (length + BEFORE).bit_length()
    heard = np.fft.irfft(np.fft.rfft(impacts, size) * np.fft.rfft(ringing, size), size)[:, BEFORE:length]
    now = time[BEFORE:]
    phase = draws.uniform(0, 2 * np.pi, (4, count, 1))
    turn = 2 * np.pi * shaft[:, None] * now
    radial = 0.12 * np.sin(turn + phase[0])
    imbalance = np.where(label == 10, severity, 0.0)[:, None]
    misalignment = np.where(label == 9, severity, 0.0)[:, None]
    radial = radial + 0.9 * imbalance * np.sin(turn + phase[1])
    twice = np.sin(2 * turn + phase[2]) + 0.35 * np.sin(3 * turn + phase[3])
    hum = 0.15 * load[:, None] * np.sin(2 * np.pi * machine.gear * now + draws.uniform(0, 2 * np.pi, (count, 1)))
    axes = np.stack(
        [
            heard + radial + 0.45 * misalignment * twice + hum,
            0.6 * heard + 0.8 * np.roll(radial, 60, axis=1) + 0.45 * misalignment * twice + 0.7 * hum,
            0.3 * heard + 0.15 * radial + 0.8 * misalignment * twice + 0.5 * hum,
        ],
        axis=1,
    )
    axes = axes + machine.noise * draws.standard_normal(axes.shape)
    mounted = np.einsum("ij,cjt->cit", machine.mounting, axes) * machine.gains[None, :, None]
    signal: NDArray[np.float32] = mounted.astype(np.float32)
    return signal


def _add_impacts(
    impacts: NDArray[np.float64], defect: str, machine: Machine, rolled: dict[str, NDArray[np.float64]], row: int,
    severity: float, shaft: float, load: float, draws: np.random.Generator,
) -> None:  # fmt: skip
    """Write the impacts of one defect into the samples of a window, between two of them where they fall so."""
    frequency = float(rolled[defect][row])
    length = len(impacts)
    most = int(length / RATE * frequency) + 3
    intervals = np.maximum(1 / frequency * (1 + draws.normal(0, 0.015, most)), 1e-4)
    times = np.cumsum(intervals) - draws.uniform(0, 1 / frequency)
    strength = (0.45 + 1.6 * severity) * (0.7 + 0.3 * load) * (1 + 0.12 * draws.standard_normal(most))
    phase = draws.uniform(0, 2 * np.pi)
    if defect == "inner":
        strength *= np.clip(0.55 + 0.45 * np.cos(2 * np.pi * shaft * times + phase), 0.05, None)
    elif defect == "ball":
        strength *= np.clip(0.6 + 0.4 * np.cos(2 * np.pi * float(rolled["cage"][row]) * times + phase), 0.1, None)
        strength[1::2] *= 0.75  # the other race
    elif defect == "cage":
        strength *= 1.8 * draws.uniform(0.6, 1.4, most)
    places = times * RATE
    whole = np.floor(places).astype(np.int64)
    part = places - whole
    inside = (whole >= 0) & (whole + 1 < length)
    np.add.at(impacts, whole[inside], strength[inside] * (1 - part[inside]))
    np.add.at(impacts, whole[inside] + 1, strength[inside] * part[inside])
