"""Rounds of the baselines: participants train for some epochs, one server makes the next model of it."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.algorithm import Context, Outcome, device_views, mean
from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.mean import sample_shares
from fedgs.algorithms.run_state import RunState
from fedgs.algorithms.upload import Upload
from fedgs.data.arrays import map_tree
from fedgs.errors import AlgorithmError, CheckpointError, ConfigError, DataError, TrainingError
from fedgs.settings import Settings
from fedgs.tasks.bind import sample_inputs
from fedgs.training.client_plan import ClientPlan
from fedgs.training.clients import ClientSetup, Trained, make_client_training, takes_modules
from fedgs.training.diagnose import explain_loss
from fedgs.training.engine import Tick
from fedgs.training.local_step import plain_network
from fedgs.training.network import ModuleNetwork, Network
from fedgs.training.objective import Sent
from fedgs.training.probe import SAMPLES, Traits, probe
from fedgs.training.schedule import learning_rates

if TYPE_CHECKING:
    from fedgs.algorithms.algorithm import Forward

FEWEST_TICKS = 0.02
"""Progress is told in pieces of at least this share of a round."""


class ClientServer:
    """Runs a baseline; the processes of a run share the participants out among themselves."""

    def __init__(self, context: Context, baseline: Baseline) -> None:
        self.settings, self.task, self.store, self.group = context.settings, context.task, context.store, context.group
        self.federation, self.baseline = context.task.federation, baseline
        busy = participants(self.settings, len(self.federation))
        if self.group.size > busy:
            raise ConfigError(f"{self.group.size} processes for {busy} devices a round; start at most one a device")
        training = self.settings.training
        self._base = plain_network(self.task, self.store.device, training.precision)
        self.network: Network = baseline.network(self._base, len(self.federation))
        self.layout = self.network.layout
        if self.layout.local and self.group.size > 1:
            raise ConfigError("task.keep_local needs a run in one process; leave torchrun or task.keep_local out")
        self._head = self.task.head
        traits = Traits()
        if takes_modules(self.network):
            traits = probe(self.task, *sample_inputs(self.task, SAMPLES))
            assert isinstance(self._base, ModuleNetwork)
            self._base.draws_elsewhere = traits.draws_elsewhere
            if baseline.train_acc is not None:
                _ = self._base.num_classes  # refuses a task that has no accuracy
        self.smallest_batch = traits.smallest_batch
        # A device is known to the network by the place of its name in the sorted list of all names.
        self.client_ids = np.argsort(np.argsort(np.array(self.federation.device_names), kind="stable"), kind="stable")
        self.trainer = make_client_training(
            ClientSetup(self.network, baseline, self.store, self.client_ids, training, traits, note=context.note)
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
        if pretrained is not None:
            weights = self.network.on_backbone(self._base.layout.views(pretrained.cpu()), seed)
        return self.layout.flatten(weights).to(self.store.device)

    def given_model(self) -> Tensor | None:
        """Return the plain network that the settings name to start from, flat."""
        from fedgs.training.files import load_model, model_file

        path = self.baseline.pretrain_model
        if path is None:
            return None
        setting = f"algorithm.options.pretrain_model={path!r}"
        file = model_file(path)
        if not file.is_file():
            raise ConfigError(f"{setting}: there is no file {file}; give the model.safetensors of a finished run")
        try:
            return load_model(file, self._base.layout)
        except (CheckpointError, DataError) as error:
            raise ConfigError(
                f"{setting}: {error}; give the model of a run with the same network and classes"
            ) from None

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the baseline remembers before the first round."""
        return dict(self.baseline.init(self.layout.trained_views(weights)))

    def run_round(self, state: RunState, plan: ClientPlan, tick: Tick | None) -> Outcome:
        """Train the participants and let the server take what they send."""
        rate = self._rate(plan.round)
        mine = plan.only(self.group.shard(len(plan.devices)))
        views = self.layout.views(state.weights)
        sent = Sent({name: weight[None] for name, weight in views.items()}, _on(state.server, self.store.device))
        local = None if state.local is None else state.local.to(self.store.device).clone()
        trained = self.trainer.train(sent, mine, rate, self._told(tick), local)
        losses = self._gather(torch.from_numpy(trained.losses.T.copy()), plan).T
        self._check(plan, losses, rate)
        uploads, buffers = self._uploads(plan, trained)
        try:
            weights, memory = self.baseline.update(dict(sent.memory), self.layout.trained_views(state.weights), uploads)
        except AlgorithmError as error:
            raise TrainingError(f"round {plan.round}: {self.server_label} cannot go on: {error}") from None
        kept = {name: views[name] for name in self.layout.local}
        flat = self.layout.flatten({**weights, **buffers, **kept}, out=torch.empty_like(state.weights))
        return Outcome(flat, dict(memory), self._line(plan, losses, rate), rate, local=local)

    def forwards(self, state: RunState) -> "dict[str, Forward]":
        """Return the baseline's way to test a model, and those it has logged beside it."""
        device = self.store.device
        views = device_views(self.layout, state.tested.to(device), state.local)
        memory = _on(state.server, device)
        prepared = takes_modules(self.network)

        def forward_of(baseline: Baseline) -> "Forward":
            def forward(samples: NDArray[np.int64], devices: NDArray[np.int64]) -> Any:
                clients = torch.from_numpy(self.client_ids[devices]).to(device)[None]
                if prepared:
                    inputs, _ = self.store.batch(samples)
                    inputs = map_tree(lambda value: value[None], inputs)
                else:
                    inputs, _ = self.store.pixels(torch.from_numpy(self.store.places(samples)).to(device)[None])
                found = baseline.outputs(self.network, views(devices), memory, inputs, clients)
                return map_tree(lambda value: value[0], found)

            return forward

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

    def _gather(self, mine: Tensor, plan: ClientPlan) -> NDArray[np.float64]:
        rows = self.group.gather_rows(mine.to(self.store.device), len(plan.devices))
        found: NDArray[np.float64] = rows.double().cpu().numpy()
        return found

    def _uploads(self, plan: ClientPlan, trained: Trained) -> tuple[list[Upload], dict[str, Tensor]]:
        """Return what all participants send, in the order of the devices, and the mean of their buffers.

        Buffers are averaged by numbers of samples, whatever the server rule does with weights; of whole numbers the
        greatest counts.
        """
        names, count = self.layout.names, len(plan.devices)
        weights = {name: self.group.gather_rows(trained.weights[name], count) for name in names}
        accuracies = None
        if trained.accuracies is not None:
            accuracies = self._gather(torch.from_numpy(trained.accuracies), plan)
        uploads = []
        order = np.argsort(plan.devices).tolist()
        for place in order:
            metrics = {"device": float(self.client_ids[plan.devices[place]]), "steps": float(plan.steps[place])}
            if accuracies is not None:
                metrics["train_acc"] = float(accuracies[place])
            own = {name: weights[name][place] for name in names[: self.layout.trained]}
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
            reason = explain_loss(self.federation, plan.samples[step, place, : plan.sizes[step, place]])
            raise TrainingError(
                f"round {plan.round}: the loss of device {name!r} is no finite number at its step {step + 1} "
                f"(learning rate {rate:g}); {reason or f'lower {self._rate_setting}'}"
            )

    def _line(self, plan: ClientPlan, losses: NDArray[np.float64], rate: float) -> dict[str, Any]:
        return {
            "train_loss": mean(losses[plan.sizes > 0]),
            "divergence": plan.divergence,
            "divergence_of_round": plan.divergence,  # of all data of the round together, both
            "learning_rate": rate,
            "devices_selected": len(plan.devices),
            "selections": {"least": min(plan.state["selected"]), "most": max(plan.state["selected"])},
            "samples": int(plan.sizes.sum()),
        }


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
