"""Works off one queue: a task per item, progress acknowledgements while it runs, and the final acknowledgement."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from app.deliberation.errors import JournalUnavailable
from app.log.journal import JetStreamJournal
from app.log.streams import WORKER_ACK_WAIT_S
from app.log.work_queue import QueueItem, WorkQueue

LOG_UNAVAILABLE_S = 5.0
DEFECT_S = 60.0

log = structlog.get_logger(__name__)


class ItemDeferred(Exception):
    def __init__(self, delay_s: float) -> None:
        super().__init__(f"deferred for {delay_s:.0f} s")
        self.delay_s = delay_s


class QueueWorker:
    """Passes each item to `handler`, at most `slots` at once. No error loses an item; a defect delays its own.

    `handler` returns None for a done item, else the seconds to its redelivery; ItemDeferred has these too. Items of
    other services are not `signed`; an `exclusive` consumer delivers to one worker at a time.
    """

    def __init__(
        self,
        journal: JetStreamJournal,
        stream: str,
        consumer: str,
        slots: int,
        handler: Callable[[QueueItem], Awaitable[float | None]],
        *,
        signed: bool = True,
        exclusive: bool = False,
        progress_s: float = WORKER_ACK_WAIT_S / 3,
    ) -> None:
        self.name = consumer
        self._queue = WorkQueue(
            journal, slots, self._on_item, stream=stream, consumer=consumer, signed=signed, exclusive=exclusive
        )
        self._handler = handler
        self._progress_s = progress_s
        self._held: dict[int, QueueItem] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def held(self) -> int:
        return len(self._held)

    async def run(self) -> None:
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
            await self._queue.leave()

    def stop(self) -> None:
        self._queue.stop()

    async def drain(self, within_s: float) -> None:
        """Take no more items, also none on their way, and wait up to `within_s` for those in progress."""
        await self._queue.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._held:  # noqa: ASYNC110 -- once per process, for seconds
                    await asyncio.sleep(0.02)

    def _on_item(self, item: QueueItem) -> None:
        sequence = item.record.sequence
        if sequence in self._held:
            # Redelivered while in progress, for example after an outage of the log: acknowledge the newer delivery.
            self._held[sequence] = item
            self._queue.drop()
            return
        self._held[sequence] = item
        if self._group is not None:
            self._group.create_task(self._process(item))

    async def _process(self, taken: QueueItem) -> None:
        delay_s = await self._redelivery_delay(taken)
        item = self._held.pop(taken.record.sequence)
        if delay_s is None:
            await self._queue.ack(item)
        else:
            await self._queue.requeue(item, delay_s)

    async def _redelivery_delay(self, item: QueueItem) -> float | None:
        subject = item.record.subject
        try:
            return await self._handler(item)
        except ItemDeferred as exc:
            return exc.delay_s
        except JournalUnavailable as exc:
            log.info("queue_log_unavailable", subject=subject, error=str(exc))
            return LOG_UNAVAILABLE_S
        except Exception as exc:
            # A named place for a broad except: a defect delays its own item and must not end the others.
            log.error("queue_item_defect", subject=subject, exc_info=exc)
            return DEFECT_S

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(self._progress_s)
            for item in list(self._held.values()):
                await self._queue.working(item)
