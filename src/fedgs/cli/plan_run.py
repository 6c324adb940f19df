"""What ``fedgs plan --run`` takes from a run: its park, its links and times, and δ and β measured at its model."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedgs.settings import Settings
    from fedgs.simulation.gradients import Measured
    from fedgs.simulation.run_clock import Lines

ITERATIONS = 5
"""of the next round, whose super nodes are looked at"""


@dataclass(frozen=True)
class RunFacts:
    """A run as the planner sees it."""

    settings: "Settings"
    round: int
    """of the checkpoint that was read"""
    model_bits: float
    model: str
    step_seconds: float
    select_seconds: float
    measured: "Measured"
    classes: int
    step: "Callable[[], object]"
    """one local step of a device"""

    def as_dict(self) -> dict[str, Any]:
        """Return what was measured, for JSON."""
        found = self.measured
        return {
            "round": self.round,
            "divergence": found.delta,
            "divergence_actual": float(found.divergence.actual.mean()),
            "smoothness": found.smoothness,
            "gradient": found.gradient,
            "super_nodes": found.nodes,
            "samples": found.samples,
        }

    def words(self, folder: Path) -> str:
        """Return what was measured, in two lines."""
        found = self.measured
        return (
            f"run {folder} after round {self.round}: δ = {found.delta:.4g}, β = {found.smoothness:.4g}\n"
            f"(‖∇‖ = {found.gradient:.4g}; {found.nodes} super nodes against {found.samples:,} samples)"
        )


def one_selection(clock: "Lines", iterations: int) -> float:
    """Return the seconds of one selection in the middle one of a run's rounds, which no slow round moves."""
    return float(median([line["selection"] for line in clock[1:]] or [0.0])) / iterations


def read_run(folder: Path) -> RunFacts:
    """Read a run's newest checkpoint and measure there; whatever is missing is said in a line."""
    from fedgs.errors import CheckpointError, ConfigError
    from fedgs.simulation.checkpoint import list_checkpoints, load_checkpoint
    from fedgs.simulation.components import resolve
    from fedgs.simulation.federations import load_federation
    from fedgs.simulation.folder import CHECKPOINTS, read_settings, run_identity
    from fedgs.simulation.gradients import Gradients, measure
    from fedgs.simulation.run import network_digest
    from fedgs.simulation.selection_plan import SelectionPlan
    from fedgs.simulation.simulator import pick_device
    from fedgs.tasks.bind import bind
    from fedgs.training.clients import local_step
    from fedgs.training.layout import WEIGHT_BYTES
    from fedgs.training.objective import Objective

    settings = read_settings(folder)
    if settings.algorithm.is_baseline:
        raise ConfigError(
            f"--run {folder}: is a run of {settings.algorithm.name}, which has no super nodes whose δ could be "
            "measured; give a run of fedgs"
        )
    there = list_checkpoints(folder / CHECKPOINTS)
    if not there:
        raise CheckpointError(f"--run {folder}: has no checkpoint yet; wait for one, or give another run")
    settings, components = resolve(settings)
    task = bind(components.task, load_federation(settings), settings.seed, settings.data.normalise)
    federation = task.federation
    device = pick_device("auto")
    gradients = Gradients(task, device)
    identity = run_identity(settings, federation, network=network_digest(task))
    state = load_checkpoint(there[-1], gradients.layout, identity)
    plan = SelectionPlan(federation, settings)
    plan.load_state(state.plan)
    coming = plan.next_round()
    rows = list(range(min(ITERATIONS, len(coming.devices))))
    if not coming.totals[rows].any():
        raise CheckpointError(f"--run {folder}: no device trains in the next iterations; give another run")
    training = settings.training
    found = measure(gradients, state.weights.to(device), coming, rows, training.learning_rate, settings.seed)
    weights = gradients.layout.size
    return RunFacts(
        settings,
        state.round,
        8.0 * WEIGHT_BYTES * weights,
        f"{components.task.named()}, {weights:,} weights",
        state.clock[0]["step_seconds"],
        one_selection(state.clock, training.iterations),
        found,
        len(federation.classes),
        local_step(task, getattr(components.algorithm, "objective", Objective()), training.batch_size),
    )
