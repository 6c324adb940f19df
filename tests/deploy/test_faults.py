"""Devices that die, hang, come late and come back, as real processes killed by real signals."""

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fedgs.deploy.sources import Batch
from fedgs.deploy.tensors import Flat
from fedgs.deploy.trainers import LinearTrainer
from fedgs.errors import PeerError
from tests.deploy.devices import Noise, agent, bundle, good_devices, run_round, running
from tests.deploy.processes import CLASSES, SHAPE, Park, StationHandle, wait_for

STUCK = """
import asyncio, sys, time
from pathlib import Path
import numpy as np
from fedgs.deploy.agent import Agent
from fedgs.deploy.identity import Identity
from fedgs.deploy.sources import Batch
from fedgs.deploy.tls import Bundle
from fedgs.deploy.trainers import LinearTrainer

class Source:
    def batches(self, size, classes):
        while True:
            yield Batch(np.zeros((size, 8, 8), np.uint8), np.arange(size) % classes)

class Stuck(LinearTrainer):
    def step(self, *_):
        time.sleep(3600)

identity, bundle = Identity("park", "device", "stuck"), Bundle(Path("pki/device/stuck"))
asyncio.run(Agent(identity, sys.argv[1], Source(), bundle, make=lambda _: Stuck(4, (8, 8))).run())
"""
"""A device whose step never ends."""


def stuck_device(park: Park, station: StationHandle) -> Any:
    (park.folder / "stuck.py").write_text(STUCK)
    bundle(park, "device", "stuck")
    return park.start("stuck", station.devices, module="stuck")


def wait_stuck(station: StationHandle) -> None:
    """Wait until the others have answered and only the stuck one trains."""
    wait_for(
        lambda: sorted(station.states().values()) == ["ready", "ready", "training"],
        why=f"the step to be under way: {station.states()}",
    )


async def test_a_killed_or_hung_device_is_left_out_long_before_the_deadline(park: Park) -> None:
    """The deadline is a minute; a connection that ends is seen at once, one that falls silent by its keepalive."""
    station = park.station("s1", "--deadline", "60", "--min-devices", "3", "--gather", "20")
    async with good_devices(park, station, "a", "b"):
        for number, deed in enumerate((signal.SIGKILL, signal.SIGSTOP), start=1):
            stuck = stuck_device(park, station)
            await asyncio.to_thread(station.wait_ready, 3)
            training = asyncio.ensure_future(run_round(station, number, iterations=1))
            await asyncio.to_thread(wait_stuck, station)
            stuck.send_signal(deed)
            result = await asyncio.wait_for(training, 20)
            assert (result.iterations, result.samples, result.events) == (1, 10, {"gone": 1})
            stuck.send_signal(signal.SIGCONT)
            stuck.kill()
            await asyncio.to_thread(
                wait_for, lambda: station.states().get("stuck") == "offline", 20, "the dead device to be offline"
            )


async def test_a_late_device_is_left_out_and_taken_back(park: Park) -> None:
    class Slow(LinearTrainer):
        """Its first step takes longer than the deadline."""

        steps = 0

        def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
            self.steps += 1
            time.sleep(1.5 if self.steps == 1 else 0)
            return super().step(weights, batch, learning_rate)

    station = park.station("s1", "--deadline", "0.7", "--min-devices", "3", "--gather", "20")
    slow = agent(park, station, "slow", Noise(), make=lambda _: Slow(CLASSES, SHAPE))
    async with good_devices(park, station, "a", "b"), running(slow.run()):
        await asyncio.to_thread(station.wait_ready, 3)
        first = await run_round(station, 1, iterations=1)
        assert (first.events, first.samples) == ({"late": 1}, 10)
        await asyncio.to_thread(wait_for, lambda: station.states()["slow"] == "ready", 20, "the late answer")
        second = await run_round(station, 2, iterations=2)
        assert (second.events, second.samples) == ({}, 30)


async def test_a_slow_source_delays_no_answer(park: Park) -> None:
    """Its second batch takes its time; the answer to the step on the first does not wait for it."""

    class Trickle(Noise):
        def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
            for number, batch in enumerate(super().batches(size, classes)):
                time.sleep(1.5 if number == 1 else 0)
                yield batch

    station = park.station("s1", "--deadline", "0.7", "--gather", "20")
    async with running(agent(park, station, "a", Trickle()).run()):
        await asyncio.to_thread(station.wait_ready, 1)
        first = await run_round(station, 1, iterations=1, pick=1)
        assert (first.iterations, first.events) == (1, {})  # within a deadline shorter than the source's pause
        second = await run_round(station, 2, iterations=2, pick=1)  # waits for the announcement
        assert (second.iterations, second.events) == (2, {})


async def test_devices_join_in_mid_round_and_outlive_their_station(park: Park) -> None:
    station = park.station("s1", "--gather", "1")
    async with good_devices(park, station, "a", "b"):
        training = asyncio.ensure_future(run_round(station, iterations=100_000))  # it is stopped long before that
        await asyncio.to_thread(wait_for, lambda: station.status().iteration > 5, 20, "the round to be under way")
        async with good_devices(park, station, "c") as (late,):
            await asyncio.to_thread(wait_for, lambda: late.steps > 5, 20, "the new device to be selected")
            status = await asyncio.to_thread(station.status)
            assert 5 < status.iteration < 100_000
            station.process.kill()
            with pytest.raises(PeerError):
                await asyncio.wait_for(training, 20)
            again = await asyncio.to_thread(park.station, "s1")
            await asyncio.to_thread(again.wait_ready, 3)  # they all came back by themselves
            result = await asyncio.to_thread(again.round, 2, 3)
            assert result.iterations == 3
            assert {device.name: device.turns for device in again.status().devices} == {"a": 3, "b": 3, "c": 3}


def test_no_device_is_online(park: Park) -> None:
    result = park.station("s1", "--gather", "0.1").round(iterations=7)
    assert (result.iterations, result.events) == (0, {"idle": 7})
    assert not result.weights.any()
