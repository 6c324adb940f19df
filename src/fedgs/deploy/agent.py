"""The agent on a device: connects to its station, announces its next batch, makes a step when it is selected.

    Hello ▸        ◂ Task        Ready ▸        ◂ Step (weights)        Update (change, loss, next Ready) ▸   …

It reconnects for ever: after a lost connection, a restart of the station, a certificate that was renewed. The waits
grow up to ``longest_wait`` and are jittered, so that the devices of a factory do not reconnect at the same moment.

Where it knows several stations, it begins with the first of its list whenever it has to reconnect. It goes on to the
next one when a station refuses it, or has not been reached for ``failover`` seconds: a restart takes less, and must not
send all devices of a factory to another one.

Raw samples stay in the :class:`~fedgs.deploy.sources.Batch`; only class counts, the change of the weights, the batch
size and the loss go to :mod:`fedgs.deploy.wire`. Where inputs are normalised, the number, the sum and the sum of
squares of each channel's values go there too, once a run.

**Noise on the announced class counts** is the discrete Gaussian (Canonne, Kamath, Steinke, 2020, "The discrete Gaussian
for differential privacy"), P(x) ∝ exp(−x² / 2σ²) on the whole numbers, added to each class's count. What comes out is
made into counts again, none negative and summing to the batch size, so a station cannot tell it from true ones; that
uses the noisy counts alone and costs no privacy. The tails are cut at 12 σ, where less than 1e-31 of the probability
lies.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from fedgs import __version__, rng
from fedgs.data.dataset import are_numbers
from fedgs.deploy.logs import log, set_up
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.process import end_with_parent, until_stopped
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.settings import DeviceSettings
from fedgs.deploy.sources import Batch, Source, open_source
from fedgs.deploy.trainers import Trainer, check_batch, make_trainer, with_classes_of
from fedgs.deploy.transport import ANSWERS_WITHIN, Dialer
from fedgs.deploy.wire import (
    ATTACH,
    LARGEST_MESSAGE,
    VERSION,
    Assembly,
    Ready,
    decode_down,
    encode_update,
    serialise,
    task_label,
)  # fmt: skip
from fedgs.errors import DataError, FedgsError, IdentityError, WireError

LOOK_AGAIN = 0.25
"""Seconds between two looks at a source that had nothing yet."""
PATIENCE = 0.02
"""Seconds that a finished step waits for the next batch; one that comes later is announced by itself."""


@dataclass
class Work:
    """The task of a device, how it trains, and the batch it holds."""

    task: pb.Task
    trainer: Trainer
    batches: Iterator[Batch | None]
    batch: Batch | None = None
    announced: NDArray[np.int64] | None = None
    """Its announced counts: announced again they are the same, or many connections would average the noise away."""
    looking: "asyncio.Future[Batch | None] | None" = None
    """A look at the source that is under way; it outlives a connection."""
    lacking: list[str] = field(default_factory=list)
    """Classes of the task that the source does not have, as was said."""

    def look(self) -> "asyncio.Future[Batch | None]":
        """Begin to look for the next batch, in a thread, unless that is under way."""
        if self.looking is None:
            self.looking = asyncio.ensure_future(asyncio.to_thread(_following, self.batches))
        return self.looking


def _stream_of(task: pb.Task) -> tuple[Any, ...]:
    """Return what a task's batches depend on."""
    return task.classes, task.batch_size, tuple(task.class_names)


def _following(batches: Iterator[Batch | None]) -> Batch | None:
    """Return the next batch of a source; one that ends is at fault, for "nothing yet" is None."""
    try:
        return next(batches)
    except StopIteration:
        raise DataError("the source has ended; it is opened again") from None


class _ReleasedError(FedgsError):
    """The station sends its devices to other ones."""


