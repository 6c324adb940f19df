"""What a station remembers of its last round: a full disk, a torn file and an impossible answer cost nothing."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from fedgs.deploy.control import REMEMBERED, Control
from fedgs.deploy.metrics import StationMetrics
from fedgs.deploy.round_messages import RoundOrder, RoundResult, decode_result
from fedgs.deploy.rounds import RoundTrainer
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.station import Station
from fedgs.errors import WireError
from tests.deploy.processes import order

DIGEST = b"0123456789abcdef"


class Counting(RoundTrainer):
    """Answers with the order's weights and counts how often it was asked."""

    times = 0
    loss = 1.0

    async def carry_out(self, order: RoundOrder) -> RoundResult:
        self.times += 1
        return RoundResult(
            order.run, order.round, order.shapes, order.weights, 1, 5, self.loss, 0.0, 0, np.zeros(0)
        )  # fmt: skip


def control_in(folder: Path) -> tuple[Control, Counting]:
    station = Station(StationSettings(), StationMetrics(), insecure=True)
    control = Control("s1", station, folder)
    control.trainer = trainer = Counting(station)
    return control, trainer


def ask(control: Control) -> bytes:
    return asyncio.run(control.result_of(DIGEST, order(1, 1)))


def test_a_round_survives_a_restart_and_a_torn_file_is_trained_again(tmp_path: Path) -> None:
    control, trainer = control_in(tmp_path)
    answer = ask(control)
    assert ask(control) == answer
    assert trainer.times == 1
    restarted, trainer = control_in(tmp_path)
    assert ask(restarted) == answer
    assert trainer.times == 0
    file = tmp_path / REMEMBERED
    whole = file.read_bytes()
    for torn in (whole[:-1], whole[:20], b"", whole[:-1] + bytes([whole[-1] ^ 1]), bytes(len(whole))):
        file.write_bytes(torn)
        restarted, trainer = control_in(tmp_path)
        assert ask(restarted) == answer
        assert trainer.times == 1


def test_a_disk_that_cannot_be_written_loses_no_round(tmp_path: Path) -> None:
    control, trainer = control_in(tmp_path / "missing")
    answer = ask(control)
    assert decode_result(answer).iterations == 1
    assert ask(control) == answer
    assert trainer.times == 1


def test_an_answer_the_top_server_cannot_take_is_not_kept(tmp_path: Path) -> None:
    control, trainer = control_in(tmp_path)
    trainer.loss = math.inf
    with pytest.raises(WireError, match="loss"):
        ask(control)
    assert not (tmp_path / REMEMBERED).exists()
    trainer.loss = 1.0
    assert decode_result(ask(control)).loss == 1.0
    assert trainer.times == 2
