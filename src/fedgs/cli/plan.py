"""``fedgs plan``: does FedGS pay in a park, by how much to a target accuracy, and with which T and L."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fedgs.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from fedgs.network.planner import KnownRounds
    from fedgs.settings import PlannerSettings, Settings
    from fedgs.simulation.advice import Advice
    from fedgs.simulation.history import History
    from fedgs.simulation.planned_network import PlannedNetwork
    from fedgs.simulation.run_clock import Lines

PAPER = "of the paper: 147 and 478 to 82 % on FEMNIST, with T=50 and L=10"
OWN = "your own: --run RUN with a run that has FedAvg beside it, or plan.rounds and plan.fedavg_rounds"
BASELINE = """--set 'baseline=["algorithm.name=fedavg"]'"""


class Time(NamedTuple):
    """Seconds, and where they come from."""

    seconds: float = 0.0
    source: str = "not counted"


class RunFacts(NamedTuple):
    """What a run tells the planner."""

    settings: "Settings"
    rounds: "KnownRounds | None"
    """to a target; None without a run of FedAvg beside it"""
    source: str
    """where the rounds come from, or why there are none"""
    weights: int
    model: str
    step_seconds: float
    selection_seconds: float
    advice: "Advice | None"


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
        Path | None,
        typer.Option(help="Folder of a run: take its sizes, times and rounds, and the rounds of its FedAvg."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the times of a step and of a selection on this machine.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw a figure into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether FedGS reaches a target accuracy faster than FedAvg on given links, how much, and with which T.

    For example: fedgs plan --set federation.devices=80 --set clock.external.up.rate=5e7
    """
    from fedgs.cli.plan_display import print_advice, print_plan
    from fedgs.config import load_settings
    from fedgs.network import Park, load_profile
    from fedgs.network.planner import make_plan
    from fedgs.report.plan_figures import check_picture, draw_plan
    from fedgs.settings import PlannerSettings

    if plot is not None:
        check_picture(plot)
    facts = None
    if run is not None:
        if config is not None:
            raise ConfigError(f"{config} and --run: a run has settings of its own; give one of them")
        if measure:
            raise ConfigError("--measure and --run: the run has measured its times; give one of them")
        facts, config = _read_run(run), run / "config.json"
    given = [*(overrides or []), *([] if profile is None else [f"clock.profile={profile}"])]
    settings = load_settings(config, given, kind=PlannerSettings)
    assert isinstance(settings, PlannerSettings)
    links = load_profile(settings.clock.profile)
    network = settings.clock.links()
    title = links.title or f"profile {Path(settings.clock.profile).name}"
    if network != links.network():
        title += ", links changed by settings"
    if not settings.plan.latency:
        network = network.without_latency()

    @cache
    def built() -> "PlannedNetwork":  # only where it is needed: it imports torch and may look at the data
        from fedgs.simulation.planned_network import planned_network

        return planned_network(settings)

    bits, model = _model_size(settings, facts, built)
    batch = settings.training.batch_size
    step = _time("step_seconds", settings, facts, (lambda: built().step_seconds(batch)) if measure else None)
    select = _time("selection_seconds", settings, facts, (lambda: _measure_selection(settings)) if measure else None)
    park = Park(
        bits, settings.federation.factories, settings.selection.pick, settings.training.iterations,
        settings.federation.devices, step.seconds, select.seconds,
    )  # fmt: skip
    known, rounds = _rounds(settings, facts)
    made = make_plan(park, network, known, most_iterations=settings.plan.most_iterations)
    if plot is not None:
        draw_plan(plot, made, title)
    sources = {"step": step.source, "select": select.source, "rounds": rounds}
    if as_json:
        found = {**made.as_dict(), "links": title, "model": model, "sources": sources}
        advice = {} if facts is None else {"selection": facts.advice and facts.advice._asdict()}
        typer.echo(json.dumps(found | advice, indent=1))
        return
    print_plan(made, title, model, sources)
    if facts is not None:
        print_advice(facts.advice)
    if plot is not None:
        typer.echo(f"picture: {plot}")


def _rounds(settings: "PlannerSettings", facts: RunFacts | None) -> "tuple[KnownRounds, str]":
    """Return the rounds to the target: given, else of the run, else the paper's; and where they come from."""
    from fedgs.network.planner import KnownRounds

    wanted = settings.plan
    if (wanted.rounds is None) != (wanted.fedavg_rounds is None):
        raise ConfigError("plan.rounds and plan.fedavg_rounds go together: give both, or none")
    if wanted.rounds is not None and wanted.fedavg_rounds is not None:
        iterations, pick = settings.training.iterations, settings.selection.pick
        return KnownRounds(wanted.rounds, wanted.fedavg_rounds, iterations, pick), "given"
    if facts is None:
        return KnownRounds(), f"{PAPER}; {OWN}"
    if facts.rounds is None:
        return KnownRounds(), f"{PAPER}, not of this run: {facts.source}"
    return facts.rounds, facts.source


