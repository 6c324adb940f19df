"""``fedgs plan``: whether FedGS beats FedAvg in a park, by how much, up to which limit, and the best T and L."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from fedgs.cli.plan_run import RunFacts
    from fedgs.network import BoundConstants
    from fedgs.network.settings import PlanSettings
    from fedgs.settings import Settings

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


class Time(NamedTuple):
    """Seconds, and where they come from."""

    seconds: float = 0.0
    source: str = "not counted"


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
    from fedgs.cli.plan_run import read_run
    from fedgs.config import load_settings
    from fedgs.errors import ConfigError
    from fedgs.network import Park, load_profile
    from fedgs.network.plan import make_plan
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
        known, config = read_run(run), run / "config.json"
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
    step, select = _step_time(settings, measure, known), _select_time(settings, measure, known)
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


def _constants(plan: "PlanSettings", learning_rate: float, known: "RunFacts | None") -> "BoundConstants | None":
    """Return the constants of the bound: given, else of the run, else the usual ones; None where there is no δ."""
    from fedgs.errors import ConfigError
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
    from fedgs.errors import ConfigError

    name = settings.task if isinstance(settings.task, str) else settings.task.model
    if ":" in name:
        raise ConfigError(f"task {name!r} is known with its data only; give {instead}, or --run with a run of it")
    return name


def _step_time(settings: "Settings", measure: bool, known: "RunFacts | None") -> Time:
    """Return the time of one local step; that of a run is measured with its own batches, classes and images."""
    from fedgs.simulation.step_time import fastest, step_seconds

    given = settings.clock.step_seconds
    if known is not None and given == known.settings.clock.step_seconds:
        return Time(fastest(known.step), "measured here") if measure else Time(known.step_seconds, "of the run")
    if given != "measured":
        return Time(given, "given")
    return Time(step_seconds(_built_in(settings, "clock.step_seconds")), "measured here") if measure else Time()


def _select_time(settings: "Settings", measure: bool, known: "RunFacts | None") -> Time:
    """Return the time of one selection, measured with the solver, the batches and the classes of the settings."""
    from fedgs.simulation.step_time import CLASSES, selection_seconds

    given = settings.clock.selection_seconds
    of_run = known is not None and given == known.settings.clock.selection_seconds
    if given != "measured" and not of_run:
        return Time(given, "given")
    if not measure:
        return Time(known.select_seconds, "of the run") if known is not None else Time()
    selection = settings.selection
    drawn = min(selection.presample, selection.pick - 1)
    measured = selection_seconds(
        settings.federation.devices_per_factory - drawn, selection.pick - drawn, selection.solver,
        classes=CLASSES if known is None else known.classes, batch_size=settings.training.batch_size,
    )  # fmt: skip
    return Time(measured, "measured here")
