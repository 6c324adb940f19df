"""FedGS (Algorithm 1) as a function from state to state, one round at a time.

    with Simulator(settings, federation) as simulator:
        state = simulator.begin()
        for state in simulator.rounds(state):
            print(state.metrics[-1])

The random numbers a round uses follow from (seed, purpose, iteration, factory); the result depends on settings and data
alone: not on threads, on how far the selection runs ahead, or on how often the run was interrupted.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.config import Settings
from fedgs.data import Federation
from fedgs.errors import AlgorithmError, ConfigError, DeviceError, TrainingError
from fedgs.models import build_model
from fedgs.schedule import learning_rates
from fedgs.simulation.engine import Engine, RoundResult, Tick, make_engine
from fedgs.simulation.evaluate import Evaluation, Evaluator
from fedgs.simulation.images import ImageStore
from fedgs.simulation.layout import Layout
from fedgs.simulation.round_plan import RoundPlan
from fedgs.simulation.run_ahead import RunAhead
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.state import RunState
from fedgs.simulation.synchronise import Synchroniser
from fedgs.simulation.world import World


@dataclass
class Timing:
    """Where the time of the last round went, in seconds; never part of the state."""

    total: float = 0.0
    training: float = 0.0
    evaluation: float = 0.0
    waiting: float = 0.0
    """For the selection."""


class Simulator:
    """Runs a federation; a context manager, for it owns threads and memory."""

    def __init__(
        self,
        settings: Settings,
        federation: Federation,
        device: str | torch.device = "cpu",
        world: World | None = None,
        *,
        ahead: int = 3,
        tick: Tick | None = None,
    ) -> None:
        """``ahead``: how many rounds the selection may be ahead. ``tick`` is told of iterations as they are done."""
        self.settings, self.federation, self.device = settings, federation, torch.device(device)
        self.world = world or World()
        self.timing = Timing()
        self.last_evaluation: Evaluation | None = None
        self._ahead, self._tick = ahead, tick
        if self.world.size > federation.factories:
            raise ConfigError(
                f"{self.world.size} processes for {federation.factories} factories; start at most one a factory"
            )
        self._factories = self.world.shard(federation.factories)
        model = build_model(
            settings.training.model, len(federation.classes), federation.images.shape[1:], settings.seed
        )
        self.layout = Layout.of(model)
        self._first_weights = self.layout.flatten(dict(model.named_parameters()))
        store = ImageStore(federation, self.device)
        self.engine: Engine = make_engine(model, store, settings.training)
        self.evaluator = Evaluator(model, federation, store, self.world, settings.training.precision)
        self._synchroniser = Synchroniser(settings.server, self.layout, self.world)

    def __enter__(self) -> "Simulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def begin(self) -> RunState:
        """Return the state before the first round, the untrained model already tested."""
        weights = self._first_weights.to(self.device)
        state = RunState(
            round=0,
            weights=weights,
            plan=SelectionPlan(self.federation, self.settings).state_dict(),
            server=self._synchroniser.begin(weights),
            average=weights.clone() if self.settings.eval.ema else None,
        )
        began = time.perf_counter()
        line = {"round": 0, **self._evaluate(state)}
        self.timing = Timing(total=time.perf_counter() - began, evaluation=time.perf_counter() - began)
        return replace(state, metrics=(line,))

    def rounds(self, state: RunState) -> Iterator[RunState]:
        """Yield the state after each round, up to the last one of the settings."""
        plan = SelectionPlan(self.federation, self.settings)
        plan.load_state(state.plan)
        state = self._onto_device(state)
        with RunAhead(plan, self.settings.training.rounds, self._ahead) as plans:
            waited = 0.0
            began = time.perf_counter()
            for round_plan in plans:
                self.timing = Timing(waiting=plans.waited - waited)
                waited = plans.waited
                state = self.play(state, round_plan)
                self.timing.total = time.perf_counter() - began
                yield state
                began = time.perf_counter()

    def play(self, state: RunState, plan: RoundPlan) -> RunState:
        """Return the state after one round: T iterations in every factory, external synchronisation, test."""
        training = self.settings.training
        began = time.perf_counter()
        rates = learning_rates(training, plan.round)
        result = self.engine.train_round(state.weights, plan.only(self._factories), rates, state.momentum, self._tick)
        losses = self._all_losses(result)
        self._check(plan, losses, rates, result)
        rule = self.settings.server.rule
        try:
            weights, memory = self._synchroniser.update(state.server, state.weights, result.stations, plan.trained)
        except AlgorithmError as error:
            raise TrainingError(f"round {plan.round}: server.rule={rule!r} cannot go on: {error}") from None
        if not bool(torch.isfinite(weights).all()):
            raise TrainingError(
                f"round {plan.round}: the global model is not finite after server.rule={rule!r}; lower its server_lr"
            )
        self.timing.training = time.perf_counter() - began
        new = RunState(
            round=plan.round,
            weights=weights,
            plan=plan.state,
            server=memory,
            momentum=result.momentum,
            average=self._averaged(state.average, weights, plan.round),
        )
        line: dict[str, Any] = {"round": plan.round, **self._training_line(plan, losses, rates)}
        if plan.round % self.settings.eval.every == 0 or plan.round == training.rounds:
            began = time.perf_counter()
            line |= self._evaluate(new)
            self.timing.evaluation = time.perf_counter() - began
            if not np.isfinite(line["loss"]):
                raise TrainingError(
                    f"round {plan.round}: the test loss is not a finite number (server.rule={rule!r}, learning rate "
                    f"{rates[-1]:g}); the weights have grown beyond measure, lower the rates"
                )
        return replace(new, metrics=(*state.metrics, line))

    def gathered(self, state: RunState) -> RunState:
        """Return the state with the momentum of all processes' stations: what a checkpoint holds."""
        if state.momentum is None:
            return state
        return replace(state, momentum=self.world.gather_rows(state.momentum, self.federation.factories))

    def _onto_device(self, state: RunState) -> RunState:
        momentum = state.momentum
        if momentum is not None:
            if len(momentum) == self.federation.factories:
                momentum = momentum[torch.from_numpy(self._factories)]
            momentum = momentum.to(self.device)
        average = None if state.average is None else state.average.to(self.device)
        return replace(state, weights=state.weights.to(self.device), momentum=momentum, average=average)

    def _averaged(self, average: Tensor | None, weights: Tensor, round_number: int) -> Tensor | None:
        if average is None:
            return None
        # A short memory at first, or the untrained model would linger.
        decay = min(self.settings.eval.ema, round_number / (round_number + 9))
        return average * decay + weights * (1 - decay)

    def _all_losses(self, result: RoundResult) -> NDArray[np.float64]:
        """Return the losses (iterations, factories) of all processes."""
        mine = torch.from_numpy(result.losses.T.copy()).to(self.device)
        return self.world.gather_rows(mine, self.federation.factories).cpu().numpy().T

    def _check(
        self, plan: RoundPlan, losses: NDArray[np.float64], rates: NDArray[np.float64], result: RoundResult
    ) -> None:
        wrong = ~np.isfinite(losses) & (plan.totals > 0)
        finite = torch.isfinite(result.stations).all(dim=1)[:, None].to(torch.float32)
        bad_station = ~self.world.gather_rows(finite, self.federation.factories)[:, 0].bool().cpu().numpy()
        wrong[-1] |= bad_station  # the last step can do harm that no loss has seen yet
        if not wrong.any():
            return
        row, factory = (int(number) for number in np.argwhere(wrong)[0])
        iteration = (plan.round - 1) * self.settings.training.iterations + row + 1
        raise TrainingError(
            f"round {plan.round}: the loss of factory {self.federation.factory_names[factory]!r} is no finite number "
            f"at iteration {iteration} (learning rate {rates[row]:g}); lower training.learning_rate"
        )

    def _evaluate(self, state: RunState) -> dict[str, Any]:
        tested = state.weights if state.average is None else state.average
        found = self.evaluator.evaluate(tested)
        self.last_evaluation = found
        low, middle, high = found.percentiles
        return {
            "accuracy": found.accuracy,
            "loss": found.loss,
            "factories": list(found.factories),
            "percentiles": {"10": low, "50": middle, "90": high},
        }

    def _training_line(
        self, plan: RoundPlan, losses: NDArray[np.float64], rates: NDArray[np.float64]
    ) -> dict[str, Any]:
        there = plan.totals > 0
        seen = plan.devices[plan.devices >= 0]
        line: dict[str, Any] = {
            "train_loss": _mean(losses[there]),
            "divergence": _mean(plan.divergence[~np.isnan(plan.divergence)]),
            "learning_rate": float(rates[-1]),
            "devices_selected": len(np.unique(seen)),
            "selections": {"least": min(plan.state["selected"]), "most": max(plan.state["selected"])},
            "samples": int(plan.sizes.sum()),
        }
        if plan.events:
            line["events"] = dict(plan.events)
        if not plan.trained.all():
            line["sat_out"] = int((~plan.trained).sum())
        return line


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def pick_device(name: str) -> torch.device:
    """Return the torch device of ``auto``, ``cpu`` or ``cuda``; under torchrun each process has a GPU of its own."""
    import os

    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"--device {name}: choose auto, cpu or cuda")
    there = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not there:
        raise DeviceError("--device cuda: torch finds no CUDA GPU on this machine; use --device cpu or auto")
    if not there:
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
