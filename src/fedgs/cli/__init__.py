"""The ``fedgs`` command: parse, call, print.

Commands import what they need when they run, so that ``fedgs --help`` and the quick commands stay quick.
"""

import errno
import os
import re
import sys
from typing import Annotated

import click
import typer

from fedgs import __version__
from fedgs.cli import compare, data, deploy, model, pki, plan, run, select
from fedgs.errors import FedgsError

app = typer.Typer(
    name="fedgs",
    help="Federated learning in factories.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("compare")(compare.compare)
app.command("export")(model.export)
app.command("predict")(model.predict)
app.command("baselines")(run.baselines)
app.command("plan")(plan.plan)
app.command("select")(select.select)
app.add_typer(data.app, name="data")
app.command("device")(deploy.device)
app.command("station")(deploy.station)
app.command("top")(deploy.top)
app.add_typer(pki.app, name="pki")
app.add_typer(deploy.park_app, name="park")


_REPRODUCTION = "the paper's experiments are in the repository, not in the package: python -m reproduction"
MOVED = {
    "approaches": "it is now called baselines: fedgs baselines",
    "bench-selection": f"{_REPRODUCTION} bench-selection",
    "reproduce": f"{_REPRODUCTION} …",
    "--aside": "it is now called --quarantine",
}
"""Commands and options of older versions, and what they are called now."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedgs {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Federated learning in factories."""


def main() -> None:
    """Run the command line."""
    run_app(app, "fedgs")


def run_app(app: typer.Typer, name: str) -> None:
    """Run a command line; whatever the user got wrong is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except FedgsError as error:
        _fail(name, str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        typer.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        message = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", error.format_message())  # click and typer both suggest
        _fail(name, f"{message} ({_moved(error) or f'{name} --help lists commands and options'})")
    except click.exceptions.Abort:
        _fail(name, "interrupted", code=130)
    except KeyboardInterrupt:
        _fail(name, "interrupted", code=130)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What could not be printed is dropped, or Python would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(name, "the output could not be written: no space left; free some, or print elsewhere")
    sys.exit(code if isinstance(code, int) else 0)


def _moved(error: click.ClickException) -> str | None:
    """Return where a command or an option of an older version is now."""
    command = " ".join(sys.argv[1:2])
    option = error.option_name if isinstance(error, click.NoSuchOption) else ""
    if command == "plan" and option in plan.REPLACED:
        return f"it is now a setting: --set {plan.REPLACED[option]}"
    return MOVED.get(option) or MOVED.get(command)


def _fail(name: str, message: str, code: int = 2) -> None:
    typer.echo(f"{name}: error: {' '.join(message.split())}", err=True)
    sys.exit(code)
