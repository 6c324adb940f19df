"""Rounds of the flat approaches: participants train for some epochs, one server makes the next model of it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import APPROACHES, Approach, Sent, Upload, make_approach
from fedgs.algorithms.algorithm import Outcome, mean
from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.errors import AlgorithmError, ConfigError, TrainingError
from fedgs.network.clock import RoundCost, VirtualClock
from fedgs.settings import Settings
from fedgs.simulation.evaluate import Forward
from fedgs.simulation.participants import FlatPlan, ParticipantPlan, participants
from fedgs.simulation.pretraining import pretrained_model
from fedgs.simulation.process_group import World
from fedgs.simulation.step_time import step_seconds
from fedgs.training.captured_clients import CapturedTraining
from fedgs.training.engine import Tick
from fedgs.training.layout import Layout
from fedgs.training.schedule import learning_rates
from fedgs.training.sequential import OneByOne
from fedgs.training.stacked_clients import LocalTraining, Trained
from fedgs.training.stacked_networks import Network, build_network
from fedgs.training.store import ImageStore

FEWEST_TICKS = 0.02
"""Progress is told in pieces of at least this share of a round."""


class FlatRounds:
    """Plays a flat approach; the ranks of ``world`` share the participants out among themselves."""

    def __init__(
        self,
        settings: Settings,
        federation: Federation,
        store: ImageStore,
        world: World,
        purpose: str = "",
    ) -> None:
        self.settings, self.federation, self.store, self.world = settings, federation, store, world
        busy = participants(settings, len(federation))
        if world.size > busy:
            raise ConfigError(f"{world.size} processes for {busy} devices a round; start at most one a device")
        self.approach = approach_of(settings, len(federation.classes))
        self._purpose = purpose
        self._base = build_network(
            settings.training.model, len(federation.classes), store.shape, settings.training.precision
        )
        self._base_layout = Layout.of_weights(self._base.first_weights(settings.seed))
        self.network: Network = self.approach.network(self._base, len(federation))
        first = self.network.first_weights(settings.seed)
        self.layout = Layout.of_weights(first)
        self._bytes_down, self._bytes_up = self.approach.traffic(first)
        # A device is known to the network by the place of its name in the sorted list of all names.
        self.owners = np.argsort(np.argsort(np.array(federation.device_names), kind="stable"), kind="stable")
        fast = CapturedTraining if store.device.type == "cuda" else LocalTraining
        trainer = OneByOne if settings.training.engine == "per-device" else fast
        self.trainer: LocalTraining = trainer(
            self.network, self.approach, self.layout, store, self.owners,
            settings.training.momentum, settings.training.precision, clip=settings.training.clip,
        )  # fmt: skip
        self.server_words = f"algorithm.name={settings.algorithm.name!r}"
        self._rate_setting = (
            "algorithm.options.client_lr"
            if self.approach.client_lr is not None
            else "algorithm.learning_rate"
            if settings.algorithm.learning_rate is not None
            else "training.learning_rate"
        )

    def plan(self) -> ParticipantPlan:
        """Return the participants of a new run."""
        return ParticipantPlan(self.federation, self.settings, self._purpose)

    def check(self, begun: bool) -> None:
        """Read the model to start from once."""
        if not begun:
            self.given_model()

    def first_weights(self, pretrained: Tensor | None) -> Tensor:
        """Return freshly drawn weights, on a pre-trained backbone where there is one."""
        seed = self.settings.seed
        weights = self.network.first_weights(seed)
        if pretrained is None:
            pretrained = self.given_model()
        if pretrained is not None:
            weights = self.network.on_backbone(self._base_layout.views(pretrained.cpu()), seed)
        return self.layout.flatten(weights).to(self.store.device)

    def given_model(self) -> Tensor | None:
        """Return the plain network that the settings name to start from, flat."""
        path = self.approach.pretrain_model
        return None if path is None else pretrained_model(path, self._base_layout)

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the approach remembers before the first round."""
        return dict(self.approach.init(self.layout.views(weights)))

    def play(self, state: RunState, plan: FlatPlan, tick: Tick | None) -> Outcome:
        """Train the participants and let the server take what they send."""
        rate = self._rate(plan.round)
        mine = plan.only(self.world.shard(len(plan.devices)))
        views = self.layout.views(state.weights)
        sent = Sent({name: weight[None] for name, weight in views.items()}, _on(state.server, self.store.device))
        trained = self.trainer.train(sent, mine, rate, self._told(tick))
        losses = self._gather(torch.from_numpy(trained.losses.T.copy()), plan).T
        self._check(plan, losses, rate)
        uploads = self._uploads(plan, trained)
        try:
            weights, memory = self.approach.update(sent.memory, views, uploads)
        except AlgorithmError as error:
            raise TrainingError(f"round {plan.round}: {self.server_words} cannot go on: {error}") from None
        flat = self.layout.flatten(weights, out=torch.empty_like(state.weights))
        return Outcome(flat, dict(memory), self._line(plan, losses, rate), rate)

    def measure_step(self) -> float:
        """Return the seconds of one local step of this approach on a device."""
        return step_seconds(
            self.settings.training.model, len(self.federation.classes), self.store.shape,
            self.settings.training.batch_size, self.approach, len(self.federation),
        )  # fmt: skip

    def cost(self, clock: VirtualClock, plan: FlatPlan) -> RoundCost:
        """Return what the round would take: every participant's own steps, then all of them and the top server."""
        return clock.flat_round(plan.devices, plan.steps, bytes_down=self._bytes_down, bytes_up=self._bytes_up)

    def forwards(self, weights: Tensor, server: dict[str, Any]) -> dict[str, Forward]:
        """Return the approach's way to test a model, and those it has logged beside it."""
        stacked = {name: weight[None] for name, weight in self.layout.views(weights).items()}
        memory = _on(server, self.store.device)

        def forward_of(approach: Approach) -> Forward:
            def forward(samples: NDArray[np.int64], devices: NDArray[np.int64]) -> Tensor:
                places = torch.from_numpy(self.store.places(samples)).to(self.store.device)[None]
                owners = torch.from_numpy(self.owners[devices]).to(self.store.device)[None]
                images, _ = self.store.pixels(places)
                return approach.logits(self.network, stacked, memory, images, owners)[0]

            return forward

        return {name: forward_of(approach) for name, approach in {"": self.approach, **self.approach.tests()}.items()}

    def close(self) -> None:
        """Give the training's memory back."""
        self.trainer.close()

    def _rate(self, round_number: int) -> float:
        rate = rate_of(self.settings, self.approach)
        # Constant within a round.
        once = self.settings.training.model_copy(update={"iterations": 1, "learning_rate": rate})
        return float(learning_rates(once, round_number)[0])

    def _told(self, tick: Tick | None) -> Tick | None:
        """Return a tick that passes shares of a round on in pieces of some size."""
        if tick is None:
            return None
        waiting = [0.0]

        def told(share: float) -> None:
            waiting[0] += share
            if waiting[0] >= FEWEST_TICKS:
                tick(waiting[0])
                waiting[0] = 0.0

        return told

    def _gather(self, mine: Tensor, plan: FlatPlan) -> NDArray[np.float64]:
        rows = self.world.gather_rows(mine.to(self.store.device), len(plan.devices))
        found: NDArray[np.float64] = rows.double().cpu().numpy()
        return found

    def _uploads(self, plan: FlatPlan, trained: Trained) -> list[Upload]:
        """Return what all participants send, in the order of the devices: the same however they were trained."""
        participants = len(plan.devices)
        weights = {name: self.world.gather_rows(weight, participants) for name, weight in trained.weights.items()}
        accuracies = None
        if trained.accuracies is not None:
            accuracies = self._gather(torch.from_numpy(trained.accuracies), plan)
        uploads = []
        for place in np.argsort(plan.devices).tolist():
            metrics = {"device": float(self.owners[plan.devices[place]]), "steps": float(plan.steps[place])}
            if accuracies is not None:
                metrics["train_acc"] = float(accuracies[place])
            own = {name: weight[place] for name, weight in weights.items()}
            uploads.append(Upload(own, int(plan.num_samples[place]), metrics))
        return uploads

    def _check(self, plan: FlatPlan, losses: NDArray[np.float64], rate: float) -> None:
        wrong = ~np.isfinite(losses) & (plan.sizes > 0)
        if wrong.any():
            step, place = (int(number) for number in np.argwhere(wrong)[0])
            name = self.federation.device_names[plan.devices[place]]
            raise TrainingError(
                f"round {plan.round}: the loss of device {name!r} is no finite number at its step {step + 1} "
                f"(learning rate {rate:g}); lower {self._rate_setting}"
            )

    def _line(self, plan: FlatPlan, losses: NDArray[np.float64], rate: float) -> dict[str, Any]:
        return {
            "train_loss": mean(losses[plan.sizes > 0]),
            "divergence": plan.divergence,
            "divergence_of_round": plan.divergence,  # of all data of the round together, both
            "learning_rate": rate,
            "devices_selected": len(plan.devices),
            "selections": {"least": min(plan.state["selected"]), "most": max(plan.state["selected"])},
            "samples": int(plan.sizes.sum()),
        }


def approach_of(settings: Settings, classes: int) -> Approach:
    """Return the approach of the settings, for so many classes."""
    name, options = settings.algorithm.name, dict(settings.algorithm.options)
    if "classes" in APPROACHES[name].options:
        options.setdefault("classes", classes)
    return make_approach(name, **options)


def rate_of(settings: Settings, approach: Approach) -> float:
    """Return the learning rate of the devices, before the schedule."""
    return approach.client_lr or settings.algorithm.learning_rate or settings.training.learning_rate


def _on(memory: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a memory whose tensors lie on the device: a checkpoint's are on the processor."""
    return {
        entry: {key: tensor.to(device) for key, tensor in value.items()} if isinstance(value, dict) else value
        for entry, value in memory.items()
    }
