"""The base station: keeps the streams of its devices and asks the selected ones for their steps.

A device that is late, disconnects or sends an invalid message is left out of that average. The failure is counted, and
after several in a row the device is quarantined for a while. No other device is affected. Everything received is
checked before use: by itself in :mod:`fedgs.deploy.wire`, and here against the step that was asked for.
"""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import grpc
import numpy as np

from fedgs.deploy.connections import Doorkeeper, peer_of
from fedgs.deploy.logs import OnceEach, log
from fedgs.deploy.membership import Member, Roster
from fedgs.deploy.metrics import StationMetrics
from fedgs.deploy.pace import Pace
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.revocation import Certificates
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.streams import Answer, Asked, StreamLink, UpdateRejected
from fedgs.deploy.tensors import Shapes, norm
from fedgs.deploy.transport import peer_certificate, peer_identity
from fedgs.deploy.wire import Assembly, Part, Ready, StepMessages, check_version, decode_up, serialise, task_label
from fedgs.errors import IdentityError, PeerError, WireError

HELLO_WITHIN = 10.0
"""Seconds a new stream has for its first message."""
LOOK_AGAIN = 0.25
"""Seconds between two looks whether an answer is late."""
ELSEWHERE = "this device is active at another station"
RELEASED = "the station is no longer in the run"
LARGEST_LOSS = 1e6
"""A device's loss beyond this, either way, is rejected: finite it may be, but sums of such losses need not be."""


