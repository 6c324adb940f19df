"""Serves the page, here or from a thread beside a park; ends within a second, whoever is still connected."""

import socket
import ssl
import threading
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from fedgs.errors import InputFileError, PeerError


class _Uvicorn(uvicorn.Server):
    """Tells the streams to end when it is told to."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.ending = True
        super().handle_exit(sig, frame)


class Server:
    """A web server whose port is taken when it is made, so that its address is known."""

    def __init__(
        self, app: Starlette, host: str, port: int, tls_cert: Path | None = None, tls_key: Path | None = None
    ) -> None:
        if tls_cert is not None and tls_key is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls_cert, tls_key)
            except (OSError, ssl.SSLError) as error:
                raise InputFileError(f"{tls_cert}, {tls_key}: no certificate with its key ({error})") from None
        bare = host.strip("[]")
        try:
            family = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((bare, port), family=family)
        except OSError as error:
            raise PeerError(f"--listen {host}:{port}: cannot be listened on ({error.strerror}); name another") from None
        # At all addresses of this machine: it is reached by its name.
        named = socket.gethostname() if bare in ("0.0.0.0", "::") else host
        self.address = f"http{'s' if tls_cert else ''}://{named}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app, log_level="error", timeout_graceful_shutdown=1, ssl_certfile=tls_cert, ssl_keyfile=tls_key,
            server_header=False, lifespan="off",
        )  # fmt: skip
        self._uvicorn = _Uvicorn(config, app)

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self._uvicorn.run([self._socket])

    def start(self) -> None:
        """Serve from a thread of its own, as long as the process lives."""
        threading.Thread(target=self.run, daemon=True, name="fedgs-ui").start()
