"""Rounds of the baselines: participants train for some epochs, one server makes the next model of it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.algorithm import Context, Forward, Outcome, SharedRounds, round_line
from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.mean import sample_shares
from fedgs.algorithms.rule import begin_by, update_by
from fedgs.algorithms.run_state import RunState
from fedgs.algorithms.upload import Upload
from fedgs.errors import CheckpointError, ConfigError, DataError
from fedgs.settings import Settings
from fedgs.training.clients import ClientSetup, Trained, make_client_training, plain_network, takes_modules
from fedgs.training.engine import Tick
from fedgs.training.layout import frozen_weights, load_model, model_file
from fedgs.training.objective import Sent
from fedgs.training.optimizers import Optimizer, learning_rates
from fedgs.training.round_plan import ClientPlan

FEWEST_TICKS = 0.02
"""Progress is told in pieces of at least this share of a round."""


class ClientServer(SharedRounds):
    """Runs a baseline; the processes of a run share the participants out among themselves."""

    def __init__(self, context: Context, baseline: Baseline) -> None:
        training, devices = context.settings.training, len(context.task.federation)
        self._base = plain_network(context.task, context.store.device, training.precision)
        network = baseline.network(self._base, devices)
        super().__init__(
            context, baseline, self._base, network, participants(context.settings, devices), "devices a round"
        )
        self.baseline = baseline
        if takes_modules(network) and baseline.train_acc is not None:
            _ = self._base.num_classes  # refuses a task that has no accuracy
        name = context.settings.algorithm.name
        if baseline.plain_sgd and (training.clip is not None or not Optimizer.of(training).plain):
            raise ConfigError(
                f"algorithm.name={name!r} reads gradients off plain SGD steps; set training.optimizer=sgd, "
                "training.momentum=0 and training.weight_decay=0, and leave training.clip out"
            )
        # A device is known to the network by the place of its name in the sorted list of all names.
        self.client_ids = np.argsort(np.argsort(np.array(self.federation.device_names), kind="stable"), kind="stable")
        self.trainer = make_client_training(
            ClientSetup(network, baseline, self.store, self.client_ids, training, self.traits, note=context.note)
        )
        self.server_label = f"algorithm.name={self.settings.algorithm.name!r}"
        self._rate_setting = (
            "algorithm.options.client_lr"
            if baseline.client_lr is not None
            else "algorithm.learning_rate"
            if self.settings.algorithm.learning_rate is not None
            else "training.learning_rate"
        )

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
        if pretrained is None and self.settings.init is not None:
            pretrained = self._base.layout.of_module(self.task.module)
        if pretrained is not None:
            weights = self.network.on_backbone(self._base.layout.views(pretrained.cpu()), seed)
        return self.layout.flatten(weights).to(self.store.device)

    def given_model(self) -> Tensor | None:
        """Return the plain network that the settings name to start from, flat."""
        path = self.baseline.pretrain_model
        if path is None:
            return None
        setting = f"algorithm.options.pretrain_model={path!r}"
        if self.settings.init is not None:
            raise ConfigError(f"{setting}: the run has init={self.settings.init!r} already; give one of them")
        file = model_file(path)
        if not file.is_file():
            raise ConfigError(f"{setting}: there is no file {file}; give the model.safetensors of a finished run")
        try:
            return load_model(file, self._base.layout, frozen_weights(self.task.module))
        except (CheckpointError, DataError) as error:
            raise ConfigError(
                f"{setting}: {error}; give the model of a run with the same network and classes"
            ) from None

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the baseline and its clients remember before the first round."""
        shared = self._shared(weights)
        return begin_by(self.baseline, shared) | self.baseline.init_clients(shared, len(self.federation))

    def _shared(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the trained weights that travel."""
        views = self.layout.trained_views(weights)
        return {name: view for name, view in views.items() if name not in self.layout.local}

    def run_round(self, state: RunState, plan: ClientPlan, tick: Tick | None) -> Outcome:
        """Train the participants and let the server take what they send."""
        rate = self._rate(plan.round)
        mine = plan.only(self.group.shard(len(plan.devices)))
        views = self.layout.views(state.weights)
        sent = Sent(self.layout.one_client(state.weights), _on(state.server, self.store.device))
        local = None if state.local is None else state.local.to(self.store.device).clone()
        trained = self.trainer.train(sent, mine, rate, self._told(tick), local)
        losses = self.gathered(trained.losses.T, len(plan.devices)).T
        self._check(plan, losses, rate)
        uploads, buffers = self._uploads(plan, trained, rate)
        with self.server_errors(plan.round):
            weights, memory = update_by(self.baseline, dict(sent.memory), self._shared(state.weights), uploads)
        kept = {name: views[name] for name in self.layout.local}
        flat = self.layout.flatten({**weights, **buffers, **kept}, out=torch.empty_like(state.weights))
        line = round_line(
            plan, losses[plan.sizes > 0], rate, len(plan.devices),
            divergence=plan.divergence, divergence_of_round=plan.divergence,  # of all data of the round together, both
        )  # fmt: skip
        return Outcome(flat, dict(memory), line, rate, local=local)

    def forwards(self, state: RunState) -> dict[str, Forward]:
        """Return the baseline's way to test a model, and those it has logged beside it."""
        memory = _on(state.server, self.store.device)

        def forward_of(baseline: Baseline) -> Forward:
            def outputs(weights: Any, inputs: Any, devices: NDArray[np.int64]) -> Any:
                clients = torch.from_numpy(self.client_ids[devices]).to(self.store.device)[None]
                return baseline.outputs(self.network, weights, memory, inputs, clients)

            return self.forward(state.tested, state.local, outputs)

        return {name: forward_of(one) for name, one in {"": self.baseline, **self.baseline.tests()}.items()}

    def close(self) -> None:
        """Give the training's memory back."""
        self.trainer.close()

    def _rate(self, round_number: int) -> float:
        rate = rate_of(self.settings, self.baseline)
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

    def _uploads(self, plan: ClientPlan, trained: Trained, rate: float) -> tuple[list[Upload], dict[str, Tensor]]:
        """Return what all participants send, in the order of the devices, and the mean of their buffers.

        Buffers are averaged by numbers of samples, whatever the server rule does with weights; of whole numbers the
        greatest counts.
        """
        names, count = self.layout.names, len(plan.devices)
        weights = {name: self.group.gather_rows(trained.weights[name], count) for name in names}
        accuracies = None
        if trained.accuracies is not None:
            accuracies = self.gathered(trained.accuracies, count)
        uploads = []
        order = np.argsort(plan.devices).tolist()
        for place in order:
            metrics = {"device": float(self.client_ids[plan.devices[place]]), "steps": float(plan.steps[place]),
                       "rate": rate}  # fmt: skip
            if accuracies is not None:
                metrics["train_acc"] = float(accuracies[place])
            own = {name: weights[name][place] for name in names[: self.layout.trained] if name not in self.layout.local}
            uploads.append(Upload(own, int(plan.num_samples[place]), metrics))
        shares = sample_shares(uploads, "samples")
        buffers = {}
        for name in names[self.layout.trained :]:
            rows = weights[name][order].double()
            if name in self.layout.integer_types:
                buffers[name] = rows.amax(0).float()
            else:
                say = torch.tensor(shares, dtype=torch.float64, device=rows.device).view(-1, *[1] * (rows.ndim - 1))
                buffers[name] = (rows * say).sum(0).float()
        return uploads, buffers

    def _check(self, plan: ClientPlan, losses: NDArray[np.float64], rate: float) -> None:
        wrong = ~np.isfinite(losses) & (plan.sizes > 0)
        if wrong.any():
            step, place = (int(number) for number in np.argwhere(wrong)[0])
            name = self.federation.device_names[plan.devices[place]]
            samples = plan.samples[step, place, : plan.sizes[step, place]]
            where = f"its step {step + 1} (learning rate {rate:g})"
            self.diverged(plan.round, f"device {name!r}", where, samples, self._rate_setting)


def rate_of(settings: Settings, baseline: Baseline) -> float:
    """Return the learning rate of the clients, before the schedule."""
    return baseline.client_lr or settings.algorithm.learning_rate or settings.training.learning_rate


def participants(settings: Settings, devices: int) -> int:
    """Return how many devices take part in a round of a baseline: M·L, unless the settings name a number."""
    wanted = settings.algorithm.devices_per_round
    return min(wanted or settings.federation.factories * settings.selection.pick, devices)


def _on(memory: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a memory whose tensors lie on the device: a checkpoint's are on the processor."""
    return {
        entry: {key: tensor.to(device) for key, tensor in value.items()} if isinstance(value, dict) else value
        for entry, value in memory.items()
    }
