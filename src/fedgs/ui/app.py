"""The page and its stream of events, served to browsers; read-only.

    /            the page; /page/…: its style and scripts
    /stream      server-sent events: ``source`` describes a run, ``news`` says what is new of it

On the loopback nobody is asked for a token, and only requests for this machine's own names are answered, so that no
other page of the browser can read it. Elsewhere TLS and a token are needed; the token comes in the address once and
stays in a cookie.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from fedgs.errors import FedgsError
from fedgs.ui.sources import Source

PAGE = Path(__file__).parent / "page"
EVERY = 0.5
"""Seconds between two looks at the files."""
MOST_ROUNDS = 200
"""Rounds that one message tells of."""
KEEP_ALIVE = 15.0
"""Seconds after which a silent stream says that it is still there."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
COOKIE = "fedgs-token"
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


class Guard:
    """Adds headers to every answer, refuses whatever would change something, and asks for the token."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await (self._refusal(Request(scope)) or self._app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page only shows\n", 405)
        if self._token is None or self._knows(request.cookies.get(COOKIE)):
            return None
        if not self._knows(request.query_params.get("token")):
            return PlainTextResponse("the token is missing or wrong: use the address that fedgs ui printed\n", 401)
        answer = RedirectResponse(request.url.path, 303)
        answer.set_cookie(COOKIE, str(self._token), secure=True, httponly=True, samesite="strict")
        return answer

    def _knows(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), str(self._token).encode())


def make_app(
    makers: Sequence[Callable[[], Source]], token: str | None = None, hosts: Sequence[str] = LOOPBACK
) -> Starlette:
    """Return the application for sources, which are made anew for each browser."""
    for make in makers:
        make()  # what cannot be shown is found before anything is served

    async def page(_: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    async def stream(request: Request) -> Response:
        try:
            sources = [await asyncio.to_thread(make) for make in makers]
        except FedgsError as error:  # a top server that does not answer now
            return PlainTextResponse(f"{error}\n", 503)
        told = events(sources, request.is_disconnected, lambda: bool(getattr(app.state, "ending", False)))
        return StreamingResponse(told, media_type="text/event-stream")

    app = Starlette(
        routes=[Route("/", page), Route("/stream", stream), Mount("/page", StaticFiles(directory=PAGE))],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)), Middleware(Guard, token=token)],
    )
    return app


async def events(
    sources: Sequence[Source], gone: Callable[[], Awaitable[bool]], ending: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yield what a browser is told, until it is gone or the server ends."""
    followed = dict(enumerate(sources))
    for number, source in followed.items():
        yield _event("source", number, await asyncio.to_thread(source.describe))
    silent = 0.0
    while not ending() and not await gone():
        for number, source in list(followed.items()):
            try:
                news = await asyncio.to_thread(source.news)
            except FedgsError as error:  # a folder that was removed, say
                news = {"error": str(error)}
                del followed[number]
            for part in in_parts(news):
                silent = 0.0
                yield _event("news", number, part)
        if silent >= KEEP_ALIVE:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(EVERY)
        silent += EVERY


def in_parts(news: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield news, the rounds of a long run in several parts: one message of 40 MB would hold the browser up."""
    rounds = news.get("rounds", [])
    if news:
        yield news | {"rounds": rounds[:MOST_ROUNDS]} if rounds else news
    for begin in range(MOST_ROUNDS, len(rounds), MOST_ROUNDS):
        yield {"rounds": rounds[begin : begin + MOST_ROUNDS]}


def _event(kind: str, number: int, facts: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps({'source': number, **facts}, separators=(',', ':'))}\n\n"
