"""``fedgs pki``: the certificates of a park."""

from pathlib import Path
from typing import Annotated

import typer

from fedgs.cli.deploy import needs_deploy
from fedgs.errors import ConfigError

app = typer.Typer(
    help="Create a private certificate authority and the certificates of a deployment.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Option("--pki", help="Folder of the authority.")]
Days = Annotated[float, typer.Option(min=0.001, help="Validity of the certificate in days.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the bundle (default: PKI/ROLE/NAME).")]
Host = Annotated[
    list[str] | None,
    typer.Option(
        help="Name or address under which it is reached; repeatable (default: this machine's loopback; with --renew "
        "those of the existing certificate)."
    ),
]
Renew = Annotated[bool, typer.Option("--renew", help="Replace an existing certificate.")]
PKI = Path("pki")


@app.command("init")
def init(
    folder: Folder = PKI,
    park: Annotated[str, typer.Option(help="Name of the deployment (park); every certificate contains it.")] = "park",
    days: Annotated[float, typer.Option(min=1, help="Validity of the authority in days.")] = 3650,
) -> None:
    """Create the certificate authority of a deployment. Keep ca.key secret."""
    needs_deploy()
    from fedgs.deploy.pki import create_authority

    create_authority(folder, park, days)
    typer.echo(f"{folder}: authority of {park!r}; keep {folder / 'ca.key'} on this machine and to yourself")


@app.command("station")
def station(
    name: Annotated[str, typer.Argument(help="Name of the station.")],
    host: Host = None,
    folder: Folder = PKI,
    days: Days = 30,
    out: Out = None,
    renew: Renew = False,
) -> None:
    """Sign the certificate of a station."""
    _issue("station", name, folder, days, out, renew, host or [])


@app.command("superlink")
def superlink(
    name: Annotated[str, typer.Argument(help="Name of the SuperLink.")] = "superlink",
    host: Host = None,
    folder: Folder = PKI,
    days: Days = 30,
    out: Out = None,
    renew: Renew = False,
) -> None:
    """Sign the certificate of a Flower SuperLink."""
    _issue("superlink", name, folder, days, out, renew, host or [])


@app.command("device")
def device(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the devices.")],
    folder: Folder = PKI,
    days: Days = 30,
    out: Out = None,
    renew: Renew = False,
) -> None:
    """Sign the certificates of devices."""
    if out is not None and len(names) > 1:
        raise ConfigError("--out holds one bundle; name one device, or leave --out out")
    if out is None:
        needs_deploy()
        from fedgs.deploy.pki import check_new

        check_new(folder, "device", names, renew)
    for name in names:
        _issue("device", name, folder, days, out, renew)


@app.command("top")
def top(
    name: Annotated[str, typer.Argument(help="Name of the top server.")] = "top",
    host: Host = None,
    folder: Folder = PKI,
    days: Days = 30,
    out: Out = None,
    renew: Renew = False,
) -> None:
    """Sign the certificate of the top server; operators reach it at its hosts."""
    _issue("top", name, folder, days, out, renew, host or [])


@app.command("operator")
def operator(
    name: Annotated[str, typer.Argument(help="Name of the operator.")] = "operator",
    folder: Folder = PKI,
    days: Days = 30,
    out: Out = None,
    renew: Renew = False,
) -> None:
    """Sign the certificate of an operator, who may ask the top server how the run goes."""
    _issue("operator", name, folder, days, out, renew)


@app.command("revoke")
def revoke(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Of a device, station or top server; ROLE/NAME.")
    ],
    folder: Folder = PKI,
) -> None:
    """Put certificates on the revocation list; stations and top server end their connections within 5 seconds."""
    needs_deploy()
    from fedgs.deploy.pki import owner_of
    from fedgs.deploy.pki import revoke as revoke_one
    from fedgs.deploy.revocation import LIST

    for name in names:
        owner_of(folder, name)  # one that does not exist is refused before any is revoked
    for name in names:
        owner = revoke_one(folder, name)
        typer.echo(f"{folder / LIST}: {owner} is revoked; copy this file into the folders of the other certificates")


@app.command("supernode")
def supernode(
    name: Annotated[str, typer.Argument(help="Name of the SuperNode, such as its station's.")],
    folder: Folder = PKI,
    out: Out = None,
    renew: Renew = False,
) -> None:
    """Create the key pair with which a Flower SuperLink identifies a SuperNode."""
    needs_deploy()
    from fedgs.deploy.pki import issue_node_key

    bundle = issue_node_key(folder, name, out=out, renew=renew)
    typer.echo(f"{bundle}: key of SuperNode {name!r}; copy this folder there, register key.pub with the SuperLink")


def _issue(
    role: str, name: str, folder: Path, days: float, out: Path | None, renew: bool, hosts: list[str] | None = None
) -> None:
    """Sign a certificate; one that serves is for the ``hosts`` given, or else those it had, or else the loopback."""
    needs_deploy()
    from fedgs.deploy.pki import CERTIFICATE, LOOPBACK, hosts_in, issue, read_certificate

    there = (folder / role / name if out is None else out) / CERTIFICATE
    if hosts == [] and renew and there.exists():
        hosts = hosts_in(read_certificate(there, "name the hosts with --host")) or list(LOOPBACK)
        typer.echo(f"{there}: renewed for the same hosts: {', '.join(hosts)}")
    elif hosts == []:
        hosts = list(LOOPBACK)
    bundle = issue(folder, role, name, hosts or [], days, out=out, renew=renew)
    typer.echo(f"{bundle}: certificate of {role} {name!r}, valid for {days:g} days; copy this folder there")
