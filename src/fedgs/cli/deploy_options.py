"""Options that the commands of a deployment share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedgs.deploy.pki import Bundle

Certificates = Annotated[
    Path | None, typer.Option(help="Folder with ca.crt, cert.pem and key.pem (default: pki/ROLE/NAME).")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text without certificates; on the loopback only.")]
Metrics = Annotated[str | None, typer.Option(help="HOST:PORT for Prometheus, for example 127.0.0.1:9100.")]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")]
Keepalive = Annotated[float | None, typer.Option(help="Seconds between two pings of a connection (2).")]
Config = Annotated[Path | None, typer.Argument(help="A TOML file of settings, as for fedgs run.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="key.path=value, for example training.rounds=5; repeatable.")
]
Wire = Annotated[str, typer.Option(help="Number format between stations and devices: float32, bfloat16 or float16.")]


def needs_deploy(*, hear_grpc: bool = False) -> None:
    """Say what to install where the libraries of a deployment are missing; set gRPC's own log.

    ``hear_grpc``: a station reads what gRPC logs about handshakes; other processes switch it off.
    """
    import os
    from importlib.util import find_spec

    from fedgs.errors import MissingDependencyError

    os.environ.setdefault("GRPC_VERBOSITY", "INFO" if hear_grpc else "NONE")
    for library in ("grpc", "google.protobuf", "cryptography", "prometheus_client"):
        try:
            there = find_spec(library) is not None
        except ModuleNotFoundError:  # not even the package above it
            there = False
        if not there:
            raise MissingDependencyError(
                f"a deployment needs {library}, which is not installed; run: pip install 'fedgs[deploy]'"
            )


def one_thread() -> None:
    """Let numpy's linear algebra use one thread; it reads these variables when it is first imported.

    Batches and problems are small: more threads would only wait for each other, and for those of other processes.
    """
    import os

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def bundle_of(role: str, name: str, certificates: Path | None, insecure: bool) -> "Bundle | None":
    """Return the bundle of certificates to use; None with ``--insecure``."""
    from fedgs.deploy.pki import Bundle
    from fedgs.errors import ConfigError

    if insecure:
        if certificates is not None:
            raise ConfigError("--insecure and --certificates exclude each other; leave one out")
        return None
    bundle = Bundle(certificates if certificates is not None else Path("pki") / role / name)
    bundle.check(role)
    return bundle
