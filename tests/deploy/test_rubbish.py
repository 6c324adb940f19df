"""A device that sends invalid messages loses its own update and nothing else."""

import asyncio

import grpc
import numpy as np
import pytest

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.transport import client_credentials
from fedgs.deploy.wire import ATTACH, PART, serialise
from tests.deploy.devices import Misdeed, bad_device, bundle, good_answer, good_devices, run_round
from tests.deploy.processes import SHAPES, Park, wait_for

NAN = np.full(SHAPES.size, np.nan, np.float32)
HUGE = np.full(SHAPES.size, 1e30, np.float32)
OTHER = Shapes((("dense.weight", (4, 63)), ("dense.bias", (4,))))


def endless(step: pb.Step) -> list[bytes]:
    """Announce the right size and send two gigabytes, a part at a time."""
    first = pb.Up.FromString(good_answer(step)[0])
    first.update.change.data = b""
    return [serialise(first), *[serialise(pb.Up(part=pb.Part(data=bytes(PART))))] * 2048]


MISDEEDS: dict[str, tuple[Misdeed, str]] = {
    "NaN": (lambda step: good_answer(step, change=NAN), "a change that is not finite"),
    "a loss of NaN": (lambda step: good_answer(step, loss=float("nan")), "a loss of nan"),
    "a loss of 1e308": (lambda step: good_answer(step, loss=1e308), "a loss of 1e+308"),
    "a loss of -1e308": (lambda step: good_answer(step, loss=-1e308), "a loss of -1e+308"),
    "a huge change": (lambda step: good_answer(step, change=HUGE), "a change"),
    "a wrong shape": (
        lambda step: good_answer(step, shapes=OTHER, change=np.zeros(OTHER.size, np.float32)),
        "another model: it has 'dense.weight' of shape",
    ),
    "another number format": (lambda step: good_answer(step, wire=pb.FLOAT16), "weights in float16"),
    "a stale step": (lambda step: good_answer(step, step=step.step - 1), "a step that was not asked for"),
    "another batch": (lambda step: good_answer(step, batch_id=999), "an update from batch 999"),
    "other samples": (lambda step: good_answer(step, num_samples=4), "from 4 samples; 5 were announced"),
    "garbage": (lambda step: [b"\xff\xfe garbage \x00" * 9], "not a message of the protocol"),
    "nothing": (lambda step: [b""], "says nothing"),
    "too large a message": (lambda step: [bytes(5 * PART)], "the connection was lost"),
    "two gigabytes": (endless, "a part of 0 bytes"),
}


async def test_rubbish_costs_its_senders_update_and_nothing_else(park: Park) -> None:
    station = await park.serve("s1", failures=1000, min_devices=3)

    def wait_offline() -> None:
        wait_for(lambda: station.states().get("bad") == "offline", why="the bad device to be gone")

    async with good_devices(park, station, "good-1", "good-2"):
        for number, (name, (misdeed, reason)) in enumerate(MISDEEDS.items(), start=1):
            async with bad_device(park, station, misdeed, others=2):
                result = await run_round(station, number, iterations=1)
            assert (result.iterations, result.samples) == (1, 10), name  # the two good ones
            assert sum(result.events.get(kind, 0) for kind in ("rejected", "gone")) == 1, (name, result.events)
            assert np.isfinite(result.weights).all()
            failure = park.log("s1", "no update")[-1]
            assert failure["device"] == "bad"
            assert reason in failure["reason"], name
            await asyncio.to_thread(wait_offline)


async def test_repeated_failures_quarantine_a_device_for_a_while(park: Park) -> None:
    station = await park.serve("s1", failures=2, quarantine=3, gather=0.5)
    async with (
        good_devices(park, station, "good-1", "good-2", "good-3"),
        bad_device(park, station, MISDEEDS["NaN"][0], others=3, turns=99),
    ):
        result = await run_round(station, 1, iterations=6, pick=4)
        assert result.events == {"rejected": 2, "quarantined": 1, "short": 4}  # the good ones go on without it
        assert station.states()["bad"] == "quarantined"
        await asyncio.sleep(3.2)
        again = await run_round(station, 2, iterations=6, pick=4)
        assert again.events["rejected"] == 2  # it got another chance


async def test_a_stream_that_does_not_begin_properly_is_refused(park: Park) -> None:
    station = await park.serve("s1")
    credentials = client_credentials(bundle(park, "device", "d1"))
    for early, reason in (
        (b"rubbish", "not a message of the protocol"),
        (b"", "says nothing"),
        (serialise(pb.Up(hello=pb.Hello(version=99))), "protocol version 99"),
        (serialise(pb.Up(part=pb.Part(data=b"x"))), "the first message is not a Hello"),
    ):
        async with grpc.aio.secure_channel(station.devices, credentials) as channel:
            call = channel.stream_stream(ATTACH)()
            await call.write(early)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert reason in str(refused.value.details())
        assert sum(reason in line["reason"] for line in park.log("s1", "connection refused")) == 1
