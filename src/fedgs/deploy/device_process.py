"""The process of ``fedgs device``: one agent, until it is told to stop."""

import asyncio
import signal
from dataclasses import dataclass

from fedgs.deploy.agent import Agent
from fedgs.deploy.identity import Identity
from fedgs.deploy.logs import log, set_up
from fedgs.deploy.parent import end_with_parent
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.sources import open_source
from fedgs.deploy.tls import Bundle, check_plain, split_address, watch_expiry
from fedgs.errors import IdentityError


@dataclass(frozen=True)
class DeviceProcess:
    """What a device is started with."""

    name: str
    station: str
    source: str
    settings: DeviceSettings
    bundle: Bundle | None
    """None: plain text on the loopback."""
    seed: int = 0
    log_level: str = "info"
    log_json: bool = False


def run_device(process: DeviceProcess) -> None:
    """Serve the station until told to stop."""
    end_with_parent()
    split_address(process.station)
    set_up(process.log_level, process.log_json)
    if process.bundle is None:
        check_plain(process.station)
        identity = Identity("park", "device", process.name)
    else:
        identity = process.bundle.check("device")
        if identity.name != process.name:
            raise IdentityError(
                f"{process.bundle.folder}: is the certificate of device {identity.name!r}, not of {process.name!r}"
            )
    source = open_source(process.source, process.name, process.seed)
    asyncio.run(_run(Agent(identity, process.station, source, process.bundle, process.settings)))


async def _run(agent: Agent) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    running = asyncio.ensure_future(agent.run())
    watching = asyncio.ensure_future(watch_expiry(agent.bundle))
    stopping = asyncio.ensure_future(told.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()  # it never ends by itself: what ended it is a fault
    running.cancel()
    watching.cancel()
    await asyncio.wait({running}, timeout=2)
    log.info("device stops", extra={"device": agent.identity.name, "steps": agent.steps})
