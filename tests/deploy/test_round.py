"""A round over the wire, number by number: averages, half the bytes, noise, plain text on the loopback."""

import asyncio
import subprocess
import sys
from typing import Any

import grpc
import numpy as np
import pytest

from fedgs.deploy.agent import Agent
from fedgs.deploy.pki import Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.rounds import averaged
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.streams import Answer
from fedgs.deploy.tensors import Shapes
from fedgs.training.calibration import ClassMix
from tests.deploy.devices import Noise, counts_of, drawn, good_devices, run_round, running, trained
from tests.deploy.processes import BATCH, SHAPES, UNIFORM, Park, named_task, wait_for

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


@pytest.mark.parametrize(
    ("wire", "tolerance", "calibration"),
    [(pb.FLOAT32, 1e-6, 0.0), (pb.BFLOAT16, 2e-3, 0.0), (pb.FLOAT16, 3e-4, 1.0), (pb.FLOAT32, 1e-6, 1.0)],
)
async def test_rounds_are_sgd_on_the_batches_of_the_team(
    park: Park, wire: int, tolerance: float, calibration: float
) -> None:
    """All three devices in two rounds of two iterations, so that plain SGD in this process must give the same weights.

    A round that is asked for again gets the same answer, and its class mix goes into the next round's calibration once.
    """
    asked: dict[str, Any] = {"task": named_task(wire=wire), "calibration": calibration}
    station = await park.serve("s1", min_devices=3)
    async with good_devices(park, station, "a", "b", "c") as agents:
        first = await run_round(station, 1, 2, **asked, class_wise=True)
        again = await run_round(station, 1, 2, **asked, class_wise=True)
        assert sum(one.steps for one in agents) == 6
        assert (again.weights == first.weights).all()
        second = await run_round(station, 2, 2, **asked, weights=first.weights)
        assert not len(second.seen)  # nobody asked
        other = await run_round(station, 2, 2, **asked, weights=first.weights, rate=0.2)  # another order
        assert not (other.weights == second.weights).all()
    mix, weights, seen = ClassMix(1, UNIFORM, 2, calibration), np.zeros(SHAPES.size, np.float32), 0
    for number, batches in enumerate(drawn(range(3), 4), start=1):
        weights = trained(weights, batches, np.array(counts_of(batches)), mix)
        if number <= 2:
            seen += np.sum(counts_of(batches), axis=0)
        if number == 2:
            np.testing.assert_allclose(first.weights, weights, atol=tolerance)
    np.testing.assert_allclose(second.weights, weights, atol=tolerance)
    assert first.samples == 2 * 3 * BATCH
    assert first.seen.tolist() == seen.tolist()


async def test_a_step_that_comes_before_its_announcement_counts_as_written(
    park: Park, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine. Cancelling a write that is not over ends the stream; that is gRPC's own way."""
    write = grpc.aio.StreamStreamCall.write

    async def told_late(self: Any, message: bytes) -> None:
        await write(self, message)
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.cancel()
            raise

    monkeypatch.setattr(grpc.aio.StreamStreamCall, "write", told_late)
    station = await park.serve("s1", min_devices=2)
    async with good_devices(park, station, "a", "b") as agents:
        found = await run_round(station, 1, 3, pick=2)
        assert (found.iterations, found.events) == (3, {})
        assert [one.steps for one in agents] == [3, 3]


async def test_plain_text_on_the_loopback_and_noise_on_the_counts(park: Park) -> None:
    """Two devices, one with noise: they train all the same, and the station's estimate shows that counts were noisy."""
    station = await park.serve("s1", gather=1, insecure=True)
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
        "from fedgs.deploy.trainers import make_trainer; from fedgs.deploy.proto.fedgs_wire_pb2 import Task;"
        'make_trainer(Task(spec=\'{"model": "linear"}\', classes=4, inputs=\'[[8, 8], "uint8"]\', batch_size=5));'
        "assert 'torch' not in sys.modules;"
        "assert 'fedgs.simulation' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
