"""``fedgs ui``: the live page of runs and parks."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgs.cli.deploy import Certificates, Insecure, OpenKeys
from fedgs.cli.status import make_client
from fedgs.errors import ConfigError, InputFileError, MissingDependencyError

if TYPE_CHECKING:
    from fedgs.deploy.top_client import TopClient
    from fedgs.ui.server import Server
    from fedgs.ui.sources import Source

DEFAULT = "127.0.0.1:8437"


def ui(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...", help="Folders of runs, of a park or of a top server (default: the newest in runs/)."
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT to serve at; port 0: any free one.")] = DEFAULT,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM), to serve other machines.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    top: Annotated[
        str | None, typer.Option(help="HOST:PORT of a top server (its --listen): the page of that park.")
    ] = None,
    name: Annotated[str, typer.Option(help="With --top: name in the operator's certificate.")] = "operator",
    certificates: Certificates = None,
    insecure: Insecure = False,
    allow_open_keys: OpenKeys = False,
) -> None:
    """Show runs and parks live in a browser; read-only, works offline."""
    if top is None and (certificates is not None or insecure):
        raise ConfigError("--certificates and --insecure are for --top; leave them out")
    makers = [folder_source(folder) for folder in folders or ([] if top else [_newest()])]
    if top is not None:
        makers.append(_top_source(make_client(top, name, certificates, insecure, allow_open_keys)))
    address, server = prepare(makers, listen, tls_cert, tls_key)
    typer.echo(f"{address}   Ctrl-C ends it")
    server.run()


def folder_source(folder: Path) -> "Callable[[], Source]":
    """Return what makes the source of a folder, for each browser."""

    def make() -> "Source":
        from fedgs.ui.sources import make_source

        return make_source(folder)

    return make


def _top_source(client: "TopClient") -> "Callable[[], Source]":
    """The same of a top server."""

    def make() -> "Source":
        from fedgs.ui.sources import TopSource

        return TopSource(client)

    return make


def prepare(
    makers: "list[Callable[[], Source]]",
    listen: str = DEFAULT,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> "tuple[str, Server]":
    """Return the address of the page, and what serves it; its port is taken already."""
    try:
        from fedgs.ui.app import LOOPBACK, make_app
        from fedgs.ui.server import Server
    except ImportError as error:
        raise MissingDependencyError(
            f"the live page needs {error.name}, which is not installed; run: pip install 'fedgs[ui]'"
        ) from None
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen {listen}: expected HOST:PORT, for example {DEFAULT}")
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together; give both")
    if host not in LOOPBACK and tls_cert is None:
        raise ConfigError(
            f"--listen {listen}: others could read along; give --tls-cert and --tls-key, or serve at {DEFAULT}"
        )
    token = None if host in LOOPBACK else secrets.token_urlsafe(24)
    server = Server(make_app(makers, token, LOOPBACK if token is None else ["*"]), host, int(port), tls_cert, tls_key)
    return server.address + (f"/?token={token}" if token else ""), server


def _newest() -> Path:
    """Return the folder of the newest run."""
    files = [path for name in ("config.json", "deployment.json") for path in Path("runs").glob(f"*/{name}")]
    found = sorted(files, key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputFileError("runs: no run in this folder; name one: fedgs ui RUN")
    return found[-1].parent
