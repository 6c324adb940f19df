"""``fedgs plan``: does FedGS pay in this park, by how much, where is the limit, and which T and L are best."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedgs.cli.plan_run import RunFacts
    from fedgs.network import BoundConstants
    from fedgs.network.plan import Plan

PARK, LINKS, TIMES, BOUND, OUTPUT = "The park", "The links", "Times on a device and a station", "The bound", "Output"


def plan(
    run: Annotated[
        Path | None, typer.Option(help="A run of fedgs: its park, links, times; δ, β measured", rich_help_panel=PARK)
    ] = None,
    factories: Annotated[
        int | None, typer.Option("--factories", "-M", help="M [default: 10]", rich_help_panel=PARK)
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", "-K", help="K, of the whole park [default: 350]", rich_help_panel=PARK)
    ] = None,
    pick: Annotated[
        int | None, typer.Option("--pick", "-L", help="L, a factory and iteration [default: 10]", rich_help_panel=PARK)
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", "-T", help="T, in a round [default: 50]", rich_help_panel=PARK)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="paper, compact, linear; 62 classes [default: paper]", rich_help_panel=PARK),
    ] = None,
    size: Annotated[str | None, typer.Option(help="of another model: 26.4MB, 211Mbit", rich_help_panel=PARK)] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="5g, wifi6, wired, or a TOML file; what follows replaces parts", rich_help_panel=LINKS),
    ] = None,
    internal: Annotated[
        str | None, typer.Option(help="Devices–station, both ways: 100MHz or 500Mbit/s", rich_help_panel=LINKS)
    ] = None,
    internal_up: Annotated[str | None, typer.Option(help="… upwards", rich_help_panel=LINKS)] = None,
    internal_down: Annotated[str | None, typer.Option(help="… downwards", rich_help_panel=LINKS)] = None,
    external: Annotated[str | None, typer.Option(help="Stations–top server, both ways", rich_help_panel=LINKS)] = None,
    external_up: Annotated[str | None, typer.Option(help="… upwards", rich_help_panel=LINKS)] = None,
    external_down: Annotated[str | None, typer.Option(help="… downwards", rich_help_panel=LINKS)] = None,
    direct: Annotated[
        str | None,
        typer.Option(help="Devices–top server, as FedAvg uses it [default: as --external]", rich_help_panel=LINKS),
    ] = None,
    snr: Annotated[float | None, typer.Option(help="dB, of all receivers", rich_help_panel=LINKS)] = None,
    snr_top: Annotated[float | None, typer.Option(help="dB, of the top server", rich_help_panel=LINKS)] = None,
    snr_station: Annotated[float | None, typer.Option(help="dB, of the stations", rich_help_panel=LINKS)] = None,
    snr_device: Annotated[float | None, typer.Option(help="dB, of the devices", rich_help_panel=LINKS)] = None,
    no_latency: Annotated[
        bool, typer.Option("--no-latency", help="Leave latencies out, as the paper does.", rich_help_panel=LINKS)
    ] = False,
    step: Annotated[
        str | None, typer.Option("--step-time", help="of one local step: 20ms", rich_help_panel=TIMES)
    ] = None,
    select: Annotated[
        str | None, typer.Option("--select-time", help="of one selection: 15ms", rich_help_panel=TIMES)
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure what is not given on this machine.", rich_help_panel=TIMES)
    ] = False,
    divergence: Annotated[
        float | None, typer.Option(help="δ at this L; with it, drift is weighed", rich_help_panel=BOUND)
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="β [default: 1]", rich_help_panel=BOUND)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="η [default: 0.01]", rich_help_panel=BOUND)] = None,
    lipschitz: Annotated[float | None, typer.Option(help="ρ [default: 1]", rich_help_panel=BOUND)] = None,
    phi: Annotated[float | None, typer.Option(help="φ [default: 1]", rich_help_panel=BOUND)] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε [default: 1]", rich_help_panel=BOUND)] = None,
    most_iterations: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Longest round to consider as the best", rich_help_panel=BOUND)
    ] = 500,
    speedup: Annotated[
        float, typer.Option(help="The best must be so many times as fast as FedAvg", rich_help_panel=BOUND)
    ] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="Draw into this file.", rich_help_panel=OUTPUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Say whether FedGS beats FedAvg in this park, by how much, and which T and L are best."""
    from fedgs.cli.plan_links import DEFAULT_PROFILE, LinkOptions, given_links, links_to_begin_with
    from fedgs.cli.plan_times import Size, select_time, step_time
    from fedgs.network import Park
    from fedgs.network.plan import make_plan

    _refuse_contradictions(model, size, plot)
    known: RunFacts | None = None
    if run is not None:
        known = _read_run(run, {"-M": factories, "-K": devices, "-L": pick, "--model": model, "--size": size})
        own = known.settings
        factories, devices, pick = own.federation.factories, own.federation.devices, own.selection.pick
        iterations = own.training.iterations if iterations is None else iterations
    bound = {"--smoothness": smoothness, "--learning-rate": learning_rate}
    bound |= {"--lipschitz": lipschitz, "--phi": phi, "--epsilon": epsilon}
    constants = _constants(divergence, bound, known)
    links = links_to_begin_with(profile, known)
    snrs = {"--snr": snr, "--snr-top": snr_top, "--snr-station": snr_station, "--snr-device": snr_device}
    network = given_links(
        links,
        LinkOptions(internal, internal_up, internal_down, external, external_up, external_down, direct, snrs),
    ).network()
    profile = profile or (known.settings.clock.profile if known else DEFAULT_PROFILE)
    title = _title(profile, links.title)
    if network != links.network():
        title += " (links changed by options)"
    if no_latency:
        network = network.without_latency()
    bits, name = (known.model_bits, known.model) if known else _model_size(model or "paper", size)
    factories, devices, pick, iterations = (
        usual if value is None else value
        for value, usual in ((factories, 10), (devices, 350), (pick, 10), (iterations, 50))
    )
    sizes = Size(None if size else model or "paper", factories, devices, pick)
    stepping, selecting = step_time(step, measure, known, sizes), select_time(select, measure, known, sizes)
    park = Park(bits, factories, pick, iterations, devices, stepping.seconds, selecting.seconds)
    made = make_plan(park, network, constants, most_iterations=most_iterations, speedup=speedup)
    if plot is not None:
        from fedgs.report.plan_figures import draw_plan

        draw_plan(plot, made, links.title)
    sources = {"step": stepping.source, "select": selecting.source}
    if as_json:
        _print_json(made, profile, name, sources, known)
        return
    from fedgs.cli.plan_display import print_plan

    if known and run:
        typer.echo(known.words(run))
    print_plan(made, title, name, sources, most_iterations, speedup)
    if plot is not None:
        typer.echo(f"picture: {plot}")


