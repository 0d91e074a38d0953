"""The work queue: pulls from a durable consumer, by a standing request or by `fetch`.

nats-py's `fetch` is not used, because its pull request survives cancellation and swallows the next item.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from app.deliberation.ports import Record
from app.log.connection import REQUEST_TIMEOUT_S, UNREACHABLE
from app.log.journal import JetStreamJournal
from app.log.stream_settings import CONSUMER, EXCLUSIVE_GROUP, STREAM

PULL_EXPIRES_S = 30
HEARTBEAT_S = 5
CLOSE_TIMEOUT_S = 2.0
ACK_PREFIX = "$JS.ACK."

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class QueueItem:
    """An item until its acknowledgement. A crash of the server resets `deliveries`; `taken_at_s` is loop time."""

    record: Record
    deliveries: int
    reply: str
    taken_at_s: float = 0.0


class WorkQueue:
    """Pulls items for `deliver`, at most `slots` of them unacknowledged; without `standing` only in `fetch`.

    With `signed`, an item without a valid signature is dropped. The items of an `exclusive` consumer go to one of its
    queues: the others wait until that one is closed, or has asked for nothing for `EXCLUSIVE_S`.
    """

    def __init__(
        self,
        journal: JetStreamJournal,
        slots: int,
        deliver: Callable[[QueueItem], None],
        *,
        stream: str = STREAM,
        consumer: str = CONSUMER,
        signed: bool = True,
        standing: bool = True,
        exclusive: bool = False,
    ) -> None:
        self._journal = journal
        self._signed = signed
        self._standing = standing
        self._fetching: asyncio.Future[bool] | None = None
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._unpin = f"$JS.API.CONSUMER.UNPIN.{stream}.{consumer}"
        self._pin = {"group": EXCLUSIVE_GROUP} if exclusive else dict[str, str]()
        self._client = journal.client
        self._slots = slots
        self._deliver = deliver
        self._held = 0
        self._requested = 0
        self._inbox = ""
        self._last_message_at_s = 0.0
        self._subscription: Subscription | None = None
        self._open = False

    async def start(self) -> None:
        self._open = True
        self._inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
        self._journal.on_reconnect(self._forget_pulls)
        await self._pull()

    async def watch(self) -> None:
        """Repeat the pull request after two missed heartbeats. Runs until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S / 2)
            if asyncio.get_running_loop().time() - self._last_message_at_s > 2 * HEARTBEAT_S:
                self._forget_pulls()
            await self._pull()

    async def fetch(self) -> bool | None:
        """Take the items that wait now. Returns whether these are all; None without an answer of the log."""
        free = self._slots - self._held
        if not self._open or free <= 0:
            return False if self._open else None
        self._requested = free
        self._fetching = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._client.publish(
                    self._next, json.dumps({"batch": free, "no_wait": True}).encode(), self._inbox
                )
                return await self._fetching
        except UNREACHABLE:
            # The connection logs its loss once; this would be logged at every fetch.
            return None
        finally:
            self._fetching = None

    def _end_fetch(self, *, emptied: bool) -> None:
        if self._fetching is not None and not self._fetching.done():
            self._fetching.set_result(emptied)

    def stop(self) -> None:
        self._open = False

    async def close(self) -> None:
        """Pull nothing more, and take the items on their way, which would else wait for `ack_wait`. Idempotent."""
        self._open = False
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await subscription.drain()
        except (*UNREACHABLE, nats.errors.BadSubscriptionError) as exc:
            log.info("pull_not_drained", error=repr(exc))

    async def leave(self) -> None:
        """Unpin this client of an exclusive consumer, once all items are given back."""
        if self._pin.pop("id", None) is None:
            return
        try:
            await self._client.publish(self._unpin, json.dumps(self._pin).encode())
        except UNREACHABLE as exc:
            log.info("place_kept", error=repr(exc))

    def _forget_pulls(self) -> None:
        self._requested = 0
        self._last_message_at_s = asyncio.get_running_loop().time()

    async def _pull(self) -> None:
        if not self._standing:
            return
        free = self._slots - self._held - self._requested
        # Few large pulls cost less than many small ones. Without an open pull, a smaller one is sent too.
        if not self._open or free <= 0 or (self._requested and free < self._slots // 4):
            return
        expires, heartbeat = PULL_EXPIRES_S * 1_000_000_000, HEARTBEAT_S * 1_000_000_000
        request = {"batch": free, "expires": expires, "idle_heartbeat": heartbeat, **self._pin}
        self._requested += free
        self._last_message_at_s = asyncio.get_running_loop().time()
        try:
            await self._client.publish(self._next, json.dumps(request).encode(), reply=self._inbox)
        except UNREACHABLE as exc:
            self._requested = 0
            log.info("pull_refused", error=repr(exc))

    async def _on_message(self, message: Msg) -> None:
        self._last_message_at_s = asyncio.get_running_loop().time()
        headers = message.headers or {}
        status = headers.get("Status")
        # A stored item may have a header of that name; only items have an acknowledgement's subject.
        if message.reply.startswith(ACK_PREFIX):
            metadata = message.metadata
            record = Record(message.subject, metadata.sequence.stream, message.data)
            item = QueueItem(record, metadata.num_delivered or 1, message.reply, self._last_message_at_s)
            self._requested = max(0, self._requested - 1)
            if self._pin and (pin_id := headers.get("Nats-Pin-Id")):
                self._pin["id"] = pin_id
            if not self._signed or self._journal.signer.is_authentic(record.subject, record.data, headers):
                self._held += 1
                self._deliver(item)
            else:
                await self._reply(item, b"+TERM")
            if not self._requested:
                self._end_fetch(emptied=False)
        elif status != "100":
            # The end of a pull states how many items were not delivered; without that number, no pull is open.
            left = headers.get("Nats-Pending-Messages")
            self._requested = 0 if left is None else max(0, self._requested - int(left))
            self._end_fetch(emptied=True)
            if status == "423":
                # Another client is pinned, or none is.
                self._pin.pop("id", None)
            # A fetch ends with 404.
            elif status not in ("404", "408"):
                # Refused, not expired: an immediate request would be refused too. `watch` repeats it later.
                log.info("pull_ended", status=status, description=headers.get("Description"))
                return
        await self._pull()

    async def working(self, delivery: QueueItem) -> None:
        await self._reply(delivery, b"+WPI")

    async def ack(self, delivery: QueueItem) -> None:
        self._held -= 1
        await self._reply(delivery, b"+ACK")
        await self._pull()

    async def requeue(self, delivery: QueueItem, delay_s: float = 0.0) -> None:
        self._held -= 1
        # With a delay of 0 the server redelivers by a timer, after later items.
        delay = b" " + json.dumps({"delay": round(delay_s * 1_000_000_000)}).encode() if delay_s else b""
        await self._reply(delivery, b"-NAK" + delay, confirmed=bool(self._pin))
        await self._pull()

    def drop(self) -> None:
        self._held -= 1

    async def _reply(self, delivery: QueueItem, data: bytes, *, confirmed: bool = False) -> None:
        try:
            if confirmed:
                await self._client.request(delivery.reply, data, timeout=REQUEST_TIMEOUT_S)
            else:
                await self._client.publish(delivery.reply, data)
        except UNREACHABLE as exc:
            # The server redelivers the item after ack_wait, and its facts show what is left to do.
            log.info("acknowledgement_lost", error=repr(exc))
