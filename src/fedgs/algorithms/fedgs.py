"""FedGS (Algorithm 1): T iterations in every factory, then the external synchronisation.

Li, He, Yu, Kang, Li, Xu, Niyato: "Data Heterogeneity-Robust Federated Learning via Group Client Selection in Industrial
IoT", IEEE Internet of Things Journal, 2022. In each iteration a station selects L devices whose next mini-batches
together look like P_real, lets each make one SGD step, and averages them (eq. internal-aggr); after T iterations the
top server averages the stations (eq. external-aggr).

The local objective is a choice, as for the baselines: ``FedGS(objective=FedProx(mu=0.1))``. A device makes one step
from its station's model, so FedProx's pull and FedMMD's second stream are towards the global model the round began
with. Objectives that change the network (FedFusion, CGAU) or need a memory of each client
(SCAFFOLD, FedDyn, MOON) need rounds of their own and are refused.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.algorithm import Context, Forward, Outcome, SharedRounds, mean, round_line
from fedgs.algorithms.rule import ServerRule, check_rule
from fedgs.algorithms.run_state import RunState
from fedgs.algorithms.synchronise import Synchroniser
from fedgs.errors import ConfigError
from fedgs.tasks.bind import BoundTask, some_outputs
from fedgs.tasks.losses import predicted_classes
from fedgs.training.engine import Engine, RoundResult, Setup, Tick, make_engine
from fedgs.training.network import ModuleNetwork
from fedgs.training.objective import Objective
from fedgs.training.optimizers import learning_rates
from fedgs.training.round_plan import RoundPlan


@dataclass(frozen=True)
class FedGS:
    """FedGS, with an optional local objective (such as FedProx) and an optional server rule.

    Examples:
        >>> import fedgs
        >>> fedgs.FedGS().kind
        'fedgs'
    """

    objective: Objective = field(default_factory=Objective)
    """What a selected device minimises; by default the task's loss."""
    rule: ServerRule | None = None
    """The server rule of the top server; None: the setting ``server.rule``, by default the paper's mean."""

    kind: ClassVar[Literal["fedgs", "baseline"]] = "fedgs"

    def __post_init__(self) -> None:
        kind, reason = type(self.objective), ""
        if not isinstance(self.objective, Objective):
            raise ConfigError(
                f"FedGS(objective={self.objective!r}): give a baseline with a local objective, such as FedProx(mu=0.1)"
            )
        if self.rule is not None:
            check_rule(self.rule)
        if kind.network is not Objective.network:
            reason = "changes the network and its rounds"
        elif kind.init_clients is not Objective.init_clients:
            reason = "needs what each client remembers"
        elif kind is not Objective and kind.objective is Objective.objective and kind.pull is Objective.pull:
            reason = "has no local objective of its own"
        if reason:
            raise ConfigError(f"FedGS cannot take this objective: it {reason}; it takes fedprox and fedmmd")

    def bind(self, context: Context) -> "StationRounds":
        """Return the object that runs the rounds."""
        return StationRounds(context, self.objective, self.rule)


def _check_one_output_a_class(task: BoundTask) -> None:
    *_, outputs = some_outputs(task)
    found = tuple(outputs.shape[1:])
    if found != (len(task.classes),):
        raise ConfigError(
            f"training.calibration needs one output a class: there are {len(task.classes)} classes, and the network "
            f"gives {found[0] if len(found) == 1 else found}; set it to 0, or give the last layer that many outputs"
        )


