"""Holds the items of one queue: a task for each, a sign of life while it lasts, and its decision obeyed in the end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.streams import WEBHOOKS_ACK_WAIT_S
from app.log.work_queue import QueueItem, WorkQueue
from app.webhooks.sender.bulkheads import Crowded

AWAY_S = 5.0
DEFECT_S = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ItemDone:
    """All that an item asks for stands in the log: it need not be handed out again."""


@dataclass(frozen=True, slots=True)
class Later:
    """The item is to be handed out again, to whoever then pulls, in `delay_s` seconds."""

    delay_s: float


ItemDecision = ItemDone | Later


class QueueWorker:
    """Hands each item of a consumer to `work`, at most `slots` at once, and obeys what it decides.

    An item is acknowledged after what `work` did stands in the log, and never before. One whose work ends in an error
    is handed out again: none is lost to a defect.
    """

    def __init__(
        self,
        journal: JetStreamJournal,
        *,
        stream: str,
        consumer: str,
        slots: int,
        work: Callable[[Record], Awaitable[ItemDecision]],
    ) -> None:
        self.name = consumer
        self._queue = WorkQueue(journal, slots, self._take, stream=stream, consumer=consumer)
        self._work = work
        self._held: dict[int, QueueItem] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def held(self) -> int:
        """Items at hand."""
        return len(self._held)

    async def run(self) -> None:
        """Take items until cancelled; those at hand are then given back."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._queue.start()
                group.create_task(self._queue.watch())
                group.create_task(self._keep())
        finally:
            self._group = None
            await self._queue.close()
            for delivery in list(self._held.values()):
                await self._queue.give_back(delivery)

    def stop(self) -> None:
        """Take nothing new."""
        self._queue.stop()

    def _take(self, delivery: QueueItem) -> None:
        sequence = delivery.record.sequence
        if sequence in self._held:
            # It was handed out again while it is worked on, perhaps because the log was away: answer to the newer one.
            self._held[sequence] = delivery
            self._queue.drop()
            return
        self._held[sequence] = delivery
        if self._group is not None:
            self._group.create_task(self._hold(delivery.record))

    async def _hold(self, record: Record) -> None:
        decision = await self._decided(record)
        delivery = self._held.pop(record.sequence)
        match decision:
            case ItemDone():
                await self._queue.ack(delivery)
            case Later(delay_s):
                await self._queue.give_back(delivery, delay_s)

    async def _decided(self, record: Record) -> ItemDecision:
        try:
            return await self._work(record)
        except Crowded as exc:
            return Later(exc.delay_s)
        except JournalUnavailable as exc:
            log.info("webhook_log_away", subject=record.subject, error=str(exc))
            return Later(AWAY_S)
        except Exception as exc:
            # A named place for a broad except: a defect delays its own delivery, and must not end all the others.
            log.error("webhook_defect", subject=record.subject, exc_info=exc)
            return Later(DEFECT_S)

    async def _keep(self) -> None:
        """Tell the server of every item at hand that somebody works on it."""
        while True:
            await asyncio.sleep(WEBHOOKS_ACK_WAIT_S / 3)
            for delivery in list(self._held.values()):
                await self._queue.working(delivery)
