"""The journal over JetStream. Every error of the driver becomes a JournalUnavailable.

Sources: NATS ADR-31 (batched direct get), ADR-43 (per-message TTL).
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Any, Self
from urllib.parse import urlsplit

import nats
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from app.deliberation.announcements import AgentResponse, Announcement
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import (
    FACT_SUFFIXES,
    LATER_SUFFIXES,
    Accepted,
    Deleted,
    Fact,
    View,
    encode,
    is_acceptance,
    prefix,
    suffix,
)
from app.deliberation.ports import Appended, QueueState, Record, StreamState
from app.log.announced_ends import AnnouncedEnds
from app.log.connection import REQUEST_TIMEOUT_S, UNREACHABLE, LogClient, login, request, state_of
from app.log.direct_get import PAGE_RECORDS, Batch, DirectGet
from app.log.erasure import Erasure
from app.log.first_write import Accepts, FirstWriter
from app.log.inputs import InputStore
from app.log.signature import LogSigner
from app.log.stream_settings import RESPONSES, STREAM, stream_of

VIEW_TTL_S = 600
NO_CONSUMER = 10014
READS_AT_ONCE = 64
_FILE_WAIT_S = 1.0

log = structlog.get_logger(__name__)


async def unsubscribe(subscription: Subscription) -> None:
    # RuntimeError: see UNREACHABLE.
    with suppress(nats.errors.BadSubscriptionError, nats.errors.ConnectionClosedError, OSError, RuntimeError):
        await subscription.unsubscribe()


@dataclass(slots=True)
class LiveSubscription:
    """Subscriptions to republished subjects; `deliver` gets accepted records in the log's order.

    nats-py gives each subscription a queue and a task, so an earlier message may still be in another one's queue.
    """

    deliver: Callable[[Record], None]
    signer: LogSigner
    several: bool
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    _held: list[tuple[int, int, Record]] = field(default_factory=list[tuple[int, int, Record]])
    _numbers: "count[int]" = field(default_factory=count)

    async def on_message(self, message: Msg) -> None:
        """Deliver a message, or hold it while an earlier one may be queued. Never gives way to other tasks."""
        headers = message.headers or {}
        subject = message.subject.removeprefix("live.")
        # Any process with the right to publish on a live subject reaches this, so nothing of the message is trusted.
        sequence = headers.get("Nats-Sequence", "")
        if self.signer.is_authentic(subject, message.data, headers) and sequence.isdecimal():
            heappush(self._held, (int(sequence), next(self._numbers), Record(subject, int(sequence), message.data)))
        # Also after a message of a stranger, for which an earlier one may have been held.
        if not self.several or not any(subscription.pending_msgs for subscription in self.subscriptions):
            while self._held:
                self.deliver(heappop(self._held)[2])

    async def close(self) -> None:
        for subscription in self.subscriptions:
            await unsubscribe(subscription)


class JetStreamJournal:
    """`ports.Journal` and `ports.Control` over one connection; a write is retried for `timeout_s`.

    Methods raise JournalUnavailable before `open` has connected and while the server is away.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        client: Client | None = None,
        signer: LogSigner | None = None,
    ) -> None:
        self._url = url
        # For logs and errors: the URL may hold a password.
        self.server = urlsplit(url).netloc.rpartition("@")[2]
        self._name = name
        self.client = client or LogClient()
        self.signer = signer or LogSigner()
        self._reads = DirectGet(self.client, self.signer)
        self._ends = AnnouncedEnds(self.client, self._reads)
        self._erasure = Erasure(self.client, self._reads, self._ends)
        self.writes = FirstWriter(self.client, self.signer, self._reads, timeout_s)
        self.inputs = InputStore(self.client, self._reads, self.writes, self._erasure, self.signer)
        self._reconnect_calls: list[Callable[[], None]] = []
        self.refusal = ""
        self._last_error = ""
        self._connecting = False

    @property
    def server_version(self) -> str | None:
        if not self.client.is_connected:
            return None
        version = self.client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str = "deliberate",
        timeout_s: float = REQUEST_TIMEOUT_S,
        signer: LogSigner | None = None,
    ) -> Self:
        journal = cls(url, name=name, timeout_s=timeout_s, signer=signer)
        await journal.open()
        return journal

    async def open(self) -> None:
        """Connect and reconnect for ever; `refusal` says why it waits. Raises JournalUnavailable for no NATS server."""
        server, credentials = await self._login()
        self.server = urlsplit(server).netloc.rpartition("@")[2]
        self._connecting = True
        try:
            await self.client.connect(
                server,
                **credentials,
                name=self._name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.2,  # pyright: ignore[reportArgumentType] -- seconds; a fraction is honoured
                connect_timeout=2,
                ping_interval=5,
                max_outstanding_pings=2,
                pending_size=-1,  # fail fast while offline: a buffered write would look acknowledged
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
                error_cb=self._failed,
            )
        except nats.errors.Error as exc:
            raise JournalUnavailable(f"{self.server} refuses the connection: {exc}") from exc
        await self._reads.open()

    async def _login(self) -> tuple[str, dict[str, Any]]:
        while True:
            try:
                return login(self._url)
            except JournalUnavailable as exc:
                self.refusal = str(exc)
                log.error("journal_url_unreadable", error=self.refusal)
                await asyncio.sleep(_FILE_WAIT_S)

    async def close(self) -> None:
        if self.client.is_closed or not self._connecting:
            return
        try:
            await self.client.close()
        except UNREACHABLE as exc:
            log.info("journal_lost_before_close", error=repr(exc))

    async def _disconnected(self) -> None:
        # Subscribers resync from here on: live events may arrive before nats-py reports the reconnect.
        self._resync()

    async def _reconnected(self) -> None:
        log.info("journal_reconnected", server=self.server)
        self._last_error = self.refusal = ""
        self._resync()

    async def _failed(self, error: Exception) -> None:
        # The client tries again five times a second, for as long as it takes.
        if repr(error) != self._last_error:
            log.warning("journal_connection_error", error=repr(error))
        self._last_error = repr(error)
        if "authorization" in str(error).lower():
            self.refusal = f"{self.server} refuses the credentials: {error}"
        elif "permissions violation" in str(error).lower():
            self.refusal = f"{self.server} refuses a right of this user: {error}"
        if isinstance(error, nats.errors.SlowConsumerError):
            self._resync()

    def _resync(self) -> None:
        for call in list(self._reconnect_calls):
            call()

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        self._reconnect_calls.append(call)
        return lambda: self._reconnect_calls.remove(call)

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        subject = prefix(tenant, fact.deliberation_id)
        # The server refuses an acceptance while any fact of the id is stored, above all its tombstone.
        alone = f"{subject}.*" if isinstance(fact, Accepted) else None
        return await self.write(f"{subject}.{suffix(fact)}", encode(fact), alone)

    async def write(
        self, subject: str, data: bytes, alone: str | None = None, *, accepts: Accepts | None = None
    ) -> Appended:
        """See `ports.Journal.write`. A stored record that `accepts` rejects counts as absent."""
        return await self.writes.write(subject, data, alone, accepts)

    async def request(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        return await request(self.client, subject, payload, headers)

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        await self._erasure.purge(tenant, deliberation_id)

    async def erase_announcement(self, tenant: str, deliberation_id: str, ended_at: datetime) -> None:
        await self._erasure.erase_announcement(tenant, deliberation_id, ended_at)

    async def erase(self, stream: str, sequence: int) -> None:
        await self._erasure.erase(stream, sequence)

    async def publish_view(self, tenant: str, view: View, until: datetime | None = None) -> None:
        needed_s = 0 if until is None else ceil((until - datetime.now(UTC)).total_seconds())
        subject, data = f"{prefix(tenant, view.deliberation_id)}.{suffix(view)}", encode(view)
        headers = {"Nats-TTL": f"{max(VIEW_TTL_S, needed_s)}s", **self.signer.headers(subject, data)}
        try:
            await self.client.publish(subject, data, headers=headers)
        except UNREACHABLE as exc:
            log.debug("view_lost", error=repr(exc))

    async def facts(self, tenant: str, deliberation_id: str, known: Sequence[Record] = ()) -> list[Record]:
        """Read all but the `known` records; raises JournalUnavailable when the server lags behind them."""
        subject, facts = prefix(tenant, deliberation_id), {record.subject: record for record in known}
        tails = LATER_SUFFIXES if any(map(is_acceptance, facts)) else FACT_SUFFIXES
        patterns = [f"{subject}.{tail}" for tail in tails]
        newest = max((record.sequence for record in known), default=0)
        batch = await self._reads.last([pattern for pattern in patterns if pattern not in facts])
        if batch.up_to < newest:
            # Without a record the server does not say how far it has come.
            batch = await self._reads.last(patterns)
            if batch.up_to < newest:
                raise JournalUnavailable(f"the server that answers lags behind fact {newest}")
        # A pattern with a wildcard also finds facts that are known.
        facts |= {record.subject: record for record in await self._accepted(batch)}
        return sorted(facts.values(), key=lambda record: record.sequence)

    async def last(self, patterns: Sequence[str]) -> list[Record]:
        """See `ports.Journal.last`. On a subject that ends with refused records, the first accepted one."""
        return await self._accepted(await self._reads.last(patterns))

    async def _accepted(self, batch: Batch) -> list[Record]:
        hidden = list(batch.refused.items())
        for begin in range(0, len(hidden), READS_AT_ONCE):
            some = hidden[begin : begin + READS_AT_ONCE]
            reads = (self.writes.first_accepted(subject, up_to) for subject, up_to in some)
            batch.records += filter(None, await asyncio.gather(*reads))
        return sorted(batch.records, key=lambda record: record.sequence)

    async def announce(self, announced: Announcement) -> None:
        await self._ends.publish(announced)

    async def respond(self, response: AgentResponse) -> None:
        """See `Neighbours.respond`: the first write on a subject of the call's own in AGENT_RESPONSES."""
        await self.write(
            f"{RESPONSES}.{response.status}.{response.task_id}.{response.call_id}",
            response.__pydantic_serializer__.to_json(response),
        )

    async def complete_responses(self, deliberation_id: str, responses: Iterable[AgentResponse]) -> None:
        stored = await self._reads.last([f"{RESPONSES}.*.{deliberation_id}.*"])
        known = {record.tokens[-1] for record in stored.records}
        await asyncio.gather(*(self.respond(response) for response in responses if response.call_id not in known))

    async def publish(self, subject: str, data: bytes, id: str) -> None:
        """Store an event for other services; within two minutes a second one with the same id is dropped."""
        reply = await self.request(subject, data, {"Nats-Msg-Id": id})
        if error := reply.get("error"):
            raise JournalUnavailable(f"the log refused the event on {subject}: {error.get('description')}")

    async def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        left = limit
        async for batch in self._reads.batches(
            pattern, after, PAGE_RECORDS if limit is None else min(PAGE_RECORDS, limit)
        ):
            for record in batch.records[:left]:
                yield record
            left = None if left is None else left - len(batch.records)
            if left is not None and left <= 0:
                return

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]) -> LiveSubscription:
        live = LiveSubscription(deliver, self.signer, several=len(patterns) > 1)
        confirmed = False
        try:
            for pattern in patterns:
                live.subscriptions.append(await self.client.subscribe(f"live.{pattern}", cb=live.on_message))
            # nats-py sends the PING of a flush before commands that are still pending, so that only the second one
            # follows the subscription. After it the server has the subscription, and the caller may read the log.
            await self.client.flush(timeout=2)
            await self.client.flush(timeout=2)
            confirmed = True
        except UNREACHABLE as exc:
            raise JournalUnavailable(f"the log cannot be reached: {exc!r}") from exc
        finally:
            if not confirmed:
                # nats-py renews a subscription at every reconnect, so one without an owner must be closed.
                await live.close()
        return live

    async def state(self, subjects: str = "deliberations.>") -> StreamState:
        return await self.state_of(stream_of(subjects))

    async def state_of(self, stream: str) -> StreamState:
        return await state_of(self.client, stream)

    async def queue(self, *consumers: str) -> QueueState:
        """See `ports.Journal.queue`. A consumer acknowledges a record once its work is stored."""
        queues = [await self._queue(consumer) for consumer in consumers]
        # The place of a queue without work is that of its last work, however long ago that was.
        places = [queue.acknowledged_to for queue in queues]
        floor = min((queue.acknowledged_to for queue in queues if queue.left), default=max(places))
        return QueueState(floor, sum(queue.left for queue in queues))

    async def _queue(self, consumer: str) -> QueueState:
        reply = await self.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{consumer}")
        if error := reply.get("error"):
            if error.get("err_code") == NO_CONSUMER:
                return QueueState(0, sys.maxsize)
            raise JournalUnavailable(f"consumer {consumer}: {error.get('description')}")
        return QueueState(reply["ack_floor"]["stream_seq"], reply["num_pending"] + reply["num_ack_pending"])

    async def inquire(
        self, subject: str, data: bytes = b"", *, timeout_s: float, replies_max: int = 1
    ) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = []
        enough = asyncio.Event()

        async def on_message(message: Msg) -> None:
            if (message.headers or {}).get("Status") == "503":
                enough.set()
                return
            replies.append(json.loads(message.data))
            if len(replies) >= replies_max:
                enough.set()

        inbox = self.client.new_inbox()
        try:
            subscription = await self.client.subscribe(inbox, cb=on_message)
        except UNREACHABLE:
            return []
        try:
            await self.client.publish(subject, data, reply=inbox)
            async with asyncio.timeout(timeout_s):
                await enough.wait()
        except UNREACHABLE:
            return replies
        finally:
            await unsubscribe(subscription)
        return replies

    async def ask(self, subject: str, data: bytes, *, timeout_s: float) -> bytes:
        try:
            return (await self.client.request(subject, data, timeout=timeout_s)).data
        except TimeoutError:
            raise
        except UNREACHABLE as exc:
            raise JournalUnavailable(f"nothing listens on {subject}: {exc!r}") from exc

    async def answer(self, subject: str, describe: Callable[[bytes], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        """Answer inquiries on `subject` with what `describe` makes of their data as JSON, until the journal is closed.

        Each is answered at once, also while a description waits: those that come meanwhile share the one of their data.
        """
        waiting: dict[bytes, list[Msg]] = {}
        tasks = set[asyncio.Task[None]]()

        async def reply(data: bytes) -> None:
            try:
                description = json.dumps(await describe(data)).encode()
            finally:
                inquiries = waiting.pop(data)
            for inquiry in inquiries:
                with suppress(*UNREACHABLE):
                    await inquiry.respond(description)

        async def on_message(message: Msg) -> None:
            if message.data in waiting:
                waiting[message.data].append(message)
                return
            waiting[message.data] = [message]
            task = asyncio.get_running_loop().create_task(reply(message.data))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        await self.client.subscribe(subject, cb=on_message)

    async def tell(self, subject: str, data: bytes) -> None:
        """See `ports.Journal.tell`."""
        try:
            await self.client.publish(subject, data)
        except UNREACHABLE as exc:
            log.debug("message_lost", subject=subject, error=repr(exc))

    async def listen(self, subject: str, deliver: Callable[[bytes], None]) -> None:
        """See `ports.Journal.listen`."""

        async def on_message(message: Msg) -> None:
            deliver(message.data)

        await self.client.subscribe(subject, cb=on_message)
