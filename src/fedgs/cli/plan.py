"""``fedgs plan``: whether FedGS beats FedAvg in a park, by how much, up to which limit, and the best T and L."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedgs.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from fedgs.network import BoundConstants
    from fedgs.network.settings import PlanSettings
    from fedgs.settings import Settings
    from fedgs.simulation.gradients import Measured
    from fedgs.simulation.run_clock import Lines

_BOTH_WAYS = "clock.{0}.up and clock.{0}.down (bandwidth in Hz and snr_db, or rate in bit/s)"
REPLACED = {
    **dict.fromkeys(("--factories", "-M"), "federation.factories"),
    **dict.fromkeys(("--devices", "-K"), "federation.devices"),
    **dict.fromkeys(("--pick", "-L"), "selection.pick"),
    **dict.fromkeys(("--iterations", "-T"), "training.iterations"),
    "--model": "task.model",
    "--size": "plan.model_bytes",
    **{f"--{link}": _BOTH_WAYS.format(link) for link in ("internal", "external", "direct")},
    **{
        f"--{link}-{way}": f"clock.{link}.{way} (bandwidth in Hz and snr_db, or rate in bit/s)"
        for link in ("internal", "external")
        for way in ("up", "down")
    },
    "--snr": "snr_db of each channel, such as clock.internal.up.snr_db",
    "--snr-top": "clock.external.up.snr_db and clock.direct.up.snr_db",
    "--snr-station": "clock.internal.up.snr_db and clock.external.down.snr_db",
    "--snr-device": "clock.internal.down.snr_db and clock.direct.down.snr_db",
    "--no-latency": "plan.latency=false",
    "--step-time": "clock.step_seconds",
    "--select-time": "clock.selection_seconds",
    "--learning-rate": "training.learning_rate",
    **{
        f"--{name.replace('_', '-')}": f"plan.{name}"
        for name in ("divergence", "smoothness", "lipschitz", "phi", "epsilon", "most_iterations", "speedup")
    },
}
"""Options of older versions, and the settings that took their place."""
OWN_PARK = ("federation", "selection", "task", "data", "streams")
"""Sections that cannot be changed beside --run: δ is measured in the run's own park."""
ITERATIONS = 5
"""of the next round of a run, whose super nodes are looked at"""


class Time(NamedTuple):
    """Seconds, and where they come from."""

    seconds: float = 0.0
    source: str = "not counted"


@dataclass(frozen=True)
class RunFacts:
    """A run as the planner sees it."""

    settings: "Settings"
    round: int
    """of the checkpoint that was read"""
    model_bits: float
    model: str
    step_seconds: float
    selection_seconds: float
    measured: "Measured"
    classes: int
    step: Callable[[], object]
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


