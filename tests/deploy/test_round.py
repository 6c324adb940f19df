"""A round over the wire, number by number: averages, half the bytes, noise, plain text on the loopback."""

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgs.deploy.agent import Agent
from fedgs.deploy.identity import Identity
from fedgs.deploy.rounds import averaged
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.station import Answer
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.trainers import LinearTrainer
from tests.deploy.devices import Noise, good_devices, run_round
from tests.deploy.processes import BATCH, CLASSES, SHAPE, SHAPES, StationHandle, named_task, park_in, wait_for

TWO = Shapes((("w", (2,)),))


def test_an_internal_synchronisation_by_hand() -> None:
    """ω = (1, 1); 10 samples moved it by (4, 0), 30 by (0, −4): (1 + 1/4·4, 1 − 3/4·4) = (2, −2)."""
    answers = [
        Answer(np.array([4, 0], np.float32), np.array([3, 7]), 1.0),
        Answer(np.array([0, -4], np.float32), np.array([30, 0]), 1.0),
    ]
    assert averaged(np.ones(2, np.float32), answers, TWO).tolist() == [2.0, -2.0]


def test_a_synchronisation_is_no_longer_than_it_may_be() -> None:
    """It would move (1, 1) by (3, −4), which has the length 5; half of that is (1.5, −2)."""
    answers = [Answer(np.array([3, -4], np.float32), np.array([5]), 1.0)]
    assert averaged(np.ones(2, np.float32), answers, TWO, 2.5).tolist() == [2.5, -1.0]
    assert averaged(np.ones(2, np.float32), answers, TWO, 5.0).tolist() == [4.0, -3.0]
    assert averaged(np.ones(2, np.float32), answers, TWO, 0.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("wire", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-3), ("float16", 3e-4)])
def test_a_round_is_sgd_on_the_batches_of_the_team(tmp_path: Path, wire: str, tolerance: float) -> None:
    """All three devices in each of four iterations, so that plain SGD in this process must give the same weights."""
    task = named_task(wire=wire)

    async def run() -> None:
        async with good_devices(park, station, "a", "b", "c"):
            result = await run_round(station, 1, 4, task=task, class_wise=True)
            trainer = LinearTrainer(CLASSES, SHAPE)
            streams = [Noise(number).batches(BATCH, CLASSES) for number in range(3)]
            weights, seen = np.zeros(SHAPES.size, np.float32), np.zeros(CLASSES, np.int64)
            for _ in range(4):
                batches = [batch for batch in map(next, streams) if batch is not None]
                seen += sum(np.bincount(batch.targets, minlength=CLASSES) for batch in batches)
                weights = weights + np.mean([trainer.step(weights, batch, 0.1)[0] for batch in batches], axis=0)
            np.testing.assert_allclose(result.weights, weights, atol=tolerance)
            assert result.samples == 4 * 3 * BATCH
            assert result.seen.tolist() == seen.tolist()
            assert not len((await run_round(station, 2, 1, task=task)).seen)  # nobody asked

    with park_in(tmp_path) as park:
        station = park.station("s1", "--min-devices", "3")
        asyncio.run(run())


def test_plain_text_on_the_loopback_and_noise_on_the_counts(tmp_path: Path) -> None:
    """Two devices, one with noise: they train all the same, and the station's estimate shows that counts were noisy."""

    async def run() -> None:
        settings = DeviceSettings(count_noise=3.0, noise_seed=1)
        agents = [
            Agent(Identity("park", "device", name), station.devices, Noise(0), None, chosen)
            for name, chosen in (("plain", DeviceSettings()), ("noisy", settings))
        ]
        tasks = [asyncio.ensure_future(agent.run()) for agent in agents]
        await asyncio.to_thread(station.wait_ready, 2)
        both = await run_round(station, 1, 5, pick=2)
        assert (both.iterations, both.events) == (5, {})
        tasks[0].cancel()
        await asyncio.to_thread(wait_for, lambda: station.states()["plain"] == "offline")
        noisy = await run_round(station, 2, 1, pick=2)
        counts = np.zeros(CLASSES)
        for batch, _ in zip(Noise(0).batches(BATCH, CLASSES), range(7), strict=False):
            assert batch is not None
            counts += np.bincount(batch.targets, minlength=CLASSES)
        assert not np.allclose(noisy.announced, counts / counts.sum(), atol=0.01)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with park_in(tmp_path) as park:
        process = park.start(
            "s1", "station", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--state", "s1", "--insecure",
            "--gather", "1",
        )  # fmt: skip
        addresses = tmp_path / "s1" / "addresses.txt"
        wait_for(addresses.exists, why=park.text("s1"))
        found = dict(line.split(" ") for line in addresses.read_text().splitlines())
        station = StationHandle(park, "s1", process, found["devices"], found["top"])
        asyncio.run(run())


def test_neither_a_station_nor_a_linear_device_imports_torch() -> None:
    code = (
        "import sys; import fedgs.deploy.station_process, fedgs.deploy.device_process, fedgs.deploy.sources;"
        "from fedgs.deploy.trainers import make_trainer; from fedgs.deploy.wire import Task;"
        "make_trainer(Task('r', '{\"model\": \"linear\"}', 4, '[[8, 8], \"uint8\"]', 5));"
        "assert 'torch' not in sys.modules;"
        "assert 'fedgs.simulation' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
