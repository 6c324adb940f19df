"""Devices inside the test's own process: good ones, and ones that misbehave on purpose, over real mTLS streams."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from fedgs.deploy import pki
from fedgs.deploy.agent import Agent
from fedgs.deploy.identity import Identity
from fedgs.deploy.round_messages import RoundResult, decode_result, encode_order
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.sources import Batch, Source
from fedgs.deploy.tls import Bundle, Dialer
from fedgs.deploy.transport import call_station
from fedgs.deploy.wire import (
    ATTACH,
    LARGEST_MESSAGE,
    Ready,
    Step,
    decode_down,
    encode_hello,
    encode_ready,
    encode_update,
)
from tests.deploy.processes import BATCH, CLASSES, RUN_ROUND_TIMEOUT, SHAPE, SHAPES, Park, StationHandle, order

Misdeed = Callable[[Step], Sequence[bytes]]
"""What a device answers to a step."""


class Noise:
    """A source of random pictures with random labels."""

    def __init__(self, seed: int = 0, image_shape: tuple[int, ...] = SHAPE) -> None:
        self._draws, self._shape = np.random.default_rng(seed), image_shape

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        while True:
            images = self._draws.integers(0, 256, (size, *self._shape)).astype(np.uint8)
            yield Batch(images, self._draws.integers(0, classes, size))


def drawn(seeds: Iterable[int], number: int) -> list[list[Batch]]:
    """Return the batches of the first iterations, one of each stream of noise."""
    sources = [Noise(seed).batches(BATCH, CLASSES) for seed in seeds]
    return [[batch for batch in map(next, sources) if batch is not None] for _ in range(number)]


def counts_of(batches: Iterable[Batch]) -> list[NDArray[np.int64]]:
    return [np.bincount(batch.targets, minlength=CLASSES) for batch in batches]


def bundle(park: Park, role: str, name: str) -> Bundle:
    folder = park.pki / role / name
    return Bundle(folder if folder.exists() else pki.issue(park.pki, role, name))


@asynccontextmanager
async def good_devices(
    park: Park, station: StationHandle, *names: str, image_shape: tuple[int, ...] = SHAPE
) -> AsyncIterator[list[Agent]]:
    """Run good devices while the block lasts."""
    agents = [agent(park, station, name, Noise(number, image_shape)) for number, name in enumerate(names)]
    async with running(*(one.run() for one in agents)):
        await asyncio.to_thread(station.wait_ready, len(names))
        yield agents


def agent(park: Park, station: StationHandle, name: str, source: Source, **more: Any) -> Agent:
    """Return a device in this process."""
    identity, settings = Identity("park", "device", name), DeviceSettings(longest_wait=0.5)
    return Agent(identity, station.devices, source, bundle(park, "device", name), settings, **more)


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Let something run while the block lasts."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def bad_device(
    park: Park, station: StationHandle, misdeed: Misdeed, others: int, turns: int = 1
) -> AsyncIterator[None]:
    """Run the device "bad" beside ``others`` good ones while the block lasts."""
    async with running(misbehave(park, station, "bad", misdeed, turns)):
        await asyncio.to_thread(station.wait_ready, others + 1)
        yield


async def run_round(station: StationHandle, number: int = 1, iterations: int = 3, **changes: Any) -> RoundResult:
    """Carry out a round without blocking the devices of this process."""
    data = encode_order(order(number, iterations, **changes))
    return decode_result(await asyncio.to_thread(call_station, station.socket, data, RUN_ROUND_TIMEOUT))


async def misbehave(park: Park, station: StationHandle, name: str, misdeed: Misdeed, turns: int = 1) -> None:
    """Attach as ``name``, announce batches, and answer ``turns`` steps with a misdeed."""
    dialer = Dialer(
        station.devices, Identity("park", "device", name), bundle(park, "device", name), 2.0, LARGEST_MESSAGE
    )
    done = 0
    while done < turns:
        async with dialer.channel() as channel:
            call = channel.stream_stream(ATTACH)()
            await call.write(encode_hello("test"))
            batch_id = 0
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the station has ended the stream
                while (data := await call.read()) is not grpc.aio.EOF and done < turns:
                    message = decode_down(data)
                    if isinstance(message, Step):
                        for answer in misdeed(message):
                            await call.write(answer)
                        done += 1
                    batch_id += 1
                    await call.write(encode_ready(announcement(batch_id)))
            await asyncio.sleep(0.05)  # what was written is delivered before the stream goes
            call.cancel()


def announcement(batch_id: int) -> Ready:
    counts = np.zeros(CLASSES, np.int64)
    counts[0] = BATCH
    return Ready(batch_id, counts)


def good_answer(step: Step, /, **changes: Any) -> list[bytes]:
    """Return an update that changes nothing, with some of its values replaced."""
    values: dict[str, Any] = {
        "step": step.step,
        "batch_id": step.batch_id,
        "num_samples": BATCH,
        "loss": 1.0,
        "shapes": SHAPES,
        "change": np.zeros(SHAPES.size, np.float32),
        "wire": "float32",
        "following": None,
    }
    return list(encode_update(**(values | changes)))
