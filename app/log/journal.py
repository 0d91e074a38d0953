"""The journal over JetStream: write once, read, subscribe. Every error of the driver becomes a JournalUnavailable.

Sources: NATS ADR-31 (batched direct get), ADR-43 (per-message TTL), the stream options `republish` and `allow_direct`.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any, Self
from urllib.parse import urlsplit

import nats
import nats.errors
import stamina
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from app.deliberation.errors import FactTooLarge, JournalUnavailable
from app.deliberation.facts import (
    FACT_SUFFIXES,
    TERMINAL_STATUS,
    Accepted,
    Deleted,
    End,
    Fact,
    View,
    encode,
    prefix,
    suffix,
)
from app.deliberation.ports import Appended, Record, StreamState
from app.log.connection import REQUEST_TIMEOUT_S, UNREACHABLE, login
from app.log.direct_get import Batch, DirectGet, TooManySubjects
from app.log.ordered_subscription import LiveSubscription, unsubscribe
from app.log.seal import LogSeal

STREAM = "DELIBERATIONS"
CONSUMER = "coordinator"
KEYS_STREAM = "KEYS"
WEBHOOKS_STREAM = "WEBHOOKS"
VIEW_TTL_S = 600
# For every page the server counts the rest of the log: a long log is read twice as fast as in pages of 256.
PAGE_RECORDS = 4_000
PAGE_BYTES = 8_000_000
WRONG_LAST_SEQUENCE = 10071
NO_CONSUMER = 10014
PURGES_AT_ONCE = 64
_FILE_WAIT_S = 1.0
READS_AT_ONCE = 64
# Writers of records that are not believed may occupy a subject again between a look and a write.
OCCUPIED_TRIES = 20
# Subjects of which is remembered up to where nothing is believed, so that a flooded one is not read from its beginning.
REMEMBERED_MAX = 10_000
# Streams that copy events to subjects with the id alone (`app.log.streams`), and the prefix of these subjects.
COPIES = {"AGENT_RESULTS": "agent.results", "VLLM_STREAMING": "vllm.streaming"}

_STREAMS = {"keys": KEYS_STREAM, "webhooks": WEBHOOKS_STREAM}
_EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_LAST_AMONG = "Nats-Expected-Last-Subject-Sequence-Subject"
# An honest record mostly stands before those of strangers on its subject.
_FIRST_LOOK_RECORDS = 8

Believes = Callable[[Record], bool]
"""Whether a stored record is what an honest process wrote."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Write:
    """A first write on `subject`, and on the pattern `alone`. What `believes` rejects counts as absent."""

    subject: str
    data: bytes
    alone: str | None
    believes: Believes | None


def _headers_of(block: bytes) -> dict[str, str]:
    """The headers of a stored message, as nats-py parses those of a received one: the last of equal names counts."""
    lines = (line.partition(b":") for line in block.split(b"\r\n"))
    return {name.strip().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in lines}


def stream_of(pattern: str) -> str:
    """The name of the stream that holds a subject or pattern."""
    return _STREAMS.get(pattern.partition(".")[0], STREAM)


