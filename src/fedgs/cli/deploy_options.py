"""Options that the commands of a real park share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedgs.deploy.tls import Bundle

Certificates = Annotated[
    Path | None, typer.Option(help="Folder with ca.crt, cert.pem and key.pem (default: pki/ROLE/NAME).")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text without certificates; on the loopback only.")]
Metrics = Annotated[str | None, typer.Option(help="HOST:PORT for Prometheus, for example 127.0.0.1:9100.")]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")]
Keepalive = Annotated[float | None, typer.Option(help="Seconds between two signs of life; raise it on slow links.")]


def needs_deploy(*, hear_grpc: bool = False) -> None:
    """Say what to install where the libraries of a real park are missing.

    ``hear_grpc``: a station reads what gRPC says about handshakes; elsewhere it says nothing that is not logged.
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
                f"a real park needs {library}, which is not installed; run: pip install 'fedgs[deploy]'"
            )


def needs_flower() -> None:
    """Say what to install where Flower is missing."""
    from importlib.util import find_spec

    from fedgs.errors import MissingDependencyError

    if find_spec("flwr") is None:
        raise MissingDependencyError("--flower needs Flower, which is not installed; run: pip install 'fedgs[flower]'")


def one_thread() -> None:
    """Let numpy's linear algebra work in this thread alone; it asks when it is first imported.

    Batches and problems are small: its threads would only wait for each other, and for those of other processes.
    """
    import os

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def check_level(level: str) -> str:
    """Refuse a level that does not exist."""
    from fedgs.deploy.logs import LEVELS
    from fedgs.errors import ConfigError

    if level not in LEVELS:
        raise ConfigError(f"--log-level {level}: choose {', '.join(LEVELS)}")
    return level


def bundle_of(role: str, name: str, certificates: Path | None, insecure: bool) -> "Bundle | None":
    """Return the bundle of certificates to use; None with ``--insecure``."""
    from fedgs.deploy.tls import Bundle
    from fedgs.errors import ConfigError

    if insecure:
        if certificates is not None:
            raise ConfigError("--insecure and --certificates exclude each other; leave one out")
        return None
    bundle = Bundle(certificates if certificates is not None else Path("pki") / role / name)
    bundle.check(role)
    return bundle
