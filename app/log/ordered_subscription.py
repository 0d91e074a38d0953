"""Live events of several subscriptions, in the order of the log.

The server sends the republished messages to a connection in the stream's order. nats-py then gives each subscription a
queue and a task of its own, which loses that order. So an earlier message was either delivered, or is in the queue of
another subscription.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from app.deliberation.ports import Record
from app.log.signature import LogSigner


async def unsubscribe(subscription: Subscription) -> None:
    # RuntimeError: see `connection.UNREACHABLE`.
    with suppress(nats.errors.BadSubscriptionError, nats.errors.ConnectionClosedError, OSError, RuntimeError):
        await subscription.unsubscribe()


@dataclass(slots=True)
class LiveSubscription:
    """Subscriptions to republished subjects. `deliver` gets the believed records of all patterns in order."""

    deliver: Callable[[Record], None]
    signer: LogSigner
    several: bool
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    _held: list[tuple[int, int, Record]] = field(default_factory=list[tuple[int, int, Record]])
    _numbers: "count[int]" = field(default_factory=count)

    async def take(self, message: Msg) -> None:
        """Deliver a message, or hold it while an earlier one may be queued. Never gives way to other tasks."""
        headers = message.headers or {}
        subject = message.subject.removeprefix("live.")
        # Any process with the right to publish on a live subject reaches this, so nothing of the message is trusted.
        sequence = headers.get("Nats-Sequence", "")
        if not self.signer.is_authentic(subject, message.data, headers) or not sequence.isdecimal():
            return
        record = Record(subject, int(sequence), message.data)
        if not self.several:
            self.deliver(record)
            return
        heappush(self._held, (record.sequence, next(self._numbers), record))
        if not any(subscription.pending_msgs for subscription in self.subscriptions):
            while self._held:
                self.deliver(heappop(self._held)[2])

    async def close(self) -> None:
        for subscription in self.subscriptions:
            await unsubscribe(subscription)