class Agent:
    """One device; ``run`` ends only when it is cancelled."""

    def __init__(
        self,
        identity: Identity,
        stations: str,
        source: Source,
        bundle: Bundle | None,
        settings: DeviceSettings | None = None,
        make: Callable[[pb.Task], Trainer] = make_trainer,
    ) -> None:
        """``stations``: HOST:PORT, or several, separated by commas. ``bundle`` None: plain text on the loopback.

        ``make`` gives the trainer of a task.
        """
        self.source, self.settings, self._make = source, settings or DeviceSettings(), make
        self._dialers = [
            Dialer(address.strip(), identity, bundle, self.settings.keepalive, LARGEST_MESSAGE)
            for address in stations.split(",")
        ]
        seed = self.settings.noise_seed
        self._noise_seed = secrets.randbits(63) if seed is None else seed
        self._work: Work | None = None
        self._batch_id = 0
        self.steps = 0
        """Made so far."""

    async def run(self) -> None:
        """Keep a stream to a station, for ever."""
        now, failover = asyncio.get_running_loop().time, self.settings.failover
        attempt = place = passes = 0
        since = now()
        said: dict[str, str] = {}
        while True:
            dialer = self._dialers[place]
            began, steps = now(), self.steps
            reason, refused = await self._attempt(dialer)
            worked, stayed = self.steps > steps, now() - began
            connected = worked or stayed > max(failover, 2 * ANSWERS_WITHIN)
            attempt = 0 if worked or stayed > 2 * self.settings.longest_wait else attempt + 1
            if connected and not refused:
                place, passes, since = 0, 0, now()
            elif len(self._dialers) > 1 and (refused or now() - since > failover):
                place, since = (place + 1) % len(self._dialers), now()
                passes += place == 0
                attempt = passes  # the next one is tried soon, the whole list less and less often
            wait = self._wait(attempt)
            if reason != said.get(dialer.address) or attempt == 0:
                log.warning("not connected", station=dialer.address, reason=reason, again_in=round(wait, 2))
                said[dialer.address] = reason
            await asyncio.sleep(wait)

    def _wait(self, attempt: int) -> float:
        most = min(self.settings.longest_wait, self.settings.first_wait * 2.0 ** min(attempt, 30))
        draw = rng.stream(0, "reconnect", self._dialers[0].identity.uri, attempt).random()
        return most * (0.5 + 0.5 * float(draw))

    async def _attempt(self, dialer: Dialer) -> tuple[str, bool]:
        """Stay connected as long as it goes; return why it ended, and whether the station does not want this device."""
        try:
            return await self._connect(dialer), False
        except _ReleasedError as error:
            return str(error), True
        except grpc.aio.AioRpcError as error:
            return dialer.reason(error), error.code() == grpc.StatusCode.PERMISSION_DENIED

    async def _connect(self, dialer: Dialer) -> str:
        try:
            server = None if dialer.bundle is None else (await dialer.look(dialer.bundle))[0]
            async with dialer.channel(server) as channel, dialer.while_good(server):
                return await self._talk(channel.stream_stream(ATTACH)(metadata=dialer.metadata))
        except (grpc.aio.AioRpcError, asyncio.CancelledError, _ReleasedError):
            raise
        except WireError as error:
            return f"the station sent {error}"
        except FedgsError as error:
            return str(error)
        except (asyncio.InvalidStateError, grpc.aio.UsageError):  # written to a stream that had just ended
            return "the connection was lost"
        except Exception as error:  # a fault of a source or of this program: log it, and reconnect
            log.exception("attempt failed")
            return f"{type(error).__name__}: {error}"

    async def _talk(self, call: Any) -> str:
        await call.write(serialise(pb.Up(hello=pb.Hello(version=VERSION, software=f"fedgs {__version__}"))))
        announcing: asyncio.Task[None] | None = None
        assembly: Assembly | None = None
        step: pb.Step | None = None
        try:
            while (data := await _read(call, announcing)) is not grpc.aio.EOF:
                message = decode_down(data)
                if isinstance(message, pb.Bye):
                    if message.released:
                        raise _ReleasedError(message.reason)
                    return message.reason
                if isinstance(message, pb.Task):
                    await _stop(announcing)
                    await self._begin(message)
                    announcing = asyncio.ensure_future(self._announce(call))
                    continue
                if isinstance(message, pb.Step):
                    await _stop(announcing)
                    step, assembly = message, self._open(message)
                elif assembly is None:
                    raise WireError("a part without a message before it")
                else:
                    assembly.add(message)
                if assembly is not None and assembly.complete and step is not None:
                    if await self._step(call, step, assembly):
                        announcing = asyncio.ensure_future(self._announce(call))
                    step = assembly = None
            return "the station ended the stream"
        finally:
            call.cancel()
            await _stop(announcing)

    async def _begin(self, task: pb.Task) -> None:
        if task.batch_size < self.settings.min_batch:
            raise DataError(f"the task has batches of {task.batch_size}; --min-batch is {self.settings.min_batch}")
        old = self._work
        if old is not None and _stream_of(old.task) == _stream_of(task):
            known = pb.Task.FromString(serialise(old.task))
            known.run, known.wire, known.moments = task.run, task.wire, task.moments
            if known != task:
                old.trainer = await asyncio.to_thread(self._make, task)
            old.task = task  # the stream of samples goes on
        else:
            trainer = await asyncio.to_thread(self._make, task)
            self._work = Work(task, trainer, self.source.batches(task.batch_size, task.classes))
        log.info("task", run=task.run, task=task_label(task), batch_size=task.batch_size)

    def _open(self, step: pb.Step) -> Assembly:
        work = self._work
        if work is None:
            raise WireError("a step without a task")
        if work.batch is None or step.batch_id != self._batch_id:
            raise WireError(f"a step on batch {step.batch_id}, which was not announced")
        return Assembly(step.weights, work.trainer.shapes, work.task.wire)

    async def _announce(self, call: Any) -> None:
        """Look for the next batch until there is one, and tell its class counts."""
        while True:
            ready = await self._next(None)
            if ready is not None:
                await _write_whole(call, serialise(pb.Up(ready=ready.message)))
                return
            await asyncio.sleep(LOOK_AGAIN)

    async def _next(self, patience: float | None) -> Ready | None:
        """Return the announcement of the next batch; None where the source has none, or none in time.

        A source that fails is opened again with the next connection: a generator that has raised gives nothing more.
        """
        work = self._work
        assert work is not None
        try:
            if work.batch is None:
                looking = work.look()
                await asyncio.wait({looking}, timeout=patience)
                if not looking.done():
                    return None
                work.looking = None
                work.batch = looking.result()
                if work.batch is not None:
                    found, work.batch = work.batch, with_classes_of(work.task, work.batch)
                    self._name_lacking(work, found)  # only once all its own classes are known
            if work.batch is None:
                return None
            check_batch(work.batch, work.task)
            self._batch_id += 1
            if work.announced is None:
                work.announced = self._counts(work, work.batch)
            return Ready(self._batch_id, work.announced, await self._moments(work, work.batch))
        except Exception:
            self._work = None
            raise

    async def _moments(self, work: Work, batch: Batch) -> NDArray[np.float64]:
        """Return what the task asks of all values here.

        A device with noise on its counts does not tell it, nor one with fewer values than its smallest batch.
        """
        if not work.task.moments or self.settings.count_noise:
            return np.empty(0)
        held = getattr(self.source, "held", None)  # a source that cannot say what it holds: its first batch
        pieces = [batch.inputs] if held is None else held()
        found = await asyncio.to_thread(work.trainer.moments, pieces)
        return found if found[: work.task.moments].min() >= self.settings.min_batch else np.empty(0)

    def _name_lacking(self, work: Work, batch: Batch) -> None:
        named = not are_numbers(batch.classes)
        lacking = [name for name in work.task.class_names if named and name not in batch.classes]
        if lacking and lacking != work.lacking:
            log.info("the task has classes that are missing here", missing=", ".join(lacking))
        work.lacking = lacking

    def _counts(self, work: Work, batch: Batch) -> NDArray[np.int64]:
        """Return the class counts of a batch as they are announced."""
        bins = work.trainer.bins(batch)
        counts = np.bincount(bins, minlength=work.task.classes)
        if len(counts) > work.task.classes:
            raise DataError(f"the source gives label {bins.max()}, the task has {work.task.classes} classes")
        if self.settings.count_noise:
            counts = noisy_counts(counts, self.settings.count_noise, self._noise_seed, self._batch_id)
        return counts.astype(np.int64)

    async def _step(self, call: Any, step: pb.Step, assembly: Assembly) -> bool:
        """Make the step and send it; True where the next batch is still to be announced."""
        work = self._work
        assert work is not None
        assert work.batch is not None
        batch, work.batch, work.announced = work.batch, None, None
        work.look()
        change, loss = await asyncio.to_thread(work.trainer.step, assembly.flat(), batch, step.learning_rate)
        following = await self._next(PATIENCE)
        update = pb.Update(step=step.step, batch_id=step.batch_id, num_samples=len(batch), loss=loss)
        if following is not None:
            update.next.CopyFrom(following.message)
        for message in encode_update(update, work.trainer.shapes, change, work.task.wire):
            await call.write(message)
        self.steps += 1
        return following is None


