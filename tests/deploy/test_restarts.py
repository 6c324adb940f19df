"""SIGKILL and restart of a station and of the top server: the run completes, no round twice, none lost."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from fedgs.deploy import pki
from tests.deploy.devices import good_devices
from tests.deploy.processes import park_in, wait_for

ROUNDS = 60
OPTIONS = [
    "task.model=linear", f"training.rounds={ROUNDS}", "training.iterations=8", "training.batch_size=5",
    "training.learning_rate=0.01", "selection.pick=2", "selection.presample=1", "federation.devices=3",
    "federation.factories=1",
]  # fmt: skip


def test_the_run_completes_whoever_is_killed(tmp_path: Path) -> None:
    def lines() -> list[dict[str, Any]]:
        path = tmp_path / "state" / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def until(rounds: int) -> None:
        await asyncio.to_thread(wait_for, lambda: len(lines()) > rounds, 40, f"round {rounds}: {park.text('top')}")

    async def run() -> None:
        station = park.station("s1")
        arguments = ["top", "--stations", station.top, "--state", "state", "--classes", "4", "--image", "8x8"]
        arguments += [part for option in OPTIONS for part in ("--set", option)]
        top = park.start("top", *arguments)
        async with good_devices(park, station, "a", "b", "c"):
            await until(3)
            station.process.kill()
            station.process.wait()
            killed_at = lines()[-1]["round"]
            await asyncio.to_thread(park.station, "s1")
            await until(killed_at + 3)
            top.kill()
            top.wait()
            assert lines()[-1]["round"] < ROUNDS
            top = park.start("top", *arguments)
            assert await asyncio.to_thread(top.wait, 60) == 0, park.text("top")
            again = park.start("top", *arguments)  # there is nothing left to do, and nothing is done
            assert await asyncio.to_thread(again.wait, 60) == 0, park.text("top")

    with park_in(tmp_path) as park:
        pki.issue(park.pki, "top", "top")
        asyncio.run(run())
        assert [line["round"] for line in lines()] == list(range(ROUNDS + 1))
        ended = Counter(line["round"] for line in park.log("s1", "round ends"))
        del ended[0]  # the roll call
        assert ended == dict.fromkeys(range(1, ROUNDS + 1), 1)
        assert (tmp_path / "state" / "model.safetensors").exists()
        assert len({line["run"] for line in park.log("s1", "round begins")}) == 1


def test_the_same_order_gives_the_same_answer_without_training_again(tmp_path: Path) -> None:
    async def run() -> None:
        station = park.station("s1")
        async with good_devices(park, station, "a", "b", "c") as agents:
            first = await asyncio.to_thread(station.round, 1, 4)
            steps = sum(agent.steps for agent in agents)
            again = await asyncio.to_thread(station.round, 1, 4)
            assert sum(agent.steps for agent in agents) == steps == 12
            assert (first.weights == again.weights).all()
            station.process.kill()
            station.process.wait()
            restarted = await asyncio.to_thread(park.station, "s1")
            later = await asyncio.to_thread(restarted.round, 1, 4)  # remembered on disk
            assert (first.weights == later.weights).all()
            await asyncio.to_thread(restarted.wait_ready, 3)
            other = await asyncio.to_thread(restarted.round, 1, 4, rate=0.2)  # another order, another answer
            assert not (first.weights == other.weights).all()

    with park_in(tmp_path) as park:
        asyncio.run(run())