def _refuse_contradictions(model: str | None, size: str | None, plot: Path | None) -> None:
    """Refuse what can be seen to be wrong before anything is read or computed."""
    from fedgs.errors import ConfigError

    if model is not None and size is not None:
        raise ConfigError("--model and --size both say how large the model is; give one of them")
    if plot is not None:
        from fedgs.report.plan_figures import check_picture

        check_picture(plot)


def _read_run(run: Path, options: dict[str, object]) -> "RunFacts":
    """Read a run; it has a park of its own, and δ is measured in that."""
    from fedgs.cli.plan_run import read_run
    from fedgs.errors import ConfigError

    for option, value in options.items():
        if value is not None:
            raise ConfigError(f"{option} and --run: δ is measured in the run's own park; leave one of them out")
    return read_run(run)


def _constants(
    divergence: float | None, others: dict[str, float | None], known: "RunFacts | None"
) -> "BoundConstants | None":
    """Return the constants of the bound: given, else of the run, else the usual ones; None where there is no δ."""
    from fedgs.errors import ConfigError
    from fedgs.network import BoundConstants

    usual = {"--smoothness": 1.0, "--learning-rate": 0.01}
    if known is not None:
        divergence = known.measured.delta if divergence is None else divergence
        usual = {"--smoothness": known.measured.smoothness, "--learning-rate": known.settings.training.learning_rate}
    values = {}
    for option, value in others.items():
        if value is not None and divergence is None:
            raise ConfigError(f"{option} {value:g} changes nothing without δ; give --divergence or --run too")
        values[option.removeprefix("--").replace("-", "_")] = usual.get(option, 1.0) if value is None else value
    return None if divergence is None else BoundConstants(divergence=divergence, **values)


def _title(profile: str, title: str) -> str:
    return f"profile {profile}" + (f": {title}" if title else "")


def _print_json(made: "Plan", profile: str, model: str, sources: dict[str, str], known: "RunFacts | None") -> None:
    measured = {"run": known.as_dict()} if known else {}
    said = {"profile": profile, "model": model, "times": sources, **measured, **made.as_dict()}
    typer.echo(json.dumps(said, indent=1))


def _model_size(model: str, size: str | None) -> tuple[float, str]:
    """Return the bits of the model and what to call it."""
    if size is not None:
        from fedgs.cli.quantities import bits

        return bits("--size", size), size
    from fedgs.tasks.cnn import build_model

    weights = sum(weight.numel() for weight in build_model(model).parameters())
    return 32.0 * weights, f"{model}, {weights:,} weights"
