"""The ``fedgs`` command: parse, call, print.

Commands import what they need when they run, so that ``fedgs --help`` and the quick commands stay quick.
"""

import errno
import os
import re
import sys
from contextlib import nullcontext
from typing import Annotated

import click
import typer

from fedgs import __version__
from fedgs.cli import compare, data, deploy, interrupt, model, pki, plan, run, select, settings, status, sweep, ui
from fedgs.compiled import telling
from fedgs.errors import FedgsError, suggestion

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
app.command("ui")(ui.ui)
app.command("sweep")(sweep.sweep)
app.command("export")(model.export)
app.command("predict")(model.predict)
app.command("baselines")(run.baselines)
app.command("settings")(settings.settings)
app.command("plan")(plan.plan)
app.command("select")(select.select)
app.add_typer(data.app, name="data")
app.command("device")(deploy.device)
app.command("station")(deploy.station)
app.command("top")(deploy.top)
app.command("status")(status.status)
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
    # A park ends its processes first, however long that takes.
    watched = nullcontext() if sys.argv[1:2] == ["park"] else interrupt.watched()
    with telling(lambda line: typer.echo(f"fedgs: note: {line}", err=True)), watched:
        try:
            run_app(app, "fedgs")
        except BaseException:
            # A library that is interrupted while it is loaded raises anything, and threads would be waited for.
            if interrupt.seen.is_set():
                interrupt.end()
            raise


def run_app(app: typer.Typer, name: str) -> None:
    """Run a command line; whatever the user got wrong is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # typer has caught it
            interrupt.say(name)
    except FedgsError as error:
        _fail(name, str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        typer.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(name, f"{_message(error)} ({_moved(error) or f'{name} --help lists commands and options'})")
    except (click.exceptions.Abort, KeyboardInterrupt):
        interrupt.say(name)
        sys.exit(130)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What could not be printed is dropped, or Python would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(name, "the output could not be written: no space left; free some, or print elsewhere")
    sys.exit(code if isinstance(code, int) else 0)


def _message(error: click.ClickException) -> str:
    """Return click's message; it suggests a command or an option only where one is close."""
    message = re.sub(r" \(?Did you mean [^?]*\?\)?", "", error.format_message())
    context = getattr(error, "ctx", None)
    wrong = re.match(r"No such (command|option):? '?([^' ]*[^'. ])", message)
    if wrong is None or context is None:
        return message
    options = [name for option in context.command.params for name in option.opts]
    hint = suggestion(wrong[2], getattr(context.command, "commands", ()) if wrong[1] == "command" else options)
    return f"{message} D{hint[1:]}" if hint.startswith("did you mean") else message


def _moved(error: click.ClickException) -> str | None:
    """Return where a command or an option of an older version is now."""
    command = " ".join(sys.argv[1:2])
    option = error.option_name if isinstance(error, click.NoSuchOption) else ""
    return MOVED.get(option) or MOVED.get(command)


def _fail(name: str, message: str, code: int = 2) -> None:
    typer.echo(f"{name}: error: {' '.join(message.split())}", err=True)
    sys.exit(code)
