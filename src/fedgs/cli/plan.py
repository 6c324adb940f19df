"""``fedgs plan``: does FedGS pay in this park, by how much, where is the limit, and which T and L are best."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedgs.cli.plan_run import RunFacts
    from fedgs.network import LinksSettings, Profile

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
        str | None, typer.Option(help="paper or compact: float32, 62 classes [default: paper]", rich_help_panel=PARK)
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
    snr: Annotated[float | None, typer.Option(help="dB, of all receivers", rich_help_panel=LINKS)] = None,
    snr_top: Annotated[float | None, typer.Option(help="dB, of the top server", rich_help_panel=LINKS)] = None,
    snr_station: Annotated[float | None, typer.Option(help="dB, of the stations", rich_help_panel=LINKS)] = None,
    snr_device: Annotated[float | None, typer.Option(help="dB, of the devices", rich_help_panel=LINKS)] = None,
    no_latency: Annotated[
        bool, typer.Option("--no-latency", help="Leave latencies out, as the paper does.", rich_help_panel=LINKS)
    ] = False,
    step_time: Annotated[str | None, typer.Option(help="of one local step: 20ms", rich_help_panel=TIMES)] = None,
    select_time: Annotated[str | None, typer.Option(help="of one selection: 15ms", rich_help_panel=TIMES)] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure what is not given on this machine.", rich_help_panel=TIMES)
    ] = False,
    divergence: Annotated[
        float | None, typer.Option(help="δ at this L; with it, drift is weighed", rich_help_panel=BOUND)
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="β [default: 1]", rich_help_panel=BOUND)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="η [default: 0.01]", rich_help_panel=BOUND)] = None,
    lipschitz: Annotated[float, typer.Option(help="ρ", rich_help_panel=BOUND)] = 1.0,
    phi: Annotated[float, typer.Option(help="φ", rich_help_panel=BOUND)] = 1.0,
    epsilon: Annotated[float, typer.Option(help="ε", rich_help_panel=BOUND)] = 1.0,
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
    from fedgs.cli.plan_run import read_run
    from fedgs.errors import ConfigError
    from fedgs.network import BoundConstants, Park
    from fedgs.network.plan import make_plan

    if model is not None and size is not None:
        raise ConfigError("--model and --size both say how large the model is; give one of them")
    if plot is not None:
        from fedgs.report.plan_figures import check_picture

        check_picture(plot)
    known: RunFacts | None = None
    if run is not None:
        _refuse_beside_run({"-M": factories, "-K": devices, "-L": pick, "--model": model, "--size": size})
        known = read_run(run)
        own = known.settings
        factories, devices, pick = own.federation.factories, own.federation.devices, own.selection.pick
        iterations = own.training.iterations if iterations is None else iterations
        learning_rate = own.training.learning_rate if learning_rate is None else learning_rate
        divergence = known.measured.delta if divergence is None else divergence
        smoothness = known.measured.smoothness if smoothness is None else smoothness
    links = _links(profile, known)
    profile = profile or (known.settings.clock.profile if known else DEFAULT_PROFILE)
    given = _given_links(
        links,
        {
            ("internal", "up"): ("--internal-up", internal_up) if internal_up else ("--internal", internal),
            ("internal", "down"): ("--internal-down", internal_down) if internal_down else ("--internal", internal),
            ("external", "up"): ("--external-up", external_up) if external_up else ("--external", external),
            ("external", "down"): ("--external-down", external_down) if external_down else ("--external", external),
        },
        {"all receivers": snr, "the top server": snr_top, "the stations": snr_station, "the devices": snr_device},
    )
    network = given.network()
    if no_latency:
        network = network.without_latency()
    constants: BoundConstants | None = None
    if divergence is not None:
        constants = BoundConstants(
            0.01 if learning_rate is None else learning_rate,
            1.0 if smoothness is None else smoothness,
            divergence, lipschitz, phi, epsilon,
        )  # fmt: skip
    bits, name = (known.model_bits, known.model) if known else _model_size(model or "paper", size)
    factories, devices, pick = (
        usual if value is None else value for value, usual in ((factories, 10), (devices, 350), (pick, 10))
    )
    network_name = known.settings.training.model if known else model or "paper"
    step, select, sources = _times(step_time, select_time, measure, network_name, size, factories, devices, pick)
    if known:
        step, select = _times_of_run(known, step, select, sources)
    park = Park(bits, factories, pick, 50 if iterations is None else iterations, devices, step, select)
    made = make_plan(park, network, constants, most_iterations=most_iterations, speedup=speedup)
    if plot is not None:
        from fedgs.report.plan_figures import draw_plan

        draw_plan(plot, made, links.title)
    if as_json:
        measured = {"run": known.as_dict()} if known else {}
        typer.echo(json.dumps({"profile": profile, "model": name, **measured, **made.as_dict()}, indent=1))
        return
    from fedgs.cli.plan_display import print_plan

    title = f"profile {profile}" + (f": {links.title}" if links.title else "")
    if given.network() != links.network():
        title += " (links changed by options)"
    if known and run:
        typer.echo(known.words(run))
    print_plan(made, title, name, sources, most_iterations, speedup)
    if plot is not None:
        typer.echo(f"picture: {plot}")


DEFAULT_PROFILE = "5g"


def _refuse_beside_run(options: dict[str, object]) -> None:
    """A run has a park of its own, and δ is measured in that."""
    from fedgs.errors import ConfigError

    for option, value in options.items():
        if value is not None:
            raise ConfigError(f"{option} and --run: δ is measured in the run's own park; leave one of them out")


def _links(profile: str | None, known: "RunFacts | None") -> "Profile":
    """Return the links to begin with: of the profile, or of the run."""
    from fedgs.network import Profile, load_profile

    if known is None or profile is not None:
        return load_profile(profile or DEFAULT_PROFILE)
    clock = known.settings.clock
    below = load_profile(clock.profile)
    return Profile(**clock.over(below).model_dump(), title=below.title)


def _times_of_run(known: "RunFacts", step: float, select: float, sources: dict[str, str]) -> tuple[float, float]:
    """Return the times, those of the run where nothing else was asked for."""
    if sources["step"] == "not counted":
        step, sources["step"] = known.step_seconds, "of the run"
    if sources["select"] == "not counted":
        select, sources["select"] = known.select_seconds, "of the run"
    return step, select


RECEIVERS = {
    "the top server": (("external", "up"), ("direct", "up")),
    "the stations": (("internal", "up"), ("external", "down")),
    "the devices": (("internal", "down"), ("direct", "down")),
}
"""Who receives on which channels; the paper's γ_top, γ_BS and γ_device."""


