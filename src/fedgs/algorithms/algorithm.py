"""What an algorithm is, and what runs its rounds.

An algorithm is a small frozen object with its options: ``FedGS(objective=FedProx(mu=0.1))``, ``FedProx(mu=0.1)``. Bound
to a context (settings, task, samples, processes) it gives what runs its rounds, each a function from one state to the
next. The simulator has what all algorithms share: plans, tests, averaging for tests, the lines of metrics, the clock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.run_state import RunState
from fedgs.data.arrays import map_tree
from fedgs.errors import AlgorithmError, ConfigError, TrainingError
from fedgs.settings import Settings
from fedgs.tasks.bind import BoundTask
from fedgs.training.clients import takes_modules
from fedgs.training.engine import Note, Tick
from fedgs.training.layout import Layout
from fedgs.training.network import ModuleNetwork, Network
from fedgs.training.objective import Objective, Weights
from fedgs.training.probe import Traits, explain_loss, probe
from fedgs.training.store import SampleStore

if TYPE_CHECKING:
    from fedgs.simulation.process_group import ProcessGroup

Forward = Callable[[NDArray[np.int64], NDArray[np.int64]], Any]
"""From samples and the devices they belong to, to outputs (samples, …)."""
Outputs = Callable[[Weights, Any, NDArray[np.int64]], Any]
"""From weights and inputs, (1, …) each, and the samples' devices to outputs (1, samples, …)."""


@dataclass(frozen=True)
class Context:
    """What an algorithm is given: the settings, the task and its samples, and the processes it shares the work with."""

    settings: Settings
    task: BoundTask
    store: SampleStore
    group: "ProcessGroup"
    note: Note = lambda line: None


@dataclass(frozen=True)
class Outcome:
    """What a round's training gives."""

    weights: Tensor
    """The next global model, flat."""
    server: dict[str, Any]
    """What the server remembers."""
    line: dict[str, Any]
    """What the round's line of metrics says of the training."""
    rate: float
    """The last learning rate."""
    stations: dict[str, Tensor] = field(default_factory=dict)
    """What the optimisers of this process's stations remember."""
    local: Tensor | None = None
    """What devices keep to themselves."""


class Algorithm(Protocol):
    """Something that can be run: FedGS, a baseline, or your own."""

    @property
    def kind(self) -> Literal["fedgs", "baseline"]:
        """``fedgs``: plans are teams of stations; ``baseline``: plans are participants of a round."""
        ...

    def bind(self, context: Context) -> "Rounds":
        """Return what runs its rounds."""
        ...


class Rounds(Protocol):
    """Runs rounds."""

    layout: Layout
    server_label: str
    """How an error names the server's side and the setting to change."""
    smallest_batch: int
    """Samples that a training step needs at least."""

    def check(self, begun: bool) -> None:
        """Find what would stop a run that is still to come; ``begun``: it goes on from a checkpoint."""
        ...

    def first_weights(self, pretrained: Tensor | None) -> Tensor:
        """Return the flat weights the run starts from, on the device; ``pretrained`` is a plain network, flat."""
        ...

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the server remembers before the first round."""
        ...

    def run_round(self, state: RunState, plan: Any, tick: Tick | None) -> Outcome:
        """Train one round."""
        ...

    def forwards(self, state: RunState) -> dict[str, Forward]:
        """Return the ways to test a state's model: that which counts has the name "", others are logged beside it."""
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...


class SharedRounds:
    """What the rounds of FedGS and of the baselines have in common; the processes of a run share the work out."""

    server_label: str

    def __init__(
        self, context: Context, objective: Objective, base: Network, network: Network, shared_out: int, what: str
    ) -> None:
        """``base``: the plain network; ``network``: the one that is trained; ``shared_out``: so many of ``what``."""
        self.settings, self.task, self.store, self.group = context.settings, context.task, context.store, context.group
        self.federation, self.network, self.layout = context.task.federation, network, network.layout
        if self.group.size > shared_out:
            raise ConfigError(
                f"{self.group.size} processes for {shared_out} {what}; start at most one for each of them"
            )
        if self.layout.local and self.group.size > 1:
            raise ConfigError(
                "weights that stay on the devices (task.keep_local) need a run in one process, without torchrun"
            )
        if self.layout.local and objective.runs_global_model:
            raise ConfigError(
                f"{type(objective).__name__} runs the global model on the devices, and with task.keep_local there is "
                "no whole one; leave task.keep_local out"
            )
        self.traits = Traits()
        if isinstance(base, ModuleNetwork):
            self.traits = probe(self.task)
            base.draws_elsewhere = self.traits.draws_elsewhere
        self.smallest_batch = self.traits.smallest_batch

    def check(self, begun: bool) -> None:
        """Nothing more than was checked when this was made."""

    def forward(self, flat: Tensor, local: Tensor | None, outputs: Outputs) -> Forward:
        """Return a way to test the flat weights of a model, with what devices keep to themselves (``local``).

        Where they keep something, all samples of a call belong to one device.
        """
        device, store = self.store.device, self.store
        flat = flat.to(device)
        places = torch.from_numpy(self.layout.local_places).to(device)
        prepared = takes_modules(self.network)

        def forward(samples: NDArray[np.int64], devices: NDArray[np.int64]) -> Any:
            own = flat
            if local is not None:
                own = flat.clone()
                own[places] = local[int(devices[0])].to(device)
            if prepared:
                inputs = map_tree(lambda value: value[None], store.batch(samples)[0])
            else:
                inputs, _ = store.pixels(torch.from_numpy(store.places(samples)).to(device)[None])
            return map_tree(lambda value: value[0], outputs(self.layout.one_client(own), inputs, devices))

        return forward

    def gathered(self, mine: Tensor | NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Return the rows of all processes, ``count`` together."""
        rows = mine if isinstance(mine, Tensor) else torch.from_numpy(mine.copy())
        found: NDArray[np.float64] = self.group.gather_rows(rows.to(self.store.device), count).double().cpu().numpy()
        return found

    @contextmanager
    def server_errors(self, round_number: int) -> Iterator[None]:
        """Say which round and which server rule an error belongs to."""
        try:
            yield
        except AlgorithmError as error:
            raise TrainingError(f"round {round_number}: {self.server_label} cannot go on: {error}") from None

    def diverged(self, round_number: int, who: str, where: str, samples: NDArray[np.integer], rate: str) -> NoReturn:
        """Raise the error for a loss that is no finite number; the data are looked at before the rate is blamed."""
        reason = explain_loss(self.task, samples) or f"lower {rate}"
        raise TrainingError(f"round {round_number}: the loss of {who} is no finite number at {where}; {reason}")


def round_line(
    plan: Any, losses: NDArray[np.float64], rate: float, devices: int, **divergences: float | None
) -> dict[str, Any]:
    """Return what every round's line of metrics says of its training; ``losses`` are those of steps that were made."""
    return {
        "train_loss": mean(losses),
        **divergences,
        "learning_rate": rate,
        "devices_selected": devices,
        "selections": {"least": min(plan.state["selected"]), "most": max(plan.state["selected"])},
        "samples": int(plan.sizes.sum()),
    }


def mean(values: NDArray[np.float64]) -> float | None:
    """Return the mean of the numbers among the values, None of nothing."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else None
