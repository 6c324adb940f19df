"""How the top server asks its stations for a round, while stations may come, go, and be silent.

A station that does not answer is asked again until enough others have answered and ``linger`` seconds more have passed.
With fewer than ``min_stations`` answers the round waits; without that setting it needs all stations.

The list may change at any time (:mod:`fedgs.deploy.station_list`). A station that is taken out is waited for no more,
and is told so: it sends its devices to others. One that is new takes part from the next round on, or from this one
where too few are left without it.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedgs.deploy.logs import OnceEach, log
from fedgs.deploy.metrics import TopMetrics
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.station_list import StationList, check_number
from fedgs.deploy.transport import Transport
from fedgs.errors import FedgsError, IdentityError, PeerError, WireError

AGAIN, LONGEST = 0.5, 5.0
"""Seconds before a station that did not answer is asked again; doubled up to the longest."""
RELEASED_WITHIN = 10.0
"""Seconds in which a station that was taken out is told so."""
Orders = Callable[[int], RoundOrder]
"""Gives the order of a factory."""
Answer = tuple[int, RoundResult]
"""Of a factory."""


class StationCalls:
    """Asks the stations of a list."""

    def __init__(self, stations: StationList, settings: TopSettings, metrics: TopMetrics) -> None:
        check_number(settings.min_stations, len(stations.transports))
        self._stations, self._settings, self._metrics = stations, settings, metrics
        self._before: set[Transport] = set()
        """The list as it was followed last."""
        self._farewells: set[asyncio.Task[None]] = set()
        self._once = OnceEach(60.0)

    async def collect(self, orders: Orders, number: int) -> dict[int, tuple[Transport, RoundResult]]:
        """Return stations and answers by factory: enough of them, and those that came soon after."""
        calls: dict[Transport, asyncio.Task[Answer | None]] = {}
        factories: dict[int, Transport] = {}
        least, now, until = self._settings.min_stations, asyncio.get_running_loop().time, math.inf
        try:
            while True:
                listed = self._follow_list(orders)
                for gone in [one for one in calls if one not in listed and not calls[one].done()]:
                    calls.pop(gone).cancel()
                    _drop(factories, gone)
                if len(_asked(calls)) < (least or 1):  # all at first; later, one that is new waits unless it is needed
                    new = [one for one in listed if one not in calls]
                    calls |= {one: asyncio.ensure_future(self._ask(one, orders, factories)) for one in new}
                waiting = {call for call in calls.values() if not call.done()}
                asked = _asked(calls)
                enough = len(asked) - len(waiting) >= (least or len(asked) or 1)
                until = min(until, now() + self._settings.linger) if enough else math.inf
                if enough and (not waiting or now() >= until):
                    break
                changed = asyncio.ensure_future(self._stations.changed.wait())
                left = until - now() if enough else None
                await asyncio.wait({*waiting, changed}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            for call in calls.values():
                call.cancel()
        found = {}
        for one, call in calls.items():
            if not call.done():
                self._metrics.missing.inc()
                log.warning("station missing", station=one.name, round=number)
            elif (answer := call.result()) is not None:
                found[answer[0]] = one, answer[1]
        return found

    def _follow_list(self, orders: Orders) -> tuple[Transport, ...]:
        """Return the stations as they are listed now; those that no longer are get a last order."""
        self._stations.changed.clear()
        listed = self._stations.transports
        for gone in self._before - set(listed):
            farewell = asyncio.ensure_future(self._release(gone, orders))
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)
        self._before = set(listed)
        return listed

    async def _ask(self, station: Transport, orders: Orders, factories: dict[int, Transport]) -> Answer | None:
        """Return the answer of a station, however often it takes; None where the list has it twice."""
        wait = AGAIN
        while True:
            try:
                factory = await station.find()
                _drop(factories, station)
                if factories.setdefault(factory, station) is not station:
                    stations = [factories[factory].name, station.name]
                    self._once.warning("a station is in the list twice; the first is used", stations=stations)
                    return None
                return factory, await station.run_round(orders(factory))
            except (PeerError, WireError, IdentityError) as error:  # the last: a bundle in the middle of a renewal
                self._once.warning("station does not answer", reason=str(error))
            await asyncio.sleep(wait)
            wait = min(LONGEST, 2 * wait)

    async def _release(self, station: Transport, orders: Orders) -> None:
        """Tell a station that it is no longer in the run."""
        try:
            async with asyncio.timeout(RELEASED_WITHIN):
                order = orders(await station.find())
                await station.run_round(replace(order, round=0, rates=np.empty(0), released=True))
        except (FedgsError, TimeoutError) as error:
            log.warning("a station that was taken out is not reached", station=station.name, reason=str(error))


def _drop(factories: dict[int, Transport], station: Transport) -> None:
    for factory in [factory for factory, one in factories.items() if one is station]:
        del factories[factory]


def _asked(calls: dict[Transport, "asyncio.Task[Answer | None]"]) -> list[Transport]:
    """Return the stations that have answered or may still; what went wrong with one is raised."""
    return [one for one, call in calls.items() if not call.done() or call.result() is not None]