class JetStreamJournal:
    """`ports.Journal` and `ports.Control` over one connection.

    `url` may be a `file:` URL, whose file holds the server's URL. Every method raises JournalUnavailable before `open`
    has connected and while the server is away. A write is retried for `patience_s`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        patience_s: float = REQUEST_TIMEOUT_S,
        client: Client | None = None,
        seal: LogSeal | None = None,
    ) -> None:
        self._url = url
        # For logs and errors: the URL may hold a password.
        self.server = urlsplit(url).netloc.rpartition("@")[2]
        self._name = name
        self._patience_s = patience_s
        self.client = client or Client()
        self.seal = seal or LogSeal()
        self._reads = DirectGet(self.client, self.seal)
        self._nothing_believed_to: dict[str, int] = {}
        self._reconnect_calls: list[Callable[[], None]] = []
        self.last_write_failed = False
        self.refusal = ""
        self._connecting = False

    @property
    def server_version(self) -> str | None:
        """The version of nats-server; None while none is connected."""
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
        patience_s: float = REQUEST_TIMEOUT_S,
        seal: LogSeal | None = None,
    ) -> Self:
        """A journal that is open; waits for the server."""
        journal = cls(url, name=name, patience_s=patience_s, seal=seal)
        await journal.open()
        return journal

    async def open(self) -> None:
        """Connect, and reconnect for ever. Waits for the URL's file and for the server; `refusal` says why.

        Raises JournalUnavailable when the server breaks the protocol.
        """
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
        """Close the connection."""
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
        self._resync()

    async def _failed(self, error: Exception) -> None:
        log.warning("journal_connection_error", error=repr(error))
        if "authorization" in str(error).lower():
            self.refusal = f"{self.server} refuses the credentials: {error}"
        if isinstance(error, nats.errors.SlowConsumerError):
            self._resync()

    def _resync(self) -> None:
        for call in list(self._reconnect_calls):
            call()

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """See `ports.Journal.on_reconnect`."""
        self._reconnect_calls.append(call)
        return lambda: self._reconnect_calls.remove(call)

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        """See `ports.Journal.append`."""
        subject = prefix(tenant, fact.deliberation_id)
        # The server refuses an acceptance while any fact of the id is stored, above all its tombstone.
        alone = f"{subject}.*" if isinstance(fact, Accepted) else None
        return await self.write(f"{subject}.{suffix(fact)}", encode(fact), alone)

    async def write(
        self, subject: str, data: bytes, alone: str | None = None, *, believes: Believes | None = None
    ) -> Appended:
        """See `ports.Journal.write`. A stored record that `believes` rejects counts as absent."""
        write = _Write(subject, data, alone, believes)
        try:
            return await self._attempt(write)
        except JournalUnavailable as exc:
            failures = [exc]
        # Entered only after a failed first attempt, which it counts: building the context costs 0.1 ms.
        retries = stamina.retry_context(
            on=JournalUnavailable, attempts=None, timeout=self._patience_s, wait_initial=0.05, wait_max=1.0
        )
        async for attempt in retries:
            with attempt:
                if failures:
                    raise failures.pop()
                return await self._attempt(write)
        raise AssertionError("a retry context ends by returning or raising")

    async def _attempt(self, write: _Write) -> Appended:
        try:
            appended = await self._append(write)
        except JournalUnavailable:
            self.last_write_failed = True
            raise
        if appended.created:
            self.last_write_failed = False
        return appended

    async def _append(self, write: _Write) -> Appended:
        """Write behind what is stored but not believed, or return the believed record."""
        expected = 0
        for _ in range(OCCUPIED_TRIES):
            appended = await self._append_once(write, expected)
            if appended is not None:
                return appended
            stored, expected = await self._standing(write.subject, write.believes)
            if stored is None and write.alone:
                stored, expected = await self._standing(write.alone, write.believes)
            if stored is not None:
                return Appended(stored, created=stored.data == write.data)
        raise JournalUnavailable(f"the log refused the write {OCCUPIED_TRIES} times: others write on its subject")

    async def _append_once(self, write: _Write, expected: int) -> Appended | None:
        """The stored record; None when the last sequence on the subject, or on `alone`, is not `expected`."""
        headers = {_EXPECTED_LAST: str(expected), **self.seal.headers(write.subject, write.data)}
        if write.alone is not None:
            headers[_EXPECTED_LAST_AMONG] = write.alone
        try:
            message = await self.client.request(write.subject, write.data, timeout=REQUEST_TIMEOUT_S, headers=headers)
        except nats.errors.MaxPayloadError as exc:
            raise FactTooLarge(f"{len(write.data)} bytes on {write.subject}") from exc
        except UNREACHABLE as exc:
            # Whether it is stored is unknown. The subject decides: while it is empty, the write may be repeated.
            stored, _ = await self._standing(write.subject, write.believes)
            if stored is None:
                detail = f"the log did not acknowledge the write; it may be away, or its store full: {exc!r}"
                raise JournalUnavailable(detail) from exc
            return Appended(stored, created=stored.data == write.data)
        reply = json.loads(message.data)
        error = reply.get("error")
        if error is None:
            return Appended(Record(write.subject, reply["seq"], write.data), created=True)
        if error.get("err_code") == WRONG_LAST_SEQUENCE:
            return None
        raise JournalUnavailable(f"the log refused the write: {error.get('description')}")

    async def _standing(self, pattern: str, believes: Believes | None) -> tuple[Record | None, int]:
        """The record that counts on a subject or pattern, and the last sequence there, 0 when it is empty.

        The last record is read from the leader: a direct get may reach a stale follower.
        """
        request = json.dumps({"last_by_subj": pattern}).encode()
        reply = await self.request(f"$JS.API.STREAM.MSG.GET.{stream_of(pattern)}", request)
        if "error" in reply:
            if reply["error"].get("code") == 404:
                return None, 0
            raise JournalUnavailable(f"the log refused a read: {reply['error'].get('description')}")
        stored = reply["message"]
        record = Record(stored["subject"], stored["seq"], base64.b64decode(stored.get("data", "")))
        headers = _headers_of(base64.b64decode(stored.get("hdrs", "")))
        if self.seal.believes(record.subject, record.data, headers) and (believes is None or believes(record)):
            return record, record.sequence
        return await self._first_believed(pattern, record.sequence, believes), record.sequence

    async def _first_believed(self, pattern: str, up_to: int, believes: Believes | None = None) -> Record | None:
        """The first believed record of a pattern whose last one, at `up_to`, is not; it reads only what is new."""
        after, size = 0 if believes else self._nothing_believed_to.get(pattern, 0), _FIRST_LOOK_RECORDS
        while after < up_to:
            query = {"seq": after + 1, "next_by_subj": pattern, "batch": size, "max_bytes": PAGE_BYTES}
            batch = await self._reads.get(stream_of(pattern), query)
            found = next((record for record in batch.records if believes is None or believes(record)), None)
            if found is not None:
                return found
            if batch.position <= after:
                raise JournalUnavailable("the log's reads lag behind its writes")
            after, size = batch.position, PAGE_RECORDS
        if believes is None:
            self._nothing_believed_to[pattern] = after
            if len(self._nothing_believed_to) > REMEMBERED_MAX:
                del self._nothing_believed_to[next(iter(self._nothing_believed_to))]
        return None

    async def request(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """The server's JSON reply to a message; raises JournalUnavailable without one."""
        try:
            message = await self.client.request(subject, payload, timeout=REQUEST_TIMEOUT_S, headers=headers)
        except UNREACHABLE as exc:
            raise JournalUnavailable(f"the log cannot be reached: {exc!r}") from exc
        return json.loads(message.data)

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        """See `ports.Journal.purge`. One subject at a time: for a pattern the server scans the whole stream."""
        subject = prefix(tenant, deliberation_id)
        found = await self._last([f"{subject}.>"])
        subjects = {record.subject for record in found.records} | found.refused.keys()
        subjects.discard(f"{subject}.deleted")
        copies = [(name, f"{copied}.{deliberation_id}") for name, copied in COPIES.items()]
        pending = [(STREAM, each) for each in sorted(subjects)] + copies
        for begin in range(0, len(pending), PURGES_AT_ONCE):
            await asyncio.gather(*(self._purge_subject(*each) for each in pending[begin : begin + PURGES_AT_ONCE]))

    async def _purge_subject(self, stream: str, subject: str) -> None:
        reply = await self.request(f"$JS.API.STREAM.PURGE.{stream}", json.dumps({"filter": subject}).encode())
        if error := reply.get("error"):
            raise JournalUnavailable(f"the log refused to remove {subject}: {error.get('description')}")

    async def publish_view(self, tenant: str, view: View, until: datetime | None = None) -> None:
        """See `ports.Journal.publish_view`."""
        needed_s = 0 if until is None else ceil((until - datetime.now(UTC)).total_seconds())
        subject, data = f"{prefix(tenant, view.deliberation_id)}.{suffix(view)}", encode(view)
        headers = {"Nats-TTL": f"{max(VIEW_TTL_S, needed_s)}s", **self.seal.headers(subject, data)}
        try:
            await self.client.publish(subject, data, headers=headers)
        except UNREACHABLE as exc:
            log.debug("view_lost", error=repr(exc))

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        """See `ports.Journal.facts`."""
        subject = prefix(tenant, deliberation_id)
        return await self.last([f"{subject}.{tail}" for tail in FACT_SUFFIXES])

    async def last(self, patterns: Sequence[str]) -> list[Record]:
        """See `ports.Journal.last`. On a subject that ends with records that are not believed, the first believed."""
        found = await self._last(patterns)
        hidden = list(found.refused.items())
        for begin in range(0, len(hidden), READS_AT_ONCE):
            reads = (self._first_believed(subject, up_to) for subject, up_to in hidden[begin : begin + READS_AT_ONCE])
            found.records += filter(None, await asyncio.gather(*reads))
        return sorted(found.records, key=lambda record: record.sequence)

    async def _last(self, patterns: Sequence[str]) -> Batch:
        try:
            return await self._reads.get(stream_of(patterns[0]), {"multi_last": list(patterns)})
        except TooManySubjects:
            return await self._last_by_scan(patterns)

    async def _last_by_scan(self, patterns: Sequence[str]) -> Batch:
        """The last record on each subject, from a scan of every pattern up to the present end of the stream."""
        bound = (await self.state_of(stream_of(patterns[0]))).last_sequence
        believed, refused = dict[str, Record](), set[str]()
        for pattern in patterns:
            async for batch in self._batches(pattern, 0, PAGE_RECORDS):
                believed |= {record.subject: record for record in batch.records if record.sequence <= bound}
                refused |= batch.refused.keys()
        # Every record was read, so that of the refused subjects none hides a believed record.
        return Batch(list(believed.values()), dict.fromkeys(refused - believed.keys(), 0), bound)

    async def announce(self, end: End) -> None:
        """See `ports.Journal.announce`: one event in ORCHESTRATOR_EVENTS, deduplicated by its message id."""
        subject = f"orchestration.deliberation.{TERMINAL_STATUS[end.type]}"
        reply = await self.request(subject, encode(end), {"Nats-Msg-Id": f"{end.deliberation_id}.end"})
        if error := reply.get("error"):
            raise JournalUnavailable(f"the log refused the end's announcement: {error.get('description')}")

    async def read(self, pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        """See `ports.Journal.read`."""
        left = limit
        async for batch in self._batches(pattern, after, PAGE_RECORDS if limit is None else min(PAGE_RECORDS, limit)):
            for record in batch.records[:left]:
                yield record
            left = None if left is None else left - len(batch.records)
            if left is not None and left <= 0:
                return

    async def _batches(self, pattern: str, after: int, size: int) -> AsyncIterator[Batch]:
        """Everything stored above `after`, in order; after the first batch in large ones."""
        while True:
            query = {"seq": after + 1, "next_by_subj": pattern, "batch": size, "max_bytes": PAGE_BYTES}
            batch = await self._reads.get(stream_of(pattern), query)
            yield batch
            if batch.pending == 0 or batch.position <= after:
                return
            after, size = batch.position, PAGE_RECORDS

    async def subscribe(self, patterns: Sequence[str], deliver: Callable[[Record], None]) -> LiveSubscription:
        """See `ports.Journal.subscribe`."""
        live = LiveSubscription(deliver, self.seal, several=len(patterns) > 1)
        confirmed = False
        try:
            for pattern in patterns:
                live.subscriptions.append(await self.client.subscribe(f"live.{pattern}", cb=live.take))
            # After this round trip the server has the subscription, so the caller may read the log.
            await self.client.flush(timeout=2)
            confirmed = True
        except UNREACHABLE as exc:
            raise JournalUnavailable(f"the log cannot be reached: {exc!r}") from exc
        finally:
            if not confirmed:
                # nats-py renews a subscription at every reconnect, so one without an owner must be closed.
                await live.close()
        return live

    async def state(self) -> StreamState:
        """See `ports.Journal.state`."""
        return await self.state_of(STREAM)

    async def state_of(self, stream: str) -> StreamState:
        """The state of one stream; raises JournalUnavailable, also when there is no such stream."""
        reply = await self.request(f"$JS.API.STREAM.INFO.{stream}")
        if "error" in reply:
            raise JournalUnavailable(f"stream {stream}: {reply['error'].get('description')}")
        # The epoch is a short token of the stream's creation time.
        epoch, bounds = hashlib.sha256(reply["created"].encode()).hexdigest()[:8], reply["state"]
        return StreamState(epoch, bounds["first_seq"], bounds["last_seq"])

    async def ack_floor(self) -> int:
        """See `ports.Journal.ack_floor`. A deliberation is acknowledged only once its end is stored."""
        reply = await self.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{CONSUMER}")
        if error := reply.get("error"):
            if error.get("err_code") == NO_CONSUMER:
                return 0
            raise JournalUnavailable(f"consumer {CONSUMER}: {error.get('description')}")
        return reply["ack_floor"]["stream_seq"]

    async def inquire(self, subject: str, *, timeout_s: float, replies_max: int = 1) -> list[dict[str, Any]]:
        """See `ports.Control.inquire`."""
        replies: list[dict[str, Any]] = []
        enough = asyncio.Event()

        async def take(message: Msg) -> None:
            if (message.headers or {}).get("Status") == "503":
                enough.set()
                return
            replies.append(json.loads(message.data))
            if len(replies) >= replies_max:
                enough.set()

        inbox = self.client.new_inbox()
        try:
            subscription = await self.client.subscribe(inbox, cb=take)
        except UNREACHABLE:
            return []
        try:
            await self.client.publish(subject, b"", reply=inbox)
            async with asyncio.timeout(timeout_s):
                await enough.wait()
        except UNREACHABLE:
            return replies
        finally:
            await unsubscribe(subscription)
        return replies

    async def answer(self, subject: str, describe: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        """Answer inquiries on `subject` with the JSON of what `describe` returns, until the journal is closed."""

        async def reply(message: Msg) -> None:
            await message.respond(json.dumps(await describe()).encode())

        await self.client.subscribe(subject, cb=reply)
