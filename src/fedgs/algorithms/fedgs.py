"""FedGS's rounds (Algorithm 1): T iterations in every factory, then the external synchronisation."""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.algorithm import Outcome, mean
from fedgs.algorithms.run_state import RunState
from fedgs.algorithms.synchronise import Synchroniser
from fedgs.data import Federation
from fedgs.errors import AlgorithmError, ConfigError, TrainingError
from fedgs.network.clock import RoundCost, VirtualClock
from fedgs.settings import Settings
from fedgs.simulation.evaluate import Forward
from fedgs.simulation.process_group import World
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.simulation.step_time import step_seconds
from fedgs.tasks.cnn import build_model
from fedgs.training.engine import Engine, RoundResult, Tick, make_engine
from fedgs.training.layout import WEIGHT_BYTES, Layout
from fedgs.training.round_plan import RoundPlan
from fedgs.training.schedule import learning_rates
from fedgs.training.store import ImageStore, mixed_precision


class GroupedRounds:
    """Plays FedGS; the ranks of ``world`` share the factories out among themselves."""

    def __init__(self, settings: Settings, federation: Federation, store: ImageStore, world: World) -> None:
        self.settings, self.federation, self.store, self.world = settings, federation, store, world
        if world.size > federation.factories:
            raise ConfigError(
                f"{world.size} processes for {federation.factories} factories; start at most one a factory"
            )
        self._factories = world.shard(federation.factories)
        model = build_model(
            settings.training.model, len(federation.classes), federation.images.shape[1:], settings.seed
        )
        self.layout = Layout.of(model)
        self._start = self.layout.flatten(dict(model.named_parameters()))
        self.engine: Engine = make_engine(model, store, settings.training)
        self._synchroniser = Synchroniser(settings.server, self.layout, world)
        self._flat = torch.zeros(self.layout.size, device=store.device)
        self._model = copy.deepcopy(model).to(store.device).requires_grad_(False)
        self.layout.bind(self._model, self._flat)
        self.server_words = f"server.rule={settings.server.rule!r}"

    def plan(self) -> SelectionPlan:
        """Return the selection of a new run."""
        return SelectionPlan(self.federation, self.settings)

    def check(self, begun: bool) -> None:
        """Make the plan once: it reads the trace of events."""
        self.plan()

    def first_weights(self, pretrained: Tensor | None) -> Tensor:
        """Return freshly drawn weights; FedGS is not pre-trained."""
        return self._start.to(self.store.device)

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the server rule remembers before the first round."""
        return self._synchroniser.begin(weights)

    def play(self, state: RunState, plan: RoundPlan, tick: Tick | None) -> Outcome:
        """Train T iterations in every factory and synchronise."""
        rates = learning_rates(self.settings.training, plan.round)
        momentum = self._own_momentum(state.momentum)
        result = self.engine.train_round(state.weights, plan.only(self._factories), rates, momentum, tick)
        losses = self._all_losses(result)
        self._check(plan, losses, rates, result)
        try:
            weights, memory = self._synchroniser.update(
                state.server,
                state.weights,
                result.stations,
                plan.trained,
                self._reports(plan, result.stations),
                plan.seen,
            )
        except AlgorithmError as error:
            raise TrainingError(f"round {plan.round}: {self.server_words} cannot go on: {error}") from None
        return Outcome(weights, memory, self._line(plan, losses, rates), float(rates[-1]), result.momentum)

    def measure_step(self) -> float:
        """Return the seconds of one local step on a device."""
        return step_seconds(
            self.settings.training.model, len(self.federation.classes), self.store.shape,
            self.settings.training.batch_size,
        )  # fmt: skip

    def cost(self, clock: VirtualClock, plan: RoundPlan) -> RoundCost:
        """Return what the round would take: T iterations in the factories, side by side, and the top server."""
        return clock.fedgs_round(plan.devices, WEIGHT_BYTES * self.layout.size, plan.seconds, returned=plan.sizes > 0)

    def forwards(self, weights: Tensor, server: dict[str, Any]) -> dict[str, Forward]:
        """Return the way to test a model."""
        self._flat.copy_(weights)

        def forward(samples: NDArray[np.int64], devices: NDArray[np.int64]) -> Tensor:
            images, _ = self.store.batch(samples)
            with mixed_precision(self.store.device, self.settings.training.precision):
                logits: Tensor = self._model(images)
            return logits

        return {"": forward}

    def close(self) -> None:
        """Give the engine's threads and memory back."""
        self.engine.close()

    def _reports(self, plan: RoundPlan, stations: Tensor) -> list[dict[str, float]]:
        """Return what each factory's station tells the server beside its model."""
        steps = (plan.totals > 0).sum(axis=0)
        reports = [{"steps": float(number)} for number in steps]
        if self._synchroniser.needs_accuracy:
            mine = torch.zeros(len(self._factories), 1)
            for row, factory in enumerate(self._factories.tolist()):
                if steps[factory]:
                    samples = plan.union(int(np.flatnonzero(plan.totals[:, factory])[-1]), factory)
                    logits = self.forwards(stations[row], {})[""](samples, samples)
                    mine[row] = (logits.argmax(1) == self.store.labels_of(samples)).float().mean().cpu()
            accuracies = self.world.gather_rows(mine.to(self.store.device), len(steps))[:, 0].tolist()
            reports = [{**report, "train_acc": own} for report, own in zip(reports, accuracies, strict=True)]
        return reports

    def _own_momentum(self, momentum: Tensor | None) -> Tensor | None:
        """Return this process's part of the velocities of a checkpoint, which has all of them."""
        if momentum is not None and self.world.size > 1 and len(momentum) == self.federation.factories:
            momentum = momentum[torch.from_numpy(self._factories)]
        return momentum

    def _all_losses(self, result: RoundResult) -> NDArray[np.float64]:
        """Return the losses (iterations, factories) of all processes."""
        mine = torch.from_numpy(result.losses.T.copy()).to(self.store.device)
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

    def _line(self, plan: RoundPlan, losses: NDArray[np.float64], rates: NDArray[np.float64]) -> dict[str, Any]:
        there = plan.totals > 0
        seen = plan.devices[plan.devices >= 0]
        line: dict[str, Any] = {
            "train_loss": mean(losses[there]),
            "divergence": mean(plan.divergence[~np.isnan(plan.divergence)]),
            "divergence_of_round": mean(plan.window_divergence[~np.isnan(plan.window_divergence)]),
            "missing_classes": mean(plan.missing_classes[~np.isnan(plan.missing_classes)]),
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
