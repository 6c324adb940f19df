"""The base station: keeps the streams of its devices and asks the selected ones for their steps.

A device that is late, disconnects or sends an invalid message is left out of that average. The failure is counted, and
after several in a row the device is quarantined for a while. No other device is affected. Everything received is
checked before use: by itself in :mod:`fedgs.deploy.wire`, and here against the step that was asked for.
"""

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.logs import OnceEach, log
from fedgs.deploy.membership import Member, Roster
from fedgs.deploy.metrics import StationMetrics
from fedgs.deploy.pki import Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.tensors import Flat, Shapes, norm
from fedgs.deploy.transport import peer_identity
from fedgs.deploy.wire import VERSION, Assembly, Part, Ready, StepMessages, decode_up, serialise, task_label
from fedgs.errors import IdentityError, WireError

HELLO_WITHIN = 10.0
"""Seconds a new stream has for its first message."""
LARGEST_LOSS = 1e6
"""A device's loss beyond this, either way, is rejected: finite it may be, but sums of such losses need not be."""


class UpdateRejected(Exception):  # noqa: N818  (it is an outcome, not an error of the program)
    """A selected device gave no update that can be used; ``outcome`` is late, gone or rejected."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass
class Answer:
    """A good update."""

    change: Flat
    counts: NDArray[np.int64]
    """Class counts of its batch, as announced."""
    loss: float

    @property
    def num_samples(self) -> int:
        """How many samples there are in it (n^{m,k})."""
        return int(self.counts.sum())


@dataclass
class Asked:
    """The step a device was asked for, and what its answer must look like."""

    step: int
    ready: Ready
    shapes: Shapes
    wire: int
    largest_norm: float
    answer: "asyncio.Future[Answer]"


class StreamLink:
    """The open stream of one device."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self.ended = asyncio.Event()
        self.reason = ""

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, in order."""
        async with self._lock:
            try:
                for message in messages:
                    await self._context.write(message)
            except grpc.aio.BaseError:  # the stream has ended meanwhile
                raise ConnectionError("the connection was lost") from None

    def hang_up(self, reason: str) -> None:
        """End the stream."""
        self.reason = self.reason or reason
        self.ended.set()


class Station:
    """Everything a station does with its devices; rounds are made of it in :mod:`fedgs.deploy.rounds`."""

    def __init__(self, settings: StationSettings, metrics: StationMetrics, *, insecure: bool = False) -> None:
        self.settings, self.metrics, self.insecure = settings, metrics, insecure
        self.roster = Roster(settings.failures, settings.quarantine)
        self.task: pb.Task | None = None
        self.events: Counter[str] = Counter()
        """Failures of this round, by kind."""
        self.sent = self.received = 0
        """Bytes of weights and changes exchanged with devices since the start."""
        self._steps = secrets.randbits(48)  # after a restart no old update can be taken for a new one
        self._once = OnceEach()

    # --- connections

    async def attach(self, _: Any, context: Any) -> None:
        """Serve one stream, from its first message to its end."""
        try:
            identity = peer_identity(context, "device", self.insecure)
        except IdentityError as error:
            self.refuse(str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            return
        link = StreamLink(context)
        try:
            hello = await self._greet(context)
        except (WireError, TimeoutError) as error:
            reason = str(error) or "no message"
            self.refuse(f"{identity}: {reason}")
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
        if hello.version != VERSION:
            raise WireError(f"protocol version {hello.version}, this station speaks {VERSION}; install the same fedgs")
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
        self.metrics.devices(self.roster)
        log.info("device joined", device=identity.name, online=len(self.roster.online), software=hello.software)
        return True

    def _gone(self, identity: Identity, link: StreamLink) -> None:
        member = self.roster.members.get(identity.name)
        if member is not None and member.link is link:
            self._end_step(member, "gone", link.reason or "the connection was lost")
        if self.roster.leave(identity.name, link):
            self.metrics.devices(self.roster)
            why: dict[str, Any] = {"reason": link.reason} if link.reason else {}
            log.info("device left", device=identity.name, online=len(self.roster.online), **why)

    def refuse(self, reason: str) -> None:
        """Count and log a refused connection, each reason once."""
        self.metrics.refused.inc()
        self._once.warning("connection refused", reason=reason)

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
        if ready.batch_id <= member.batch_ids:
            raise WireError(f"batch {ready.batch_id} after batch {member.batch_ids}")
        if member.asked is not None and not member.asked.answer.done():
            raise WireError("a new batch while a step is due")
        self.roster.announce(member, ready)

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
            fault = _fault(change, update.loss, asked)
            if fault:
                asked.answer.set_exception(UpdateRejected("rejected", fault))
            else:
                asked.answer.set_result(Answer(change, asked.ready.counts, update.loss))
        if update.HasField("next"):
            self._announced(member, update.next)

    def _invalid(self, member: Member, link: StreamLink, reason: str) -> None:
        if member.asked is not None and not member.asked.answer.done():
            self._end_step(member, "rejected", reason)
        else:
            self._failed(member, "rejected", reason)
        link.hang_up(reason)

    def _end_step(self, member: Member, outcome: str, reason: str) -> None:
        asked: Asked | None = member.asked
        if asked is not None and not asked.answer.done():
            asked.answer.set_exception(UpdateRejected(outcome, reason))

    # --- messages to devices

    async def tell(self, task: pb.Task) -> None:
        """Tell all devices the task, where it is a new one."""
        if task == self.task:
            return
        self.task = task
        self.roster.withdraw(task.classes)
        told = []
        for member in self.roster.online:
            member.ready = None
            self._end_step(member, "gone", "another task began")
            assert member.link is not None
            told.append(member.link.send([serialise(pb.Down(task=task))]))
        await asyncio.wait_for(asyncio.gather(*told, return_exceptions=True), self.settings.deadline)
        log.info("task", run=task.run, task=task_label(task), batch_size=task.batch_size)

    async def ask(
        self, member: Member, ready: Ready, messages: StepMessages, shapes: Shapes, largest_norm: float
    ) -> Answer | None:
        """Let a selected device make its step; None where it gave no update that can be used."""
        assert self.task is not None
        if member.link is None or member.ready is not ready:
            self._failed(member, "gone", "offline when it was selected")
            return None
        self._steps += 1
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        asked = Asked(self._steps, ready, shapes, self.task.wire, largest_norm, answer)
        member.asked, member.ready = asked, None
        link = member.link
        outgoing = messages.for_device(asked.step, ready.batch_id)
        size = sum(map(len, outgoing))
        self.sent += size
        self.metrics.sent.inc(size)
        sending = asyncio.ensure_future(link.send(outgoing))
        sending.add_done_callback(lambda done: _sent(done, answer))
        try:
            found = await asyncio.wait_for(asyncio.shield(answer), self.settings.deadline)
        except TimeoutError:
            if not sending.done():  # it has not even taken the weights: a stream in this state is of no use
                sending.cancel()
                link.hang_up("did not take its step in time")
            self._failed(member, "late", f"no answer within {self.settings.deadline:g} s")
            return None
        except UpdateRejected as lost:
            self._failed(member, lost.outcome, str(lost))
            return None
        finally:
            answer.cancel()  # nobody waits for it any more
        self.roster.succeeded(member)
        self.metrics.updates.labels("used").inc()
        return found

    def _failed(self, member: Member, outcome: str, reason: str) -> None:
        self.events[outcome] += 1
        self.metrics.updates.labels(outcome).inc()
        log.warning("no update", device=member.name, outcome=outcome, reason=reason)
        if self.roster.failed(member, reason):
            self.events["quarantined"] += 1
            log.warning("device is quarantined", device=member.name, seconds=self.settings.quarantine)
            self.metrics.devices(self.roster)

    async def say_goodbye(self, reason: str) -> None:
        """End all streams."""
        links = [member.link for member in self.roster.online if isinstance(member.link, StreamLink)]
        bye = serialise(pb.Down(bye=pb.Bye(reason=reason)))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(link.send([bye]) for link in links), return_exceptions=True), 1.0)
        for link in links:
            link.hang_up(reason)


def _fault(change: Flat, loss: float, asked: Asked) -> str:
    """Return why an update cannot be used; "" where it can."""
    if not abs(loss) <= LARGEST_LOSS:  # nor NaN
        return f"a loss of {loss:g}; {LARGEST_LOSS:g} is the most"
    moved = norm(change[: asked.shapes.trained_size])
    if not math.isfinite(moved) or not np.isfinite(change).all():  # buffers too
        return "a change that is not finite"
    if moved > asked.largest_norm:
        return f"a change of norm {moved:.3g}; {asked.largest_norm:.3g} is the most"
    return ""


def _sent(done: "asyncio.Future[None]", answer: "asyncio.Future[Answer]") -> None:
    if not done.cancelled() and done.exception() is not None and not answer.done():
        answer.set_exception(UpdateRejected("gone", "the connection was lost"))