def _given_links(
    profile: "LinksSettings",
    bandwidths: dict[tuple[str, str], tuple[str, str | None]],
    snrs: dict[str, float | None],
) -> "LinksSettings":
    """Return the profile's links with what the command line says in place."""
    from fedgs.cli.quantities import bandwidth
    from fedgs.errors import ConfigError
    from fedgs.network import LinksSettings
    from fedgs.network.checks import positive

    values: dict[str, dict[str, dict[str, float]]] = {"internal": {}, "external": {}, "direct": {}}
    for (link, way), (option, text) in bandwidths.items():
        if text is not None:
            value, by_rate = bandwidth(option, text)
            positive(f"{option} {text}", value)
            values[link][way] = {"rate" if by_rate else "bandwidth": value}
    known = LinksSettings.model_validate(values).over(profile)
    everyone = snrs["all receivers"]
    for receiver, channels in RECEIVERS.items():
        decibels = snrs[receiver] if snrs[receiver] is not None else everyone
        if decibels is None:
            continue
        in_hertz = [(link, way) for link, way in channels if getattr(getattr(known, link), way).bandwidth is not None]
        if not in_hertz and snrs[receiver] is not None:
            raise ConfigError(
                f"an SNR of {receiver} changes nothing: the links they receive on are given as rates; "
                "give them in Hz, as in --internal 100MHz"
            )
        for link, way in in_hertz:
            values[link].setdefault(way, {})["snr_db"] = decibels
    if everyone is not None and not any("snr_db" in channel for link in values.values() for channel in link.values()):
        raise ConfigError(
            "--snr changes nothing: all links are given as rates; give them in Hz, as in --internal 100MHz"
        )
    return _validated(values).over(profile)


def _validated(values: dict[str, Any]) -> "LinksSettings":
    from pydantic import ValidationError

    from fedgs.errors import ConfigError
    from fedgs.network import LinksSettings

    try:
        return LinksSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}={first['input']}: {first['msg']}") from None


def _model_size(model: str, size: str | None) -> tuple[float, str]:
    """Return the bits of the model and what to call it."""
    if size is not None:
        from fedgs.cli.quantities import bits

        return bits("--size", size), size
    from fedgs.models import build_model

    weights = sum(weight.numel() for weight in build_model(model).parameters())
    return 32.0 * weights, f"{model}, {weights:,} weights"


def _times(
    step: str | None, select: str | None, measure: bool, model: str, size: str | None, factories: int, devices: int,
    pick: int,
) -> tuple[float, float, dict[str, str]]:  # fmt: skip
    """Return the seconds of a step and of a selection, and where each comes from."""
    from fedgs.cli.quantities import seconds
    from fedgs.errors import ConfigError

    found = {"step": seconds("--step-time", step) if step else 0.0}
    found["select"] = seconds("--select-time", select) if select else 0.0
    sources = {"step": "given" if step else "not counted", "select": "given" if select else "not counted"}
    if measure:
        from fedgs.simulation.step_time import selection_seconds, step_seconds

        if size is not None and step is None:
            raise ConfigError("--measure needs a model by name to time a step of; give --model or --step-time")
        if step is None:
            found["step"], sources["step"] = step_seconds(model), "measured here"
        available = devices // factories if factories > 0 else 0
        if select is None and 0 < pick <= available:
            found["select"] = selection_seconds(available, pick)
            sources["select"] = "measured here"
    return found["step"], found["select"], sources
