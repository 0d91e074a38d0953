"""Works off one queue: a task per item, progress acknowledgements while it runs, and the final acknowledgement."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.streams import WEBHOOKS_ACK_WAIT_S
from app.log.work_queue import QueueItem, WorkQueue
from app.webhooks.sender.bulkheads import AttemptDeferred

LOG_UNAVAILABLE_S = 5.0
DEFECT_S = 60.0

log = structlog.get_logger(__name__)


class QueueWorker:
    """Passes each item of a consumer to `work`, at most `slots` at once.

    `work` returns the seconds after which the item is redelivered. It returns None once the log holds all that the item
    asks for; only then is it acknowledged. An error in `work` delays the item; no error loses it.
    """

    def __init__(
        self,
        journal: JetStreamJournal,
        stream: str,
        consumer: str,
        slots: int,
        work: Callable[[Record], Awaitable[float | None]],
    ) -> None:
        self.name = consumer
        self._queue = WorkQueue(journal, slots, self._take, stream=stream, consumer=consumer)
        self._work = work
        self._held: dict[int, QueueItem] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def held(self) -> int:
        """Items in progress."""
        return len(self._held)

    async def run(self) -> None:
        """Take items until cancelled, then return those in progress to the queue."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._queue.start()
                group.create_task(self._queue.watch())
                group.create_task(self._report_progress())
        finally:
            self._group = None
            await self._queue.close()
            for item in list(self._held.values()):
                await self._queue.requeue(item)

    def stop(self) -> None:
        """Take no more items."""
        self._queue.stop()

    def _take(self, item: QueueItem) -> None:
        sequence = item.record.sequence
        if sequence in self._held:
            # Redelivered while in progress, for example after an outage of the log: acknowledge the newer delivery.
            self._held[sequence] = item
            self._queue.drop()
            return
        self._held[sequence] = item
        if self._group is not None:
            self._group.create_task(self._process(item.record))

    async def _process(self, record: Record) -> None:
        delay_s = await self._redelivery_delay(record)
        item = self._held.pop(record.sequence)
        if delay_s is None:
            await self._queue.ack(item)
        else:
            await self._queue.requeue(item, delay_s)

    async def _redelivery_delay(self, record: Record) -> float | None:
        try:
            return await self._work(record)
        except AttemptDeferred as exc:
            return exc.delay_s
        except JournalUnavailable as exc:
            log.info("webhook_log_unavailable", subject=record.subject, error=str(exc))
            return LOG_UNAVAILABLE_S
        except Exception as exc:
            # A named place for a broad except: a defect delays its own item and must not end the others.
            log.error("webhook_defect", subject=record.subject, exc_info=exc)
            return DEFECT_S

    async def _report_progress(self) -> None:
        """Keep the server from redelivering items that are in progress."""
        while True:
            await asyncio.sleep(WEBHOOKS_ACK_WAIT_S / 3)
            for item in list(self._held.values()):
                await self._queue.working(item)
