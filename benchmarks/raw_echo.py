"""The raw gRPC echo a park is held against: whatever the server sends, every client sends back, over mTLS."""

import asyncio
import multiprocessing
import time
from pathlib import Path
from typing import Any

import grpc

from fedgs.deploy.pki import Bundle
from fedgs.deploy.transport import client_credentials, client_options, server_credentials, server_options


def echo_client(folder: str, address: str, messages: int) -> None:
    """Send back whatever comes: the least that any engine over gRPC must do."""

    async def run() -> None:
        credentials = client_credentials(Bundle(Path(folder) / "pki/device/d000"))
        options = client_options(60, 1 << 30)
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            call = channel.stream_stream("/echo/Echo")()
            await call.write(b"here")
            while True:
                # As a device does: all of the message first, then all of the answer.
                received = [await call.read() for _ in range(messages)]
                for message in received:
                    await call.write(message)

    asyncio.run(run())


async def echo_times(folder: Path, clients: int, payload: bytes, part: int, repeats: int) -> list[float]:
    """Seconds in which every client has got the payload and sent it back."""
    parts = [payload[first : first + part] for first in range(0, len(payload), part)]
    streams: list[Any] = []
    found: list[float] = []
    finished = asyncio.Event()

    async def exchange(context: Any) -> None:
        for message in parts:
            await context.write(message)
        for _ in parts:
            await context.read()

    async def echo(_: Any, context: Any) -> None:
        await context.read()
        streams.append(context)
        await finished.wait()

    server = grpc.aio.server(options=server_options(60, 1 << 30))
    handler = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handler),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(Bundle(folder / "pki/station/s")))
    await server.start()
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=echo_client, args=(str(folder), f"127.0.0.1:{port}", len(parts)), daemon=True)
        for _ in range(clients)
    ]
    for process in processes:
        process.start()
    while len(streams) < clients:
        await asyncio.sleep(0.05)
    for _ in range(repeats + 1):
        began = time.perf_counter()
        await asyncio.gather(*(exchange(stream) for stream in streams))
        found.append(time.perf_counter() - began)
    finished.set()
    for process in processes:
        process.kill()
        process.join()
    await server.stop(0)
    await asyncio.sleep(0.2)  # the library's last messages
    return found[1:]
