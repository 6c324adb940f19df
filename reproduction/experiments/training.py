"""The work of most jobs: a training run, from beginning to end or on from where it was stopped.

What comes of it: the curve of the rounds that were tested, the summary of the run, and the rates and options it really
used (``resolved``). A run that diverges has a curve up to there, and says why under ``failed``.
"""

from typing import TYPE_CHECKING, Any

import torch

from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.errors import TrainingError
from fedgs.settings import Settings
from fedgs.simulation.memory import translate_oom
from fedgs.simulation.simulator import Simulator
from fedgs.simulation.summary import summarise
from reproduction.experiments.job_checkpoint import JobCheckpoint
from reproduction.experiments.resolved import resolved_of

if TYPE_CHECKING:
    from reproduction.experiments.jobs import Result, Share


def train(
    settings: Settings, federation: Federation, device: torch.device, share: "Share", job_checkpoint: JobCheckpoint
) -> "Result":
    """Run a training from beginning to end, or on from where it was stopped: its curve and its summary."""
    # A baseline tells of shares of its rounds, FedGS of iterations.
    work = max(settings.training.rounds * (1 if settings.algorithm.is_baseline else settings.training.iterations), 1)
    state: RunState | None = None
    failed = None
    with (
        translate_oom(),
        Simulator(settings, federation, device, tick=lambda iterations: share(iterations / work)) as simulator,
    ):
        try:
            state = job_checkpoint.restore(simulator)
            if state is not None:
                share(state.round / max(settings.training.rounds, 1))
            else:
                state = simulator.begin()
                job_checkpoint.save(simulator, state)  # pre-training can take its time
            for following in simulator.rounds(state):
                state = following
                job_checkpoint.save(simulator, state)
        except TrainingError as error:
            failed = str(error)
        except KeyboardInterrupt:
            if state is not None:
                job_checkpoint.save(simulator, state, at_once=True)
            raise
    came_out: Result = {"resolved": resolved_of(settings, len(federation.classes))}
    if failed is not None:
        return came_out | {"failed": failed, "curve": _curve(state), "summary": None}
    assert state is not None
    summary = summarise(settings, simulator.task, state, components=simulator.components)
    del summary["machine"]
    return came_out | {"curve": _curve(state), "summary": summary}


def _curve(state: RunState | None) -> dict[str, list[Any]]:
    """Return what was measured in the rounds that were tested."""
    tested = [line for line in state.metrics if "accuracy" in line] if state is not None else []
    keys = ("round", "accuracy", "loss", "train_loss", "divergence", "divergence_of_round", "missing_classes")
    return {key: [_short(line.get(key)) for line in tested] for key in keys}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
