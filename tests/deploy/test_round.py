"""A round over the wire, number by number: averages, half the bytes, noise, plain text on the loopback."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest

from fedgs.deploy.agent import Agent
from fedgs.deploy.identity import Identity
from fedgs.deploy.rounds import averaged
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.station import Answer
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.trainers import LinearTrainer
from tests.deploy.devices import Noise, counts_of, drawn, good_devices, run_round, running
from tests.deploy.processes import BATCH, CLASSES, SHAPE, SHAPES, Park, named_task, wait_for

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
async def test_a_round_is_sgd_on_the_batches_of_the_team(park: Park, wire: str, tolerance: float) -> None:
    """All three devices in each of four iterations, so that plain SGD in this process must give the same weights."""
    task = named_task(wire=wire)
    station = park.station("s1", "--min-devices", "3")
    async with good_devices(park, station, "a", "b", "c"):
        result = await run_round(station, 1, 4, task=task, class_wise=True)
        assert not len((await run_round(station, 2, 1, task=task)).seen)  # nobody asked
    trainer = LinearTrainer(CLASSES, SHAPE)
    weights, seen = np.zeros(SHAPES.size, np.float32), np.zeros(CLASSES, np.int64)
    for batches in drawn(range(3), 4):
        seen += np.sum(counts_of(batches), axis=0)
        weights = weights + np.mean([trainer.step(weights, batch, 0.1)[0] for batch in batches], axis=0)
    np.testing.assert_allclose(result.weights, weights, atol=tolerance)
    assert result.samples == 4 * 3 * BATCH
    assert result.seen.tolist() == seen.tolist()


async def test_plain_text_on_the_loopback_and_noise_on_the_counts(park: Park) -> None:
    """Two devices, one with noise: they train all the same, and the station's estimate shows that counts were noisy."""
    station = park.station("s1", "--gather", "1", "--insecure")
    plain, noisy = (
        Agent(Identity("park", "device", name), station.devices, Noise(0), None, settings).run()
        for name, settings in (("plain", DeviceSettings()), ("noisy", DeviceSettings(count_noise=3.0, noise_seed=1)))
    )
    async with running(noisy):
        async with running(plain):
            await asyncio.to_thread(station.wait_ready, 2)
            both = await run_round(station, 1, 5, pick=2)
            assert (both.iterations, both.events) == (5, {})
        await asyncio.to_thread(wait_for, lambda: station.states()["plain"] == "offline")
        alone = await run_round(station, 2, 1, pick=2)
    counts = np.sum([counts_of(batches)[0] for batches in drawn([0], 7)], axis=0)
    assert not np.allclose(alone.announced, counts / counts.sum(), atol=0.01)


def test_neither_a_station_nor_a_linear_device_imports_torch() -> None:
    code = (
        "import sys; import fedgs.deploy.station_process, fedgs.deploy.agent, fedgs.deploy.sources;"
        "from fedgs.deploy.trainers import make_trainer; from fedgs.deploy.wire import Task;"
        "make_trainer(Task('r', '{\"model\": \"linear\"}', 4, '[[8, 8], \"uint8\"]', 5));"
        "assert 'torch' not in sys.modules;"
        "assert 'fedgs.simulation' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
