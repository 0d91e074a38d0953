"""The work queue: a standing pull on a durable consumer, of accepted deliberations unless it is told of another.

nats-py's own `fetch` is not used: cancelling it leaves its pull alive, which then swallows the next item. Here one
inbox lives as long as the queue, pulls are plain publishes, and what was asked for is counted.
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
from app.log.connection import UNREACHABLE
from app.log.journal import CONSUMER, STREAM, JetStreamJournal

PULL_EXPIRES_S = 30
HEARTBEAT_S = 5
CLOSE_TIMEOUT_S = 2.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class QueueItem:
    """An item of the queue, an accepted deliberation for one, handed out until it is acknowledged.

    `deliveries` counts how often it was handed out; it is a hint, because a server's crash resets it.
    """

    record: Record
    deliveries: int
    reply: str


class WorkQueue:
    """Pulls deliveries, never more than `slots` that are not yet acknowledged."""

    def __init__(
        self,
        journal: JetStreamJournal,
        slots: int,
        deliver: Callable[[QueueItem], None],
        *,
        stream: str = STREAM,
        consumer: str = CONSUMER,
    ) -> None:
        self._journal = journal
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._client = journal.client
        self._slots = slots
        self._deliver = deliver
        self._held = 0
        self._asked = 0
        self._inbox = ""
        self._heard_at_s = 0.0
        self._subscription: Subscription | None = None
        self._open = False

    async def start(self) -> None:
        """Begin to pull."""
        self._open = True
        self._inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(self._inbox, cb=self._take)
        self._journal.on_reconnect(self._forget_pulls)
        await self._pull()

    async def watch(self) -> None:
        """Keep the pull standing: ask again after two silent heartbeats. Runs until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S / 2)
            if asyncio.get_running_loop().time() - self._heard_at_s > 2 * HEARTBEAT_S:
                self._forget_pulls()
            await self._pull()

    def stop(self) -> None:
        """Ask for nothing more; deliveries that are held stay held."""
        self._open = False

    async def close(self) -> None:
        """Ask for nothing more, and wait for what is on its way: whoever stops can then give all of it back.

        Otherwise what the server had handed out already would wait there for `ack_wait`.
        """
        self._open = False
        if self._subscription is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._subscription.drain()
        except (*UNREACHABLE, nats.errors.BadSubscriptionError) as exc:
            log.info("pull_not_ended", error=repr(exc))

    def _forget_pulls(self) -> None:
        self._asked = 0
        self._heard_at_s = asyncio.get_running_loop().time()

    async def _pull(self) -> None:
        free = self._slots - self._held - self._asked
        # Few large pulls beat many small ones; but an idle queue never waits for a quarter of its slots.
        if not self._open or free <= 0 or (self._asked and free < self._slots // 4):
            return
        request = {
            "batch": free,
            "expires": PULL_EXPIRES_S * 1_000_000_000,
            "idle_heartbeat": HEARTBEAT_S * 1_000_000_000,
        }
        self._asked += free
        self._heard_at_s = asyncio.get_running_loop().time()
        try:
            await self._client.publish(self._next, json.dumps(request).encode(), reply=self._inbox)
        except UNREACHABLE as exc:
            self._asked = 0
            log.info("pull_refused", error=repr(exc))

    async def _take(self, message: Msg) -> None:
        self._heard_at_s = asyncio.get_running_loop().time()
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None:
            metadata = message.metadata
            record = Record(message.subject, metadata.sequence.stream, message.data)
            self._asked = max(0, self._asked - 1)
            self._held += 1
            self._deliver(QueueItem(record, metadata.num_delivered or 1, message.reply))
        elif status != "100":
            # What ends a pull tells how much of it was not served; if it does not, all pulls are void.
            left = headers.get("Nats-Pending-Messages")
            self._asked = 0 if left is None else max(0, self._asked - int(left))
            if status != "408":
                # Refused, not expired: to ask again at once would be refused at once. `watch` asks later.
                log.info("pull_ended", status=status, description=headers.get("Description"))
                return
        await self._pull()

    async def working(self, delivery: QueueItem) -> None:
        """Tell the server that the delivery is being worked on."""
        await self._say(delivery, b"+WPI")

    async def ack(self, delivery: QueueItem) -> None:
        """The delivery's end is in the log: it need not be handed out again."""
        self._held -= 1
        await self._say(delivery, b"+ACK")
        await self._pull()

    async def give_back(self, delivery: QueueItem, delay_s: float = 0.0) -> None:
        """Hand the delivery to whoever pulls next, after `delay_s`."""
        self._held -= 1
        await self._say(delivery, b"-NAK " + json.dumps({"delay": round(delay_s * 1_000_000_000)}).encode())
        await self._pull()

    def drop(self) -> None:
        """A delivery is a duplicate of one that is held: its slot is free again, and nothing is said."""
        self._held -= 1

    async def _say(self, delivery: QueueItem, word: bytes) -> None:
        try:
            await self._client.publish(delivery.reply, word)
        except UNREACHABLE as exc:
            # Unsaid, the server hands it out again after ack_wait, and the facts tell what is left to do.
            log.info("acknowledgement_unsaid", error=repr(exc))
