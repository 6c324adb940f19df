"""Devices that die, hang, come late and come back, as real processes killed by real signals."""

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.deploy.contract import RoundResult
from tests.deploy.devices import good_devices
from tests.deploy.processes import Park, StationHandle, park_in, wait_for

STUCK = """
import time
import numpy as np
from fedgs.deploy.sources import Batch

class Source:
    '''Gives one batch; looking for the next takes for ever, so its first step is never answered.'''

    def batches(self, size, classes):
        for number in range(10**9):
            if number:
                time.sleep(3600)
            yield Batch(np.zeros((size, 8, 8), np.uint8), np.arange(size) % classes)
"""


class Background:
    """A round that is carried out while the test does something else."""

    def __init__(self, station: StationHandle, **order: Any) -> None:
        self.result: RoundResult | None = None
        self._thread = threading.Thread(target=self._run, args=(station, order))
        self._thread.start()

    def _run(self, station: StationHandle, order: Any) -> None:
        self.result = station.round(**order)

    def wait(self, seconds: float) -> RoundResult:
        self._thread.join(seconds)
        assert self.result is not None, f"the round took more than {seconds} s"
        return self.result


def stuck_device(park: Park, station: StationHandle) -> Any:
    (park.folder / "stuck.py").write_text(STUCK)
    return park.device("stuck", station, source="stuck:Source")


def wait_stuck(station: StationHandle) -> None:
    """Wait until the others have answered and only the stuck one trains."""
    wait_for(
        lambda: sorted(station.states().values()) == ["ready", "ready", "training"],
        why=f"the step to be under way: {station.states()}",
    )


def test_a_killed_or_hung_device_is_left_out_long_before_the_deadline(tmp_path: Path) -> None:
    """The deadline is a minute; a connection that ends is seen at once, one that falls silent by its keepalive."""

    async def run() -> None:
        async with good_devices(park, station, "a", "b"):
            for number, deed in enumerate((signal.SIGKILL, signal.SIGSTOP), start=1):
                stuck = stuck_device(park, station)
                await asyncio.to_thread(station.wait_ready, 3)
                training = Background(station, number=number, iterations=1)
                await asyncio.to_thread(wait_stuck, station)
                began = time.monotonic()
                stuck.send_signal(deed)
                result = await asyncio.to_thread(training.wait, 20)
                seen[deed] = time.monotonic() - began
                assert result.iterations == 1
                assert result.samples == 10
                assert result.events == {"gone": 1}
                stuck.send_signal(signal.SIGCONT)
                stuck.kill()
                await asyncio.to_thread(
                    wait_for, lambda: station.states().get("stuck") == "offline", 20, "the dead device to be offline"
                )

    seen: dict[int, float] = {}
    with park_in(tmp_path) as park:
        station = park.station("s1", "--deadline", "60", "--min-devices", "3", "--gather", "20")
        asyncio.run(run())
    print(seen)


def test_a_late_device_is_left_out_and_taken_back(tmp_path: Path) -> None:
    class Slow:
        """Its second batch, and with it the answer to the first step, takes longer than the deadline."""

        def batches(self, size: int, classes: int) -> Any:
            from fedgs.deploy.sources import Batch

            for number in range(1000):
                if number == 1:
                    time.sleep(1.5)
                yield Batch(np.zeros((size, 8, 8), np.uint8), np.arange(size) % classes)

    async def run() -> None:
        from fedgs.deploy.agent import Agent
        from fedgs.deploy.identity import Identity
        from tests.deploy.devices import bundle, run_round

        async with good_devices(park, station, "a", "b"):
            agent = Agent(Identity("park", "device", "slow"), station.devices, Slow(), bundle(park, "device", "slow"))
            slow = asyncio.ensure_future(agent.run())
            await asyncio.to_thread(station.wait_ready, 3)
            first = await run_round(station, 1, iterations=1)
            assert first.events == {"late": 1}
            assert first.samples == 10
            await asyncio.to_thread(wait_for, lambda: station.states()["slow"] == "ready", 20, "the late answer")
            second = await run_round(station, 2, iterations=2)
            assert second.events == {}
            assert second.samples == 30
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)

    with park_in(tmp_path) as park:
        station = park.station("s1", "--deadline", "0.7", "--min-devices", "3", "--gather", "20")
        asyncio.run(run())


def test_devices_join_in_mid_round_and_outlive_their_station(tmp_path: Path) -> None:
    async def run() -> None:
        async with good_devices(park, station, "a", "b"):
            training = Background(station, iterations=100_000, pick=3)  # it is stopped long before that
            await asyncio.to_thread(wait_for, lambda: station.status().iteration > 5, 20, "the round to be under way")
            async with good_devices(park, station, "c") as (late,):
                await asyncio.to_thread(wait_for, lambda: late.steps > 5, 20, "the new device to be selected")
                status = await asyncio.to_thread(station.status)
                assert 5 < status.iteration < 100_000
                station.process.kill()
                training._thread.join(20)
                before = late.steps
                again = await asyncio.to_thread(park.station, "s1")
                await asyncio.to_thread(again.wait_ready, 3)  # they all came back by themselves
                result = await asyncio.to_thread(again.round, 2, 3)
                assert result.iterations == 3
                assert late.steps == before + 3

    threading.excepthook, before = (lambda _: None), threading.excepthook  # the killed round's caller is told so
    try:
        with park_in(tmp_path) as park:
            station = park.station("s1", "--gather", "1")
            asyncio.run(run())
    finally:
        threading.excepthook = before


def test_nobody_is_there(tmp_path: Path) -> None:
    with park_in(tmp_path) as park:
        station = park.station("s1", "--gather", "0.1")
        result = station.round(iterations=7)
        assert result.iterations == 0
        assert result.events == {"idle": 7}
        assert not result.weights.any()
