"""Devices and servers that die, hang, come late and come back, by real signals; many devices, many iterations."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgs.deploy.sources import Batch
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.trainers import LinearTrainer
from fedgs.errors import PeerError
from fedgs.training.calibration import ClassMix
from tests.deploy.devices import (
    Noise,
    agent,
    bundle,
    counts_of,
    drawn,
    good_devices,
    run_round,
    run_top,
    running,
    trained,
)
from tests.deploy.processes import CLASSES, SHAPE, SHAPES, UNIFORM, Park, StationHandle, named_task, wait_for

STUCK = """
import asyncio, sys, time
from pathlib import Path
import numpy as np
from fedgs.deploy.agent import Agent
from fedgs.deploy.pki import Identity
from fedgs.deploy.sources import Batch
from fedgs.deploy.pki import Bundle
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

    station = await park.serve("s1", deadline=0.7, min_devices=3, gather=20)
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

    station = await park.serve("s1", deadline=0.7, gather=20)
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


async def test_a_station_that_is_told_to_stop_keeps_its_round_and_goes_on_with_it(park: Park) -> None:
    """Every iteration counts once: the weights are those of plain SGD on the batches of all three devices."""
    iterations = 400
    station = park.station("s1", "--min-devices", "3", "--gather", "20", "--drain", "8")
    async with good_devices(park, station, "a", "b", "c") as agents:
        training = asyncio.ensure_future(run_round(station, 1, iterations))
        await asyncio.to_thread(wait_for, lambda: station.status().iteration > 20, 20, "the round to be under way")
        began = time.monotonic()
        station.process.terminate()
        assert await asyncio.to_thread(station.process.wait, 20) == 0
        assert time.monotonic() - began < 8
        with pytest.raises(PeerError, match=r"the station stops|connection was lost"):
            await training
        (kept,) = park.log("s1", "round is kept")
        assert 20 < kept["iteration"] < iterations
        again = await asyncio.to_thread(park.station, "s1", "--min-devices", "3", "--gather", "20")
        result = await run_round(again, 1, iterations)
        assert (result.iterations, result.events) == (iterations, {})
        assert result.took_part == ["a", "b", "c"]
        assert sum(agent.steps for agent in agents) == 3 * iterations
    assert [line["iteration"] for line in park.log("s1", "round goes on")] == [kept["iteration"]]
    mix, weights = ClassMix(1, UNIFORM, 2, 0.0), np.zeros(SHAPES.size, np.float32)
    for batches in drawn(range(3), iterations):
        weights = trained(weights, batches, np.array(counts_of(batches)), mix)
    np.testing.assert_allclose(result.weights, weights, atol=1e-5)


async def test_no_device_is_online(park: Park) -> None:
    result = await run_round(await park.serve("s1", gather=0.1), iterations=7)
    assert (result.iterations, result.events) == (0, {"idle": 7})
    assert not result.weights.any()


ROUNDS = 25
OPTIONS = [
    "task.model=linear", f"training.rounds={ROUNDS}", "training.iterations=8", "training.batch_size=5",
    "training.learning_rate=0.01", "selection.pick=2", "selection.presample=1", "federation.devices=3",
    "federation.factories=1",
]  # fmt: skip


async def test_the_run_completes_whoever_is_killed(park: Park) -> None:
    async def until(rounds: int) -> None:
        await asyncio.to_thread(wait_for, lambda: len(park.rounds()) > rounds, 120, f"round {rounds}")

    station = park.station("s1")
    more = ["--classes", "4", "--image", "8x8"]
    top = park.top([station], *OPTIONS, more=more)
    async with good_devices(park, station, "a", "b", "c"):
        await until(3)
        station.process.kill()
        station.process.wait()
        killed_at = park.rounds()[-1]["round"]
        await asyncio.to_thread(park.station, "s1")
        await until(killed_at + 3)
        top.kill()
        top.wait()
        assert park.rounds()[-1]["round"] < ROUNDS
        top = park.top([station], *OPTIONS, more=more)
        assert await asyncio.to_thread(top.wait, 60) == 0, park.text("top")
    await run_top(park, [station], OPTIONS, classes=4, image="8x8")  # nothing is left to do, and nothing is done
    assert [line["round"] for line in park.rounds()] == list(range(ROUNDS + 1))
    ended = Counter(line["round"] for line in park.log("s1", "round ends"))
    del ended[0]  # nobody trained in it
    assert ended == dict.fromkeys(range(1, ROUNDS + 1), 1)
    assert (park.folder / "state" / "model.safetensors").exists()
    assert len({line["run"] for line in park.log("s1", "round begins")}) == 1


async def test_two_hundred_devices_on_one_station(park: Park) -> None:
    station = await park.serve("s1", min_devices=200, gather=60)
    names = [f"d{number:03d}" for number in range(200)]
    async with good_devices(park, station, *names) as agents:
        result = await run_round(station, iterations=40, pick=10)
        assert (result.iterations, result.samples, result.devices) == (40, 40 * 10 * 5, 200)
        assert result.events == {}
        assert sum(agent.steps for agent in agents) == 400
        turns = {device.name: device.turns for device in station.status().devices}
        assert list(turns) == names
        assert sum(turns.values()) == 400


def resident(station: StationHandle) -> float:
    """Megabytes of a station."""
    text = Path(f"/proc/{station.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


async def test_the_memory_of_a_station_stays_flat(park: Park) -> None:
    """An update of this model is 100 KB; a station that kept one an iteration would grow by 60 MB."""
    classes, shape = 4, (80, 80)
    shapes = Shapes((("dense.weight", (classes, 6400)), ("dense.bias", (classes,))))
    large = {
        "task": named_task("large", "linear", classes, shape, 5),
        "shapes": shapes,
        "weights": np.zeros(shapes.size, np.float32),
    }
    station = park.station("s1", "--log-level", "warning")
    used = []
    async with good_devices(park, station, "a", "b", "c", image_shape=shape):  # one more than is picked: it must select
        for number, iterations in ((1, 200), (2, 600)):
            result = await run_round(station, number, iterations, pick=2, rate=1e-4, **large)
            assert result.iterations == iterations
            used.append(resident(station))
    assert used[1] - used[0] < 20
