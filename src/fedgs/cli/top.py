"""``fedgs top``: the top server over all stations."""

from pathlib import Path
from typing import Annotated

import typer

from fedgs.cli.deploy_options import (
    Certificates,
    Config,
    Insecure,
    Keepalive,
    LogJson,
    LogLevel,
    Metrics,
    Overrides,
    Wire,
    bundle_of,
    needs_deploy,
)


def top(
    stations: Annotated[
        list[str],
        typer.Option("--stations", help="Control address HOST:PORT of a station; repeatable, or with commas."),
    ],
    state: Annotated[Path, typer.Option(help="Folder of this run: checkpoint, metrics, model. Resumes what it finds.")],
    config: Config = None,
    preset: Annotated[
        str | None,
        typer.Option(help="quick, paper or bearings, under CONFIG (coverage: with selection.coverage.share=turns)."),
    ] = None,
    overrides: Overrides = None,
    held_out: Annotated[
        str | None, typer.Option(help="Data set to test the global model on: a name or a file.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="P_real: estimate (from what devices announce), uniform, or a JSON list of shares.")
    ] = "estimate",
    classes: Annotated[int | None, typer.Option(min=1, help="Classes, without --held-out (62).")] = None,
    image: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH[xCHANNELS], without --held-out (28x28).")] = None,
    wire: Wire = "float32",
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
    """Run rounds over the stations; killed at any moment, the same command resumes the run."""
    given = locals()
    needs_deploy()
    from fedgs.config import load_settings
    from fedgs.deploy.settings import TopSettings, checked
    from fedgs.deploy.top import shown_score
    from fedgs.deploy.top_process import run_top

    options = checked(TopSettings, given)
    settings = load_settings(config, overrides or [], preset)
    addresses = [part.strip() for text in stations for part in text.split(",") if part.strip()]
    try:
        last = run_top(settings, options, addresses, state, bundle_of("top", name, certificates, insecure))
    except KeyboardInterrupt:
        typer.echo(f"fedgs: interrupted; the same command resumes the run in {state}", err=True)
        raise typer.Exit(130) from None
    score = shown_score(last.metrics[-1])
    typer.echo(f"{state}: {last.round} rounds done{f', {score}' if score else ''}; model.safetensors")
