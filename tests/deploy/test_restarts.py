"""SIGKILL and restart of a station and of the top server: the run completes, no round twice, none lost."""

import asyncio
from collections import Counter

from tests.deploy.devices import good_devices, run_round
from tests.deploy.processes import Park, wait_for

ROUNDS = 40
OPTIONS = [
    "task.model=linear", f"training.rounds={ROUNDS}", "training.iterations=8", "training.batch_size=5",
    "training.learning_rate=0.01", "selection.pick=2", "selection.presample=1", "federation.devices=3",
    "federation.factories=1",
]  # fmt: skip


async def test_the_run_completes_whoever_is_killed(park: Park) -> None:
    async def until(rounds: int) -> None:
        await asyncio.to_thread(wait_for, lambda: len(park.rounds()) > rounds, 40, f"round {rounds}")

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
        for _ in range(2):  # the second time there is nothing left to do, and nothing is done
            top = park.top([station], *OPTIONS, more=more)
            assert await asyncio.to_thread(top.wait, 60) == 0, park.text("top")
    assert [line["round"] for line in park.rounds()] == list(range(ROUNDS + 1))
    ended = Counter(line["round"] for line in park.log("s1", "round ends"))
    del ended[0]  # nobody trained in it
    assert ended == dict.fromkeys(range(1, ROUNDS + 1), 1)
    assert (park.folder / "state" / "model.safetensors").exists()
    assert len({line["run"] for line in park.log("s1", "round begins")}) == 1


async def test_the_same_order_gives_the_same_answer_without_training_again(park: Park) -> None:
    station = park.station("s1")
    async with good_devices(park, station, "a", "b", "c") as agents:
        first = await run_round(station, 1, 4)
        again = await run_round(station, 1, 4)
        assert sum(agent.steps for agent in agents) == 12
        assert (first.weights == again.weights).all()
        station.process.kill()
        station.process.wait()
        restarted = await asyncio.to_thread(park.station, "s1")
        later = await run_round(restarted, 1, 4)  # remembered on disk
        assert (first.weights == later.weights).all()
        await asyncio.to_thread(restarted.wait_ready, 3)
        other = await run_round(restarted, 1, 4, rate=0.2)  # another order, another answer
        assert not (first.weights == other.weights).all()
