from pathlib import Path

import pytest

from fedgs.algorithms.run_state import RunState
from fedgs.simulation.simulator import Timing

pytest.importorskip("tensorboard", reason="the extra fedgs[tensorboard] is not installed")


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_events_hold_the_numbers_of_the_rounds_and_none_twice(tmp_path: Path) -> None:
    import torch
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fedgs.report.tensorboard import TensorBoardWatcher

    def state(number: int, accuracy: float) -> RunState:
        line = {"round": number, "accuracy": accuracy, "percentiles": {"10": 0.1, "50": 0.2, "90": 0.3}}
        return RunState(number, torch.zeros(1), {}, metrics=(line,))

    watcher = TensorBoardWatcher(tmp_path)
    watcher.begin(state(0, 0.1))
    for number in (1, 2, 3):
        watcher.round(state(number, 0.2 * number), Timing(total=1.0))
    watcher.end()
    # Killed after round 3 and resumed from the checkpoint of round 1.
    watcher = TensorBoardWatcher(tmp_path)
    watcher.begin(state(1, 0.2))
    watcher.round(state(2, 0.4), Timing(total=1.0))
    watcher.end()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, round(event.value, 6)) for event in events.Scalars("accuracy")] == [
        (0, 0.1),
        (1, 0.2),
        (2, 0.4),
    ]
