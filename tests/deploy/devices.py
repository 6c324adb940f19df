"""Devices inside the test's own process: good ones, and ones that misbehave on purpose, over real mTLS streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from fedgs.config import load_settings
from fedgs.data import DataSet, Federation
from fedgs.data.npz import save_npz
from fedgs.deploy import pki
from fedgs.deploy.agent import Agent
from fedgs.deploy.factory_numbers import FactoryNumbers
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundResult, decode_result, encode_order
from fedgs.deploy.settings import DeviceSettings, TopSettings
from fedgs.deploy.sources import Batch, Source, open_source
from fedgs.deploy.station_list import StationList
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.top_process import carry_out
from fedgs.deploy.trainers import LinearTrainer
from fedgs.deploy.transport import Dialer, GrpcTransport, call_station
from fedgs.deploy.wire import ATTACH, LARGEST_MESSAGE, VERSION, Ready, decode_down, encode_update, serialise
from fedgs.training.calibration import ClassMix
from tests.deploy.processes import (
    BATCH,
    CLASSES,
    RUN_ROUND_TIMEOUT,
    SHAPE,
    SHAPES,
    Park,
    StationHandle,
    order,
    write_device,
)

HELLO = serialise(pb.Up(hello=pb.Hello(version=VERSION, software="test")))
Misdeed = Callable[[pb.Step], Sequence[bytes]]
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


def trained(weights: Flat, batches: list[Batch], teams: NDArray[np.int64], mix: ClassMix) -> Flat:
    """One internal synchronisation in this process."""
    start = weights.copy()
    start[-CLASSES:] += mix.step(teams.sum(axis=0)[None])[0].astype(np.float32)
    trainer = LinearTrainer(CLASSES, SHAPE)
    changes = [trainer.step(start, batch, 0.1)[0] for batch in batches]
    return np.asarray(weights + np.mean(changes, axis=0), np.float32)


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


def agent(park: Park, station: StationHandle, name: str, source: Source, failover: float = 20.0, **more: Any) -> Agent:
    """Return a device in this process."""
    identity, settings = Identity("park", "device", name), DeviceSettings(longest_wait=0.5, failover=failover)
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
            await call.write(HELLO)
            batch_id = 0
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the station has ended the stream
                while (data := await call.read()) is not grpc.aio.EOF and done < turns:
                    message = decode_down(data)
                    if isinstance(message, pb.Step):
                        for answer in misdeed(message):
                            await call.write(answer)
                        done += 1
                    batch_id += 1
                    await call.write(serialise(pb.Up(ready=announcement(batch_id).message)))
            await asyncio.sleep(0.05)  # what was written is delivered before the stream goes
            call.cancel()


def announcement(batch_id: int) -> Ready:
    counts = np.zeros(CLASSES, np.int64)
    counts[0] = BATCH
    return Ready(batch_id, counts)


def good_answer(
    step: pb.Step, /, shapes: Shapes = SHAPES, change: Flat | None = None, wire: int = pb.FLOAT32, **changes: Any
) -> list[bytes]:
    """Return an update that changes nothing, with some of its values replaced."""
    values: dict[str, Any] = {"step": step.step, "batch_id": step.batch_id, "num_samples": BATCH, "loss": 1.0}
    update = pb.Update(**(values | changes))
    return list(encode_update(update, shapes, np.zeros(shapes.size, np.float32) if change is None else change, wire))


async def run_top(park: Park, stations: Sequence[StationHandle], options: Sequence[str], **behaviour: Any) -> None:
    """Carry out a run from this process."""
    certificate = bundle(park, "top", "top")
    numbers, identity = FactoryNumbers(), Identity("park", "top", "top")
    numbers.reserve([one.top for one in stations])
    listed = StationList([GrpcTransport(one.top, certificate, identity, 2.0, numbers=numbers) for one in stations])
    settings = load_settings(overrides=list(options))
    await carry_out(settings, TopSettings.model_validate(behaviour), park.folder / "state", listed)


async def train(park: Park, federation: Federation, held_out: DataSet, options: Sequence[str]) -> dict[str, Tensor]:
    """Carry out a run over two stations and their devices, all in this process, and return its model."""
    (park.folder / "target.json").write_text(json.dumps(federation.p_real().tolist()))
    save_npz(held_out, park.folder / "held-out.npz")
    stations = [await park.serve(f"s{factory}", min_devices=len(federation) // 2, gather=200) for factory in range(2)]
    devices = []
    for device, name in enumerate(federation.device_names):
        source = open_source(f"npz:{write_device(federation, device, park.folder / f'{name}.npz')}", name)
        devices.append(agent(park, stations[federation.factory_of[device]], name, source).run())
    async with running(*devices):
        files = {"target": str(park.folder / "target.json"), "held_out": str(park.folder / "held-out.npz")}
        await run_top(park, stations, options, **files)
    found: dict[str, Tensor] = load_file(park.folder / "state" / "model.safetensors")
    return found