def plan(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, as for fedgs run.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="key.path=value: settings of a run, or of the section plan; repeatable."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Links: 5g, wifi6, wired, or a TOML file; the same as clock.profile.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="A run of fedgs: its settings and times; δ and β are measured at its model.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the times of a step and of a selection on this machine.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether FedGS beats FedAvg in a park, by how much, and which T and L are best.

    For example: fedgs plan --set federation.devices=80 --set plan.divergence=1 --set clock.external.up.rate=5e7
    """
    from fedgs.cli.plan_display import print_plan
    from fedgs.config import load_settings
    from fedgs.network import Park, load_profile
    from fedgs.network.planner import make_plan
    from fedgs.report.plan_figures import check_picture, draw_plan
    from fedgs.settings import PlannerSettings

    if plot is not None:
        check_picture(plot)
    given = [*(overrides or []), *([] if profile is None else [f"clock.profile={profile}"])]
    known = None
    if run is not None:
        if config is not None:
            raise ConfigError(f"{config} and --run: a run has settings of its own; give one of them")
        for text in given:
            if text.partition(".")[0].strip() in OWN_PARK:
                raise ConfigError(f"--set {text} and --run: δ is measured in the run's own park; leave one of them out")
        known, config = _read_run(run), run / "config.json"
    settings = load_settings(config, given, kind=PlannerSettings)
    assert isinstance(settings, PlannerSettings)
    links = load_profile(settings.clock.profile)
    network = settings.clock.links()
    title = f"profile {settings.clock.profile}" + (f": {links.title}" if links.title else "")
    if network != links.network():
        title += " (links changed by settings)"
    if not settings.plan.latency:
        network = network.without_latency()
    bits, model = (known.model_bits, known.model) if known else _model_size(settings, settings.plan.model_bytes)
    step = _time("step_seconds", settings, known, _measure_step if measure else None)
    select = _time("selection_seconds", settings, known, _measure_selection if measure else None)
    park = Park(
        bits, settings.federation.factories, settings.selection.pick, settings.training.iterations,
        settings.federation.devices, step.seconds, select.seconds,
    )  # fmt: skip
    made = make_plan(
        park, network, _constants(settings.plan, settings.training.learning_rate, known),
        most_iterations=settings.plan.most_iterations, speedup=settings.plan.speedup,
    )  # fmt: skip
    if plot is not None:
        draw_plan(plot, made, links.title)
    sources = {"step": step.source, "select": select.source}
    if as_json:
        about = {"profile": settings.clock.profile, "model": model, "times": sources}
        measured = {"run": known.as_dict()} if known else {}
        typer.echo(json.dumps({**about, **measured, **made.as_dict()}, indent=1))
        return
    if known and run:
        typer.echo(known.words(run))
    print_plan(made, title, model, sources, settings.plan.most_iterations, settings.plan.speedup)
    if plot is not None:
        typer.echo(f"picture: {plot}")


def _constants(plan: "PlanSettings", learning_rate: float, known: RunFacts | None) -> "BoundConstants | None":
    """Return the constants of the bound: given, else of the run, else the usual ones; None where there is no δ."""
    from fedgs.network import BoundConstants

    divergence, smoothness = plan.divergence, plan.smoothness
    if known is not None:
        divergence = known.measured.delta if divergence is None else divergence
        smoothness = known.measured.smoothness if smoothness is None else smoothness
    if divergence is None:
        for key in sorted(plan.model_fields_set & {"smoothness", "lipschitz", "phi", "epsilon"}):
            raise ConfigError(f"plan.{key} changes nothing without δ; give plan.divergence or --run too")
        return None
    return BoundConstants(learning_rate, smoothness or 1.0, divergence, plan.lipschitz, plan.phi, plan.epsilon)


def _model_size(settings: "Settings", model_bytes: float | None) -> tuple[float, str]:
    """Return the bits of the model and what to call it."""
    if model_bytes is not None:
        return 8.0 * model_bytes, "of the given size"
    from fedgs.tasks.cnn import build_model

    name = _built_in(settings, "plan.model_bytes")
    weights = sum(weight.numel() for weight in build_model(name).parameters())
    return 32.0 * weights, f"{name}, {weights:,} weights"


def _built_in(settings: "Settings", instead: str) -> str:
    name = settings.task if isinstance(settings.task, str) else settings.task.model
    if ":" in name:
        raise ConfigError(f"task {name!r} is known with its data only; give {instead}, or --run with a run of it")
    return name


def _time(
    key: str,
    settings: "Settings",
    known: RunFacts | None,
    measure: "Callable[[Settings, RunFacts | None], float] | None",
) -> Time:
    """Return the time of a step or a selection: given, else measured here, else of the run, else not counted."""
    given = getattr(settings.clock, key)
    if given != "measured" and (known is None or given != getattr(known.settings.clock, key)):
        return Time(given, "given")
    if measure is not None:
        return Time(measure(settings, known), "measured here")
    return Time() if known is None else Time(getattr(known, key), "of the run")


def _measure_step(settings: "Settings", known: RunFacts | None) -> float:
    """Measure one local step; that of a run with its own batches, classes and images."""
    from fedgs.simulation.run_clock import fastest, step_seconds

    return fastest(known.step) if known is not None else step_seconds(_built_in(settings, "clock.step_seconds"))


def _measure_selection(settings: "Settings", known: RunFacts | None) -> float:
    """Measure one selection with the solver, the batches and the classes of the settings."""
    from fedgs.simulation.run_clock import CLASSES, selection_seconds

    selection = settings.selection
    drawn = min(selection.presample, selection.pick - 1)
    return selection_seconds(
        settings.federation.devices_per_factory - drawn, selection.pick - drawn, selection.solver,
        classes=CLASSES if known is None else known.classes, batch_size=settings.training.batch_size,
    )  # fmt: skip


def one_selection(clock: "Lines", iterations: int) -> float:
    """Return the seconds of one selection in the middle one of a run's rounds, which no slow round moves."""
    return float(median([line["selection"] for line in clock[1:]] or [0.0])) / iterations


def _read_run(folder: Path) -> RunFacts:
    """Read a run's newest checkpoint and measure there; whatever is missing is said in a line."""
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