class StationRounds(SharedRounds):
    """Runs FedGS; the processes of a run share the factories out among themselves."""

    def __init__(self, context: Context, objective: Objective, rule: ServerRule | None = None) -> None:
        training, server, task = context.settings.training, context.settings.server, context.task
        network = ModuleNetwork(task, context.store.device, training.precision)
        super().__init__(context, objective, network, network, task.federation.factories, "factories")
        self._factories = self.group.shard(self.federation.factories)
        if training.calibration and not task.classifies:
            raise ConfigError(
                "training.calibration needs a task whose outputs are its classes (cross-entropy, balanced by class); "
                "set it to 0"
            )
        if training.calibration:
            _check_one_output_a_class(task)
        self.objective = objective
        self.engine: Engine = make_engine(
            Setup(network, self.store, training, objective, self.traits, self.settings.seed, note=context.note)
        )
        self._synchroniser = Synchroniser(server, self.layout, self.group, task.head, len(task.classes), rule)
        self.server_label = f"server.rule={server.rule if rule is None else type(rule).__name__!r}"

    def first_weights(self, pretrained: Tensor | None) -> Tensor:
        """Return the first weights of the network; FedGS is not pre-trained."""
        return self.layout.of_module(self.task.module).to(self.store.device)

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the server rule remembers before the first round."""
        return self._synchroniser.begin(weights)

    def run_round(self, state: RunState, plan: RoundPlan, tick: Tick | None) -> Outcome:
        """Train T iterations in every factory and synchronise."""
        rates = learning_rates(self.settings.training, plan.round)
        result = self.engine.train_round(
            state.weights, plan.only(self._factories), rates, self._own(state.stations), state.local, tick
        )
        losses = self.gathered(result.losses.T, self.federation.factories).T
        self._check(plan, losses, rates, result)
        reports = self._reports(plan, result.stations)
        with self.server_errors(plan.round):
            weights, memory = self._synchroniser.update(
                state.server, state.weights, result.stations, plan.trained, reports, plan.seen
            )
        line = self._line(plan, losses, float(rates[-1]))
        return Outcome(weights, memory, line, float(rates[-1]), result.memory, result.local)

    def forwards(self, state: RunState) -> dict[str, Forward]:
        """Return the way to test a model."""
        return {"": self._forward(state.tested, state.local)}

    def _forward(self, weights: Tensor, local: Tensor | None) -> Forward:
        nobody = torch.zeros((1, 0), dtype=torch.int64)  # a module does not ask whose samples these are
        return self.forward(weights, local, lambda own, inputs, _: self.network(own, inputs, nobody))

    def close(self) -> None:
        """Give back threads and memory."""
        self.engine.close()

    def _reports(self, plan: RoundPlan, stations: Tensor) -> list[dict[str, float]]:
        """Return what the stations report to the server rule."""
        steps = (plan.totals > 0).sum(axis=0)
        reports = [{"steps": float(number)} for number in steps]
        if self._synchroniser.needs_accuracy:
            mine = torch.zeros(len(self._factories), 1)
            for row, factory in enumerate(self._factories.tolist()):
                if steps[factory]:
                    samples = plan.union(int(np.flatnonzero(plan.totals[:, factory])[-1]), factory)
                    outputs = self._forward(stations[row], None)(samples, samples)
                    right = predicted_classes(outputs) == self.store.targets_of(samples)
                    mine[row] = right.float().mean().cpu()
            accuracies = self.group.gather_rows(mine.to(self.store.device), len(steps))[:, 0].tolist()
            reports = [{**report, "train_acc": own} for report, own in zip(reports, accuracies, strict=True)]
        return reports

    def _own(self, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return this process's part of what the stations of a checkpoint remember, which has all of them."""
        everyone = self.federation.factories
        if self.group.size == 1:
            return memory
        mine = torch.from_numpy(self._factories)
        return {entry: value[mine] if len(value) == everyone else value for entry, value in memory.items()}

    def _check(
        self, plan: RoundPlan, losses: NDArray[np.float64], rates: NDArray[np.float64], result: RoundResult
    ) -> None:
        wrong = ~np.isfinite(losses) & (plan.totals > 0)
        finite = torch.isfinite(result.stations).all(dim=1)[:, None].to(torch.float32)
        # The last step can do harm that no loss has seen yet.
        wrong[-1] |= self.gathered(finite, self.federation.factories)[:, 0] == 0
        if wrong.any():
            row, factory = (int(number) for number in np.argwhere(wrong)[0])
            iteration = (plan.round - 1) * self.settings.training.iterations + row + 1
            self.diverged(
                plan.round, f"factory {self.federation.factory_names[factory]!r}",
                f"iteration {iteration} (learning rate {rates[row]:g})", plan.union(row, factory),
                "training.learning_rate",
            )  # fmt: skip

    def _line(self, plan: RoundPlan, losses: NDArray[np.float64], rate: float) -> dict[str, Any]:
        line = round_line(
            plan, losses[plan.totals > 0], rate, len(np.unique(plan.devices[plan.devices >= 0])),
            divergence=mean(plan.divergence), divergence_of_round=mean(plan.window_divergence),
            missing_classes=mean(plan.missing_classes),
        )  # fmt: skip
        if plan.events:
            line["events"] = dict(plan.events)
        if not plan.trained.all():
            line["sat_out"] = int((~plan.trained).sum())
        return line
