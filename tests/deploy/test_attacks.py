"""Devices of a park that mean harm, over mTLS: they are left out, or the run ends with a clear line; never "done"."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgs.data import build_federation
from fedgs.data.npz import save_npz
from fedgs.deploy.screening import FLOOR, Screen
from fedgs.deploy.sources import Batch, open_source
from fedgs.deploy.streams import Answer
from fedgs.deploy.tensors import Flat
from fedgs.deploy.top import collapse
from fedgs.deploy.trainers import LinearTrainer
from tests.deploy.devices import Noise, agent, run_round, run_top, running
from tests.deploy.processes import Park, StationHandle, write_device
from tests.simulation.small import SMALL, small_set


class Attacker(LinearTrainer):
    """Sends ten times the negated update, after some honest ones."""

    def __init__(self, honest: int = 0) -> None:
        super().__init__(4, (8, 8))
        self.honest = honest

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        change, loss = super().step(weights, batch, learning_rate)
        self.honest -= 1
        return change if self.honest >= 0 else np.float32(-10) * change, loss


OPTIONS = [*SMALL, "federation.devices=12", "federation.factories=1", "task.model=linear", "training.rounds=8",
           "training.iterations=10", "selection.pick=6"]  # fmt: skip


@asynccontextmanager
async def attacked(
    park: Park, attackers: Sequence[str], honest: int = 0, **settings: Any
) -> AsyncIterator[StationHandle]:
    """Run a station with twelve devices, some of which attack after ``honest`` updates."""
    data = small_set(12)
    federation = build_federation(data, 1)
    save_npz(data, park.folder / "held-out.npz")
    station = await park.serve("s1", min_devices=12, gather=30, **settings)
    devices = []
    for device, name in enumerate(federation.device_names):
        source = open_source(f"npz:{write_device(federation, device, park.folder / f'{name}.npz')}", name)
        more = {"make": lambda _: Attacker(honest)} if name in attackers else {}
        devices.append(agent(park, station, name, source, **more).run())
    async with running(*devices):
        yield station


@pytest.mark.parametrize(("attackers", "honest"), [([], 0), (["device-07"], 0), (["device-07"], 20)])
async def test_ten_times_the_negated_update_of_one_in_twelve_is_left_out(
    park: Park, attackers: list[str], honest: int
) -> None:
    """From the beginning, or once the model has learnt; and nothing of an honest park is."""
    async with attacked(park, attackers, honest) as station:
        await run_top(park, [station], OPTIONS, held_out=str(park.folder / "held-out.npz"))
    last = park.rounds()[-1]
    assert (last["round"], last["accuracy"] > 0.8) == (8, True)
    refused = park.log("s1", "no update")
    assert {line["device"] for line in refused} == set(attackers)
    assert all("is the most" in line["reason"] for line in refused)
    assert {line["device"] for line in park.log("s1", "a long update is shortened")} == set(attackers)


async def test_a_majority_that_ruins_the_model_ends_the_run_with_code_3_and_the_devices_names(park: Park) -> None:
    attackers = [f"device-{number:02d}" for number in range(8)]
    settings = [part for option in OPTIONS for part in ("--set", option)]
    async with attacked(park, attackers) as station:
        top = park.top([station], more=["--held-out", "held-out.npz", "--collapses", "2", *settings])
        assert await asyncio.to_thread(top.wait, 60) == 3
    *log, last = park.text("top").splitlines()
    assert "has ruined the model 2 times in a row" in last
    assert last.startswith("fedgs: error: round ")
    assert all(name in last for name in attackers)
    assert sum("round is discarded" in line for line in log) == 2
    discarded = int(last.split("round ")[1].split(" ")[0])
    assert park.rounds()[-1]["round"] == discarded - 1  # the last good checkpoint
    assert not (park.folder / "state" / "model.safetensors").exists()


def longest(screen: Screen, **norms: float) -> float:
    """Return the norm to which answers are shortened, at a learning rate of ½ and c = 6; nobody is rejected."""
    verdict = screen.judge(norms, 30.0, 0.5, 6.0)
    assert verdict.rejected == set()
    return verdict.longest


def test_the_longest_update_by_hand() -> None:
    """Norms of 1, 2 and 9 at a rate of ½ are 2, 4 and 18 a unit."""
    screen = Screen()
    screen.begin("run")
    assert screen.judge({"a": 5.0}, 30.0, 0.0, 6.0).longest == 30.0  # nothing to compare with: the weights' own norm
    assert longest(screen, a=50.0) == 30.0
    assert longest(screen, a=1.0, b=2.0, c=9.0) == 6 * 2  # the median of the team
    for _ in range(9):
        assert longest(screen, c=20.0) in (30.0, 6 * 2.0)  # then the votes: (50 and 1), 2, (9 and many a 20)
    assert longest(screen, a=8.0, b=50.0, c=50.0) == 6 * 50  # all grow at once
    for _ in range(300):
        verdict = longest(screen, a=1e-6, b=1e-6)
    assert verdict == pytest.approx(6 * FLOOR * 50)  # gradients have vanished; the peak was kept
    screen.begin("another run")
    assert longest(screen, a=1.0) == 30.0


def test_a_hard_batch_is_shortened_and_a_habit_is_rejected_also_after_a_restart(tmp_path: Path) -> None:
    """Of the last 20 answers more than ten must be long; of the first ones, six and more than half."""
    screen = Screen(tmp_path)
    screen.begin("run")
    for _ in range(20):
        longest(screen, a=1.0, b=1.0, c=1.0)
    assert longest(screen, a=1.0, b=1.0, c=300.0) == 6.0
    for _ in range(9):
        longest(screen, a=1.0, b=1.0, c=10.0)
    for device in "cd":  # one that has trained long, and one that is new
        screen.save()
        screen = Screen(tmp_path)
        screen.begin("run")
        for _ in range(0 if device == "c" else 5):
            longest(screen, a=1.0, b=1.0, d=10.0)
        verdict = screen.judge({"a": 1.0, "b": 1.0, device: 10.0}, 30.0, 0.5, 6.0)
        assert (verdict.longest, verdict.rejected) == (6.0, {device})
    for _ in range(10):
        longest(screen, a=1.0, b=1.0, c=1.0)
    longest(screen, a=1.0, b=1.0, c=10.0)  # it has changed its habit
    for broken in (
        '{"run": "run", "peak": 1, "norms": [["a", -1]], "habits": {}}',
        '{"run": "run", "norms": [1]}',
        "[]",
    ):
        (tmp_path / "norms.json").write_text(broken)
        anew = Screen(tmp_path)
        anew.begin("run")
        assert longest(anew, a=1.0) == 30.0


def test_a_shortened_update_keeps_its_direction_and_its_buffers() -> None:
    answer = Answer(np.array([3.0, -4.0, 7.0], np.float32), np.array([5]), 1.0, norm=5.0)
    short = answer.shortened(1.0, trained=2)
    np.testing.assert_allclose(short.change, [0.6, -0.8, 7.0], rtol=1e-6)
    assert answer.change.tolist() == [3.0, -4.0, 7.0]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([{"loss": 4.77, "accuracy": 0.01}, {"loss": 24.7, "accuracy": 0.01}], ""),  # a high learning rate
        ([{"loss": 4.0}, {"loss": 1.0}, {"loss": 12.1}], "loss 12.1; it was 1, and 4 at the beginning"),
        ([{"loss": 4.0}, {"loss": 0.05}, {"loss": 11.9}], "loss 11.9; it was 0.05"),
        ([{"loss": 4.0}, {"loss": 0.05}, {}, {"loss": 4.1}], "loss 4.1; it was 0.05"),
        ([{"loss": 4.0}, {"loss": 0.001}, {"loss": 3.9}], ""),  # noise of a model that has learnt its data
        ([{"loss": 4.0}, {"loss": 24.0}, {"loss": 239.0}], ""),
        ([{"loss": 4.0}, {"loss": 24.0}, {"loss": 241.0}], "loss 241; it was 24"),
        ([{"loss": 4.0}, {"loss": 390.0}, {"loss": 399.0}], ""),
        ([{"loss": 4.0}, {"loss": 30.0}, {"loss": 200.0}, {"loss": 401.0}], "loss 401; it was 200, and 4 at the"),
        ([{"loss": 4.0}, {"loss": float("nan")}], "loss nan"),
        ([{"loss": -2.0}, {"loss": 15.9}], ""),
        ([{"loss": -2.0}, {"loss": 16.1}], "loss 16.1; it was -2"),
        ([{"train_loss": 4.0}, {"train_loss": 41.0}], "train_loss 41"),
        ([{"loss": 4.0, "train_loss": 4.0}, {"loss": 3.0, "train_loss": 1e5}], ""),  # devices may lie
        ([{"accuracy": 0.23}, {"accuracy": 0.2}, {"accuracy": 0.05}], "accuracy 5.00%; it was 23.00%"),
        ([{"accuracy": 0.23}, {"accuracy": 0.06}], ""),
        ([{"accuracy": 0.09}, {"accuracy": 0.0}], ""),  # of few samples that is chance
        ([{"loss": 4.0}, {}], ""),
    ],
)
def test_when_a_round_has_ruined_the_model(lines: list[dict[str, float]], reason: str) -> None:
    found = collapse(lines, "accuracy", 10.0)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


async def test_a_device_that_lies_about_its_counts_gets_no_more_than_its_part_of_the_turns(park: Park) -> None:
    """The others hold one class each, the liar announces all four: teams with it are the best there are.

    Twelve devices, two a team: a fair share is a sixth, three times that a half.
    """

    class Single(Noise):
        def __init__(self, label: int) -> None:
            super().__init__(label + 1)
            self.label = label

        def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
            for batch in super().batches(size, classes):
                assert batch is not None
                labels = np.arange(size) % classes if self.label < 0 else np.full(size, self.label)
                yield Batch(batch.inputs, labels)

    station = await park.serve("s1", min_devices=12, gather=30)
    honest = [agent(park, station, f"d{number:02d}", Single(number % 3)).run() for number in range(11)]
    async with running(agent(park, station, "liar", Single(-1)).run(), *honest):
        await run_round(station, 1, 200, pick=2)
    turns = {device.name: device.turns for device in station.status().devices}
    assert sum(turns.values()) == 400
    assert 80 <= turns["liar"] <= 100
