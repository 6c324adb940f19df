"""``fedgs status``: how the run of any park goes, as its top server tells."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgs.cli.deploy import Certificates, Insecure, OpenKeys, make_bundle, needs_deploy

if TYPE_CHECKING:
    from fedgs.deploy.top_client import TopClient

Name = Annotated[str, typer.Option(help="Name in the certificate.")]


def status(
    top: Annotated[str, typer.Option(help="HOST:PORT of the top server, as its --listen.")],
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run is done, or Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object; with --watch one a second.")] = False,
    name: Name = "operator",
    certificates: Certificates = None,
    insecure: Insecure = False,
    allow_open_keys: OpenKeys = False,
) -> None:
    """Show how the run of a park goes: rounds, stations and devices; read-only."""
    client = make_client(top, name, certificates, insecure, allow_open_keys)
    from fedgs.cli.park_display import as_data, follow, looks, show
    from fedgs.deploy.top_client import Followed

    followed = Followed(client)
    if not as_json:
        (follow if watch else show)(followed)
        return
    for fault in looks(followed, 1.0):
        if fault:
            typer.echo(fault, err=True)
            continue
        typer.echo(json.dumps(as_data(followed.status) | {"lines": followed.lines}))
        if not watch:
            return


def make_client(
    address: str,
    name: str = "operator",
    certificates: Path | None = None,
    insecure: bool = False,
    allow_open_keys: bool = False,
) -> "TopClient":
    """Return what asks a top server, with the certificate of an operator."""
    needs_deploy()
    from fedgs.deploy.pki import Identity
    from fedgs.deploy.top_client import LARGEST_STATUS, TopClient
    from fedgs.deploy.transport import Dialer

    bundle = make_bundle("operator", name, certificates, insecure, allow_open_keys)
    identity = Identity("park", "operator", name) if bundle is None else bundle.check("operator")
    return TopClient(Dialer(address, identity, bundle, 2.0, LARGEST_STATUS, "top"))
