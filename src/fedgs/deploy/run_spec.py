"""From the settings of a run to the orders of its rounds: the same settings that ``fedgs run`` simulates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.errors import ConfigError
from fedgs.selection.solve import SOLVERS
from fedgs.selection.team import TeamRule
from fedgs.settings import LOGGERS, Settings
from fedgs.training.optimizers import Optimizer, learning_rates


@dataclass(frozen=True)
class RunSpec:
    """What is trained and how; every station gets the same, but for its number."""

    settings: Settings
    run: str
    classes: int
    """Bins that selection balances."""
    inputs: str
    """Shape and type of one sample, in JSON."""
    digest: str
    """Stands for the network."""
    head: str = ""
    """The name of its last layer."""
    wire: str = "float32"
    class_names: tuple[str, ...] = ()
    """Of the classes that targets number; none where they are values, or numbers alone."""
    channels: int = 0
    """That are normalised: mean and deviation are found in round 0."""

    @property
    def task(self) -> pb.Task:
        """What devices are told."""
        settings = self.settings
        return pb.Task(
            run=self.run, spec=task_spec(settings), classes=self.classes, inputs=self.inputs,
            batch_size=settings.training.batch_size, wire=self.wire.upper(), digest=self.digest, seed=settings.seed,
            class_names=self.class_names, normalise=self.channels > 0,
        )  # fmt: skip

    def order(
        self,
        round_number: int,
        factory: int,
        shapes: Shapes,
        weights: Flat,
        target: NDArray[np.float64] | None,
        attempt: int = 0,
        elsewhere: Sequence[str] = (),
        queues: Mapping[str, float] | None = None,
    ) -> RoundOrder:
        """Return the order of a round (1 is the first; 0, the roll call, trains nothing).

        ``target`` None: the station uses the announcements of its own devices. ``attempt``: how often the round was
        discarded before. ``elsewhere``: devices that are active at another station. ``queues``: of coverage.
        """
        training, selection = self.settings.training, self.settings.selection
        known = np.empty(0) if target is None else target
        wanted = TeamRule.of(selection, known, self.settings.seed, selection.solver, factory)
        rates = learning_rates(training, round_number) if round_number else np.empty(0)
        first = max(round_number - 1, 0) * training.iterations
        task = self.task
        task.moments = 0 if round_number else self.channels
        return RoundOrder(
            self.run, round_number, task, wanted, first, rates, shapes, weights, training.calibration,
            self.settings.server.class_wise, training.clip, self.head, Optimizer.of(training), attempt,
            elsewhere, queues or {},
        )  # fmt: skip


def lasting(settings: Settings, exclude_defaults: bool = False) -> dict[str, Any]:
    """Return the settings that stay the same as long as a run is the same; it may have more rounds than before."""
    others = dict.fromkeys(("eval", "checkpoint", "init", *LOGGERS), True)
    return settings.model_dump(exclude={"training": {"rounds"}, **others}, exclude_defaults=exclude_defaults)


def task_spec(settings: Settings) -> str:
    """Return a task as devices are told it, in JSON: by name, or what differs from the defaults."""
    if isinstance(settings.task, str):
        return json.dumps(settings.task)
    return json.dumps(settings.task.model_dump(exclude_defaults=True) | {"model": settings.task.model})


def check_deployable(settings: Settings) -> None:
    """Refuse settings that only a simulation can follow.

    A baseline to compare with is another run, which nobody asked for here, and so are the settings of its clients.
    """
    default = Settings()
    for key, given, allowed in (
        ("data.validation", settings.data.validation, 0.0),
        ("algorithm.name", settings.algorithm.name, default.algorithm.name),
        ("algorithm.objective", settings.algorithm.objective, None),
        ("streams", settings.streams, default.streams),
        ("dynamics", settings.dynamics, default.dynamics),
        ("eval.ema", settings.eval.ema, 0.0),
        ("init", settings.init, None),
    ):
        if given != allowed:
            raise ConfigError(f"{key} is for simulations; a deployment cannot follow it, take it out of the settings")
    selection = settings.selection
    if selection.coverage.weight and selection.coverage.share != "turns":
        raise ConfigError(
            f"selection.coverage.share={selection.coverage.share!r} depends on how much data a device has, "
            "which it does not send; set selection.coverage.share=turns, or selection.coverage.weight=0"
        )
    if selection.solver == "random-by-data":
        raise ConfigError(
            "selection.solver='random-by-data' depends on how much data a device has, which it does not send; use "
            "'random'"
        )
    if selection.solver in SOLVERS and SOLVERS[selection.solver].learns:
        raise ConfigError(
            f"selection.solver={selection.solver!r} goes by what devices did before, which stations do not keep; use "
            "another solver"
        )
