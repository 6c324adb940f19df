"""``fedgs top``: the top server over all stations."""

from pathlib import Path
from typing import Annotated

import typer

from fedgs.cli.deploy_options import Certificates, Insecure, Keepalive, LogJson, LogLevel, Metrics


def top(
    stations: Annotated[
        list[str],
        typer.Option("--stations", help="Control address HOST:PORT of a station; repeatable, or with commas."),
    ],
    state: Annotated[Path, typer.Option(help="Folder of this run: checkpoint, metrics, model. Resumes what it finds.")],
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, as for fedgs run.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="quick, paper or bearings, under CONFIG (coverage: with selection.coverage.share=turns)."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value, for example training.rounds=20; repeatable.")
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Data set to test the global model on: a name or a file.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="P_real: estimate (from what devices announce), uniform, or a JSON list of shares.")
    ] = "estimate",
    classes: Annotated[int | None, typer.Option(min=1, help="Classes, without --held-out (62).")] = None,
    image: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH[xCHANNELS], without --held-out (28x28).")] = None,
    wire: Annotated[str, typer.Option(help="Numbers between stations and devices: float32, bfloat16 or float16.")] = (
        "float32"
    ),
    min_stations: Annotated[int | None, typer.Option(help="Answers a round needs (default: all).")] = None,
    linger: Annotated[
        float | None, typer.Option(help="Seconds to wait for the other stations once so many have answered (60).")
    ] = None,
    name: Annotated[str, typer.Option(help="Name in the certificate.")] = "top",
    certificates: Certificates = None,
    insecure: Insecure = False,
    keepalive: Keepalive = None,
    metrics: Metrics = None,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Run rounds over the stations; killed at any moment, the same command goes on where it was."""
    from fedgs.cli.deploy_options import bundle_of, check_level, needs_deploy

    needs_deploy()
    from fedgs.config import load_settings
    from fedgs.deploy.settings import TopSettings, checked
    from fedgs.deploy.tensors import WIRE_TYPES
    from fedgs.deploy.top_process import TopProcess, image_shape, run_top
    from fedgs.deploy.top_state import shown_score
    from fedgs.errors import ConfigError

    if wire not in WIRE_TYPES:
        raise ConfigError(f"--wire {wire}: choose {', '.join(WIRE_TYPES)}")
    policy = checked(TopSettings, {"min_stations": min_stations, "linger": linger, "keepalive": keepalive})
    settings = load_settings(config, overrides or [], preset)
    addresses = tuple(part.strip() for text in stations for part in text.split(",") if part.strip())
    bundle = bundle_of("top", name, certificates, insecure)
    process = TopProcess(
        settings, addresses, state, policy, bundle, held_out, target, classes, image_shape(image), wire, metrics,
        check_level(log_level), log_json,
    )  # fmt: skip
    try:
        last = run_top(process)
    except KeyboardInterrupt:
        typer.echo(f"fedgs: interrupted; the same command goes on from {state}", err=True)
        raise typer.Exit(130) from None
    score = shown_score(last.metrics[-1])
    typer.echo(f"{state}: {last.round} rounds done{f', {score}' if score else ''}; model.safetensors")