class Station:
    """Everything a station does with its devices; rounds are made of it in :mod:`fedgs.deploy.rounds`."""

    def __init__(self, settings: StationSettings, metrics: StationMetrics, bundle: Bundle | None) -> None:
        """``bundle`` None: plain text."""
        self.settings, self.metrics, self.insecure = settings, metrics, bundle is None
        self.certificates = Certificates(None if bundle is None else bundle.folder)
        self.roster = Roster(settings.failures, settings.quarantine)
        metrics.show(self.roster)
        self.pace = Pace()
        self.task: pb.Task | None = None
        self.doorkeeper = Doorkeeper(self.refuse)
        self.elsewhere: frozenset[str] = frozenset()
        """Devices that are active at another station, as the top server says."""
        self.released = False
        """Whether the top server has taken this station out of its run: devices go to another one."""
        self.events: Counter[str] = Counter()
        """Failures of this round, by kind."""
        self.sent = self.received = 0
        """Bytes of weights and changes exchanged with devices since the start."""
        self._steps = secrets.randbits(48)  # after a restart no old update can be taken for a new one
        self._once = OnceEach()

    # --- connections

    async def attach(self, _: Any, context: Any) -> None:
        """Serve one stream, from its first message to its end."""
        link = StreamLink(context)
        identity: Identity | None = None
        try:
            identity = peer_identity(context, ["device"], self.insecure)
            if identity.name in self.elsewhere:
                raise IdentityError(ELSEWHERE)
            if self.released:
                raise PeerError(RELEASED)
            with (
                self.doorkeeper.serving(context.peer()),
                self.certificates.watched(peer_certificate(context), link.hang_up),
            ):
                await self._attached(identity, link, context)
        except (IdentityError, PeerError) as error:
            self.refuse(f"{identity}: {error}" if identity else str(error), peer_of(context.peer())[0])
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def _attached(self, identity: Identity, link: StreamLink, context: Any) -> None:
        """Serve the stream of a device whose certificate is good, as long as it is."""
        try:
            hello = await self._greet(context)
        except (WireError, TimeoutError) as error:
            reason = str(error) or "no message"
            self.refuse(f"{identity}: {reason}", peer_of(context.peer())[0])
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
            return
        if not self._admit(identity, link, hello):
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{identity} is connected already")
            return
        reader = asyncio.ensure_future(self._serve(identity, link, context))
        ended = asyncio.ensure_future(link.ended.wait())
        try:
            await asyncio.wait({reader, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            ended.cancel()
            self._gone(identity, link)
        if link.reason:
            await context.abort(grpc.StatusCode.ABORTED, link.reason)

    async def _greet(self, context: Any) -> pb.Hello:
        async with asyncio.timeout(HELLO_WITHIN):
            first = await context.read()
        if first is grpc.aio.EOF:
            raise WireError("no message")
        hello = decode_up(first)
        if not isinstance(hello, pb.Hello):
            raise WireError("the first message is not a Hello")
        check_version(hello.version, "device", "station")
        return hello

    def _admit(self, identity: Identity, link: StreamLink, hello: pb.Hello) -> bool:
        there = self.roster.members.get(identity.name)
        if there is not None and there.link is not None:
            if self.settings.duplicates == "refuse":
                self.refuse(f"{identity}: a second connection")
                return False
            there.link.hang_up("replaced by a newer connection of the same device")
            self._end_step(there, "gone", "reconnected")
        self.roster.join(identity.name, link)
        log.info(
            "device joined", device=identity.name, online=len(self.roster.online), software=hello.software,
            address=link.address,
        )  # fmt: skip
        return True

    def _gone(self, identity: Identity, link: StreamLink) -> None:
        member = self.roster.members.get(identity.name)
        if member is not None and member.link is link:
            self._end_step(member, "gone", link.reason or "the connection was lost")
            self.pace.free(identity.name)
        if self.roster.leave(identity.name, link):
            why: dict[str, Any] = {"reason": link.reason} if link.reason else {}
            log.info("device left", device=identity.name, online=len(self.roster.online), **why)

    def refuse(self, reason: str, address: str = "") -> None:
        """Count and log a refused connection, each reason once for each address."""
        self.metrics.refused.inc()
        self._once.warning("connection refused", reason=reason, **({"address": address} if address else {}))

    # --- messages of devices

    async def _serve(self, identity: Identity, link: StreamLink, context: Any) -> None:
        member = self.roster.members[identity.name]
        try:
            if self.task is not None:
                await link.send([serialise(pb.Down(task=self.task))])
            await self._listen(member, context)
        except WireError as error:
            self._invalid(member, link, str(error))
        except (ConnectionError, grpc.aio.BaseError):
            link.hang_up("")
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a fault of this program must not pass unseen
            log.exception("stream failed")
            link.hang_up(f"the station failed: {type(error).__name__}")

    async def _listen(self, member: Member, context: Any) -> None:
        assembly: Assembly | None = None
        update: pb.Update | None = None
        while (data := await context.read()) is not grpc.aio.EOF:
            self.received += len(data)
            self.metrics.received.inc(len(data))
            message = decode_up(data)
            if isinstance(message, Part):
                if assembly is None:
                    raise WireError("a part without a message before it")
                assembly.add(message)
            elif assembly is not None:
                raise WireError("another message among the parts of an update")
            elif isinstance(message, pb.Update):
                update = message
                asked = self._expected(member, message)
                assembly = Assembly(message.change, asked.shapes, asked.wire)
            elif isinstance(message, pb.Ready):
                self._announced(member, message)
            else:
                raise WireError("a second Hello")
            if update is not None and assembly is not None and assembly.complete:
                self._finished(member, update, assembly)
                update = assembly = None

    def _announced(self, member: Member, message: pb.Ready) -> None:
        task, ready = self.task, Ready.of(message)
        if task is None:
            raise WireError("a batch without a task")
        if len(ready.counts) != task.classes or ready.batch_size != task.batch_size:
            raise WireError(
                f"a batch of {ready.batch_size} samples of {len(ready.counts)} classes; the task has "
                f"{task.batch_size} of {task.classes}"
            )
        if len(ready.moments) not in (0, 3 * task.moments):
            raise WireError(f"{len(ready.moments)} moments; the task asks for {3 * task.moments}")
        if ready.batch_id <= member.batch_ids:
            raise WireError(f"batch {ready.batch_id} after batch {member.batch_ids}")
        if member.asked is not None and not member.asked.answer.done():
            raise WireError("a new batch while a step is due")
        if member.ready is not None and not self.roster.may_replace(member):
            raise WireError("new batches again and again, before the ones announced were used")
        self.roster.announce(member, ready)
        self.pace.announced(member.name)

    def _expected(self, member: Member, update: pb.Update) -> Asked:
        asked: Asked | None = member.asked
        if asked is None or update.step != asked.step:
            raise WireError("an update for a step that was not asked for")
        if update.batch_id != asked.ready.batch_id:
            raise WireError(f"an update from batch {update.batch_id}; batch {asked.ready.batch_id} was announced")
        if update.num_samples != asked.ready.batch_size:
            raise WireError(f"an update from {update.num_samples} samples; {asked.ready.batch_size} were announced")
        return asked

    def _finished(self, member: Member, update: pb.Update, assembly: Assembly) -> None:
        asked: Asked = member.asked
        member.asked = None
        if not asked.answer.done():  # else it is late, and that has been counted
            change = assembly.flat()
            found = Answer(change, asked.ready.counts, update.loss, norm(change[: asked.shapes.trained_size]))
            fault = _fault(found)
            if fault:
                asked.answer.set_exception(UpdateRejected("rejected", fault))
            else:
                asked.answer.set_result(found)
        self.pace.free(member.name)
        if update.HasField("next"):
            self._announced(member, update.next)

    def _invalid(self, member: Member, link: StreamLink, reason: str) -> None:
        if member.asked is not None and not member.asked.answer.done():
            self._end_step(member, "rejected", reason)
        else:
            self.failed(member, "rejected", reason)
        link.hang_up(reason)

    def _end_step(self, member: Member, outcome: str, reason: str) -> None:
        asked: Asked | None = member.asked
        if asked is not None and not asked.answer.done():
            asked.answer.set_exception(UpdateRejected(outcome, reason))

    def leave_to_others(self, names: Iterable[str]) -> None:
        """Serve these devices no more: the top server says that they are active at another station."""
        self.elsewhere = frozenset(names)
        for member in self.roster.online:
            if member.name in self.elsewhere and member.link is not None:
                member.link.hang_up(ELSEWHERE)

    # --- messages to devices

    async def tell(self, task: pb.Task) -> None:
        """Tell all devices the task, where it is a new one."""
        if task == self.task:
            return
        self.task = task
        self.pace.begin_task()
        self.roster.withdraw(task.classes)
        told = []
        for member in self.roster.online:
            member.ready = None
            self._end_step(member, "gone", "another task began")
            assert member.link is not None
            told.append(member.link.send([serialise(pb.Down(task=task))]))
        await asyncio.wait_for(asyncio.gather(*told, return_exceptions=True), self.settings.deadline)
        log.info("task", run=task.run, task=task_label(task), batch_size=task.batch_size)

    async def ask(self, member: Member, ready: Ready, messages: StepMessages, shapes: Shapes) -> Answer | None:
        """Let a selected device make its step; None where it gave no valid update.

        Whoever asks says then whether it was used (:meth:`used`) or not (:meth:`failed`).
        """
        assert self.task is not None
        if member.link is None or member.ready is not ready:
            self.failed(member, "gone", "offline when it was selected")
            return None
        self._steps += 1
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        asked = Asked(self._steps, ready, shapes, self.task.wire, answer)
        member.asked, member.ready = asked, None
        link = member.link
        outgoing = messages.for_device(asked.step, ready.batch_id)
        size = sum(map(len, outgoing))
        self.sent += size
        self.metrics.sent.inc(size)
        began = time.monotonic()
        sending = asyncio.ensure_future(link.send(outgoing))
        sending.add_done_callback(lambda done: _sent(done, answer))
        try:
            found = await self._in_time(answer, began)
        except TimeoutError:
            taken = time.monotonic() - began
            self.pace.answered(member.name, taken, late=True)
            if not sending.done():  # it has not even taken the weights: a stream in this state is of no use
                sending.cancel()
                link.hang_up("did not take its step in time")
            self.failed(member, "late", f"no answer within {taken:.2g} s")
            return None
        except UpdateRejected as lost:
            self.failed(member, lost.outcome, str(lost))
            return None
        finally:
            answer.cancel()  # nobody waits for it any more
        self.pace.answered(member.name, time.monotonic() - began)
        return found

    async def _in_time(self, answer: "asyncio.Future[Answer]", began: float) -> Answer:
        """Wait for an answer; TimeoutError where it is late."""
        most = self.settings.deadline
        while True:
            left = began + most - time.monotonic()
            with suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(answer), min(LOOK_AGAIN, max(0.0, left)))
            if self.pace.is_late(time.monotonic() - began, most):
                raise TimeoutError

    def used(self, member: Member) -> None:
        """An update went into the average."""
        self.roster.succeeded(member)
        self.metrics.updates.labels("used").inc()

    def failed(self, member: Member, outcome: str, reason: str) -> None:
        """A selected device gave no update that can be used."""
        self.events[outcome] += 1
        self.metrics.updates.labels(outcome).inc()
        address: dict[str, Any] = {"address": member.link.address} if isinstance(member.link, StreamLink) else {}
        log.warning("no update", device=member.name, outcome=outcome, reason=reason, **address)
        if self.roster.failed(member, reason):
            self.events["quarantined"] += 1
            log.warning("device is quarantined", device=member.name, seconds=self.settings.quarantine)

    def idle(self, iterations: int) -> None:
        """No device is there: so many iterations are not made."""
        self.events["idle"] += iterations
        self._once.warning("no device is online; rounds end early")

    def passed_over(self, names: Iterable[str]) -> None:
        """The station cannot afford the time that these devices take now."""
        for number, name in enumerate(sorted(names)):
            self.events["slow"] += number == 0
            self._once.warning("device is slow; it is not waited for each time", device=name)

    async def say_goodbye(self, reason: str) -> None:
        """End all streams; a station that was released sends its devices to others."""
        links = [member.link for member in self.roster.online if isinstance(member.link, StreamLink)]
        bye = serialise(pb.Down(bye=pb.Bye(reason=reason, released=self.released)))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(link.send([bye]) for link in links), return_exceptions=True), 1.0)
        for link in links:
            link.hang_up(reason)


def _fault(answer: Answer) -> str:
    """Return why an update is not valid by itself; "" where it is."""
    if not abs(answer.loss) <= LARGEST_LOSS:  # nor NaN
        return f"a loss of {answer.loss:g}; {LARGEST_LOSS:g} is the most"
    if not math.isfinite(answer.norm) or not np.isfinite(answer.change).all():  # buffers too
        return "a change that is not finite"
    return ""


def _sent(done: "asyncio.Future[None]", answer: "asyncio.Future[Answer]") -> None:
    if not done.cancelled() and done.exception() is not None and not answer.done():
        answer.set_exception(UpdateRejected("gone", "the connection was lost"))