def discrete_gaussian(sigma: float, size: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Draw whole numbers."""
    reach = math.ceil(12 * sigma)
    support = np.arange(-reach, reach + 1)
    chances = np.exp(-(support.astype(np.float64) ** 2) / (2 * sigma**2))
    drawn: NDArray[np.int64] = draws.choice(support, size=size, p=chances / chances.sum())
    return drawn


def noisy_counts(counts: NDArray[np.int64], sigma: float, seed: int, batch_id: int) -> NDArray[np.int64]:
    """Return what a device with noise announces for its batch number ``batch_id``."""
    noise = discrete_gaussian(sigma, len(counts), rng.stream(seed, "count noise", batch_id))
    return as_counts(counts + noise, int(counts.sum()))


def as_counts(values: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Return counts that sum to ``total``, in proportion to the positive ones of ``values``, by largest remainders."""
    positive = np.maximum(values, 0)
    if not positive.any():
        positive = np.ones_like(positive)
    shares = positive * (total / positive.sum())
    counts: NDArray[np.int64] = np.floor(shares).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts


async def _read(call: Any, announcing: "asyncio.Task[None] | None") -> Any:
    """Return the next message; an announcement that fails meanwhile is a reason to end the stream."""
    if announcing is None or announcing.done():
        return await call.read()
    reading = asyncio.ensure_future(call.read())
    try:
        await asyncio.wait({reading, announcing}, return_when=asyncio.FIRST_COMPLETED)
        if announcing.done():
            announcing.result()
        return await reading
    finally:
        reading.cancel()


async def _write_whole(call: Any, message: bytes) -> None:
    """Write to the end, also if cancelled meanwhile: a write that is cut off is the end of the whole stream in gRPC.

    A station may ask for a step on what was announced before gRPC says that the announcement is written.
    """
    writing = asyncio.ensure_future(call.write(message))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.gather(writing, return_exceptions=True)
        raise


async def _stop(task: "asyncio.Task[None] | None") -> None:
    if task is not None and not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def run_device(
    name: str, stations: str, source: str, settings: DeviceSettings, bundle: Bundle | None, seed: int = 0
) -> None:
    """The process of ``fedgs device``: one agent, until it is told to stop."""
    end_with_parent()
    set_up(settings.log_level, settings.log_json, process=f"device {name}")
    identity = Identity("park", "device", name) if bundle is None else bundle.check("device")
    if bundle is not None and identity.name != name:
        raise IdentityError(f"{bundle.folder}: is the certificate of device {identity.name!r}, not of {name!r}")
    agent = Agent(identity, stations, open_source(source, name, seed), bundle, settings)
    asyncio.run(until_stopped(agent.run(), bundle))
    log.info("device stops", device=identity.name, steps=agent.steps)
