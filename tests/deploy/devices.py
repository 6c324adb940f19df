"""Devices inside the test's own process: good ones, and ones that misbehave on purpose, over real mTLS streams."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from fedgs.deploy import pki
from fedgs.deploy.agent import Agent
from fedgs.deploy.contract import RoundResult, decode_result, encode_order
from fedgs.deploy.identity import Identity
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.sources import Batch
from fedgs.deploy.tls import Bundle, client_credentials, client_options
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


def bundle(park: Park, role: str, name: str) -> Bundle:
    folder = park.pki / role / name
    return Bundle(folder if folder.exists() else pki.issue(park.pki, role, name))


@asynccontextmanager
async def good_devices(
    park: Park, station: StationHandle, *names: str, image_shape: tuple[int, ...] = SHAPE
) -> AsyncIterator[list[Agent]]:
    """Run good devices while the block lasts."""
    agents = [
        Agent(
            Identity("park", "device", name),
            station.devices,
            Noise(number, image_shape),
            bundle(park, "device", name),
            DeviceSettings(longest_wait=0.5),
        )
        for number, name in enumerate(names)
    ]
    tasks = [asyncio.ensure_future(agent.run()) for agent in agents]
    try:
        await asyncio.to_thread(station.wait_ready, len(names))
        yield agents
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_round(station: StationHandle, number: int = 1, iterations: int = 3, **changes: Any) -> RoundResult:
    """Carry out a round without blocking the devices of this process."""
    from fedgs.deploy.carrier import call_station

    data = encode_order(order(number, iterations, **changes))
    return decode_result(await asyncio.to_thread(call_station, station.socket, data, RUN_ROUND_TIMEOUT))


async def misbehave(park: Park, station: StationHandle, name: str, misdeed: Misdeed, turns: int = 1) -> list[str]:
    """Attach as ``name``, announce batches, answer ``turns`` steps with a misdeed; return how each stream ended."""
    endings: list[str] = []
    credentials = client_credentials(bundle(park, "device", name))
    done = 0
    while done < turns:
        options = [*client_options(2.0, LARGEST_MESSAGE)]
        async with grpc.aio.secure_channel(station.devices, credentials, options) as channel:
            call = channel.stream_stream(ATTACH)()
            await call.write(encode_hello("test"))
            batch_id = 0
            try:
                while (data := await call.read()) is not grpc.aio.EOF and done < turns:
                    message = decode_down(data)
                    if isinstance(message, Step):
                        for answer in misdeed(message):
                            await call.write(answer)
                        done += 1
                    batch_id += 1
                    await call.write(encode_ready(announcement(batch_id)))
                if done < turns or data is grpc.aio.EOF:
                    endings.append(str(await call.details()))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                endings.append(str(getattr(error, "details", lambda: "lost")()))
            finally:
                # What was written is delivered before the stream goes.
                await asyncio.sleep(0.05)
                call.cancel()
        if done < turns:
            await asyncio.sleep(0.05)
    return endings


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