def _model_size(
    settings: "PlannerSettings", facts: RunFacts | None, network: "Callable[[], PlannedNetwork]"
) -> tuple[float, str]:
    """Return the bits of the model and what to call it."""
    if settings.plan.model_bytes is not None:
        return 8.0 * settings.plan.model_bytes, "of the given size"
    if facts is not None:
        return 32.0 * facts.weights, f"{facts.model}, {facts.weights:,} weights"
    name = settings.task if isinstance(settings.task, str) else settings.task.model
    weights = network().weights
    return 32.0 * weights, f"{name}, {weights:,} weights"


def _time(key: str, settings: "Settings", facts: RunFacts | None, measure: Callable[[], float] | None) -> Time:
    """Return the time of a step or a selection: given, else of the run, else measured here, else not counted."""
    given = getattr(settings.clock, key)
    if given != "measured" and (facts is None or given != getattr(facts.settings.clock, key)):
        return Time(given, "given")
    if facts is not None:
        return Time(getattr(facts, key), "of the run")
    return Time() if measure is None else Time(measure(), "measured here")


def _measure_selection(settings: "Settings") -> float:
    """Measure one selection with the solver and the batches of the settings."""
    from fedgs.simulation.run_clock import selection_seconds

    selection = settings.selection
    drawn = min(selection.presample, selection.pick - 1)
    return selection_seconds(
        settings.federation.devices_per_factory - drawn, selection.pick - drawn, selection.solver,
        batch_size=settings.training.batch_size,
    )  # fmt: skip


def one_selection(clock: "Lines", iterations: int) -> float:
    """Return the seconds of one selection in the middle one of a run's rounds, which no slow round moves."""
    return float(median([line["selection"] for line in clock[1:]] or [0.0])) / iterations


def _read_run(folder: Path) -> RunFacts:
    """Read a run and its baseline; whatever is missing is said in a line."""
    from safetensors import safe_open

    from fedgs.simulation.advice import advise
    from fedgs.simulation.checkpoint import TENSORS, list_checkpoints
    from fedgs.simulation.folder import CHECKPOINTS, read_settings, read_task
    from fedgs.simulation.history import load_history
    from fedgs.simulation.launch import planned_runs

    settings = read_settings(folder)
    if settings.algorithm.is_baseline:
        raise ConfigError(f"--run {folder}: is a run of {settings.algorithm.name}; give a run of fedgs")
    there = list_checkpoints(folder / CHECKPOINTS)
    history = load_history(folder) if there else None
    if history is None or not len(history) or not history.clock:
        raise CheckpointError(f"--run {folder}: has made no round yet; wait for one, or give another run")
    with safe_open(there[-1] / TENSORS, "numpy") as tensors:
        names = [key for key in tensors.keys() if key.startswith("weights/")]  # noqa: SIM118
        weights = sum(tensors.get_tensor(key).size for key in names)
    flat = next((run.folder for run in planned_runs(folder, settings)[1:]
                 if run.settings.algorithm.name == "fedavg" and run.folder.exists()), None)  # fmt: skip
    rounds, source = _known_rounds(history, None if flat is None else load_history(flat))
    if rounds is None:
        again = f"fedgs run {quote(str(folder / 'config.json'))} {BASELINE}"
        source = f"{folder} {source}; to get its own: {again}, then --run with the new folder"
    task = read_task(folder)
    classifies = task.get("loss", "cross_entropy") == "cross_entropy" and not task.get("balance")
    return RunFacts(
        settings,
        rounds,
        source,
        weights,
        str(task.get("model", settings.task)),
        history.clock[0]["step_seconds"],
        one_selection([dict(line) for line in history.clock], settings.training.iterations),
        advise(history.summary, settings, any(name.endswith("running_mean") for name in names), classifies),
    )


def _known_rounds(fedgs: "History", fedavg: "History | None") -> "tuple[KnownRounds | None, str]":
    """Return the rounds to the target, or to the best score that both runs have reached; and where they come from."""
    from fedgs.network.planner import KnownRounds
    from fedgs.report.units import readable_score

    if fedavg is None:
        return None, "has no run of FedAvg beside it"
    sign = 1 if fedgs.mode == "max" else -1
    tested = [
        [(line["round"], line[fedgs.score]) for line in one.metrics[1:] if line.get(fedgs.score) is not None]
        for one in (fedgs, fedavg)
    ]
    if not all(tested):
        return None, "or its run of FedAvg has made no test yet"
    common = min(max(score * sign for _, score in lines) for lines in tested)
    target = fedgs.settings.eval.target
    goal = common if target is None else min(common, target * sign)
    mine, flat = (next(number for number, score in lines if score * sign >= goal) for lines in tested)
    words = f"of these runs: {mine} and {flat} to {fedgs.score} {readable_score(fedgs.score, goal * sign)}"
    return KnownRounds(mine, flat, fedgs.settings.training.iterations, fedgs.settings.selection.pick), words
