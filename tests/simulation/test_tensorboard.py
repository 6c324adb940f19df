from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedgs.algorithms.run_state import RunState

pytest.importorskip("tensorboard", reason="the extra fedgs[tensorboard] is not installed")


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_events_hold_the_numbers_of_the_rounds_and_none_twice(tmp_path: Path) -> None:
    import torch
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fedgs.simulation.callbacks import TensorBoard

    def state(number: int, accuracy: float) -> RunState:
        line = {"round": number, "accuracy": accuracy, "percentiles": {"10": 0.1, "50": 0.2, "90": 0.3}}
        return RunState(number, torch.zeros(1), {}, metrics=(line,))

    def run(state: RunState) -> Any:
        task = SimpleNamespace(score="accuracy", metrics={"accuracy": None})
        return SimpleNamespace(state=state, score="accuracy", simulator=SimpleNamespace(task=task))

    def round_of(board: TensorBoard, state: RunState) -> None:
        board.on_round(state, {**state.metrics[-1], "seconds": 1.0})

    board = TensorBoard(tmp_path)
    board.on_begin(run(state(0, 0.1)))
    for number in (1, 2, 3):
        round_of(board, state(number, 0.2 * number))
    board.on_stop(None)
    # Killed after round 3 and resumed from the checkpoint of round 1.
    board = TensorBoard(tmp_path)
    board.on_begin(run(state(1, 0.2)))
    round_of(board, state(2, 0.4))
    board.on_stop(None)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, round(event.value, 6)) for event in events.Scalars("accuracy")] == [
        (0, 0.1),
        (1, 0.2),
        (2, 0.4),
    ]
