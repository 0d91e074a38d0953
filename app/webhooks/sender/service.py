"""The sender: two desks over one set of lanes, a port that says that it lives, and an orderly end."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from app.log.journal import STREAM, WEBHOOKS_STREAM, JetStreamJournal
from app.log.streams import ATTEMPTS_CONSUMER, WEBHOOKS_CONSUMER
from app.observability.replica_status import SENDERS_SUBJECT
from app.webhooks.sender.bulkheads import Bounds, Bulkheads
from app.webhooks.sender.delivering import Deliverer
from app.webhooks.sender.posting import Lookup, Poster
from app.webhooks.sender.queue_worker import QueueWorker
from app.webhooks.sender.telling import DeliveryPlanner, Repeater
from app.webhooks.settings import SenderSettings
from app.webhooks.signatures import Signer

ATTEMPTS_HELD_MAX = 1_000
# As long as a write keeps trying: what was sent should be recorded even while the log restarts.
PATIENCE_S = 15.0
DRAIN_GRACE_S = 1.0
_REQUEST_BYTES_MAX = 4_096
_ALIVE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"

log = structlog.get_logger(__name__)


class UtcClock:
    """The machine's time."""

    def now(self) -> datetime:
        """The present, in UTC."""
        return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Sender:
    """The parts of a running sender."""

    journal: JetStreamJournal
    deliverer: Deliverer
    lanes: Bulkheads
    desks: tuple[QueueWorker, ...]

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            for desk in self.desks:
                group.create_task(desk.run())

    async def drain(self, timeout_s: float) -> None:
        """Begin nothing more, and let what is under way end, but wait no longer than `timeout_s`."""
        self.deliverer.draining.set()
        for desk in self.desks:
            desk.stop()
        try:
            async with asyncio.timeout(timeout_s):
                while self.lanes.in_flight:  # noqa: ASYNC110 -- seldom, and for seconds at most
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log.info("webhooks_cut_short", in_flight=self.lanes.in_flight)

    async def describe(self) -> dict[str, Any]:
        """What it is doing, and what waits in the log for any sender."""
        queues: dict[str, Any] = {}
        for stream, consumer in ((STREAM, WEBHOOKS_CONSUMER), (WEBHOOKS_STREAM, ATTEMPTS_CONSUMER)):
            found = await self.journal.request(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")
            queues[consumer] = {"new": found.get("num_pending", 0), "taken": found.get("num_ack_pending", 0)}
        return {
            "replica": f"webhooks-{os.getpid()}",
            "counts": dict(self.deliverer.counts),
            "in_flight": self.lanes.in_flight,
            "waiting": self.lanes.waiting,
            "held": {desk.name: desk.held for desk in self.desks},
            "queues": queues,
        }


@asynccontextmanager
async def sender_of(settings: SenderSettings, *, lookup: Lookup | None = None) -> AsyncGenerator[Sender]:
    """A sender that is connected; waits for the log as long as it takes. Raises JournalUnavailable when it refuses."""
    clock, rules = UtcClock(), settings.webhook_rules
    lanes = Bulkheads(
        Bounds(
            total_max=settings.webhooks_in_flight_max,
            tenant_max=settings.webhooks_in_flight_per_tenant_max,
            lane_max=settings.webhooks_in_flight_per_host_max,
        )
    )
    journal = JetStreamJournal(settings.nats_url, name="webhooks", patience_s=PATIENCE_S)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(journal.close)
        await journal.open()
        poster = Poster(rules, clock, timeout_s=settings.webhook_timeout_s, lookup=lookup)
        await opened.enter_async_context(poster)
        deliverer = Deliverer(
            journal, poster, lanes, Signer(settings.masters()), rules, clock, delays_s=settings.webhook_retries_s
        )
        follower, repeater = DeliveryPlanner(journal, deliverer, clock), Repeater(journal, deliverer, clock)
        desks = (
            QueueWorker(
                journal,
                stream=STREAM,
                consumer=WEBHOOKS_CONSUMER,
                slots=settings.webhooks_held_max,
                work=follower.follow,
            ),
            QueueWorker(
                journal,
                stream=WEBHOOKS_STREAM,
                consumer=ATTEMPTS_CONSUMER,
                slots=ATTEMPTS_HELD_MAX,
                work=repeater.repeat,
            ),
        )
        yield Sender(journal, deliverer, lanes, desks)


@asynccontextmanager
async def _living(host: str, port: int) -> AsyncGenerator[int]:
    """Answer every request on a port by 200, for as long as the loop turns; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(_ALIVE)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES_MAX)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def serve(settings: SenderSettings) -> None:
    """Send until a signal ends it. Raises JournalUnavailable when the log refuses the connection."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    connected: asyncio.Future[Sender] = loop.create_future()
    async with _living(settings.webhooks_host, settings.webhooks_port) as port, asyncio.TaskGroup() as group:
        log.info("webhooks_listening", host=settings.webhooks_host, port=port)
        sending = group.create_task(_send(settings, connected))
        await stopping.wait()
        if connected.done():
            sender = connected.result()
            log.info("webhooks_draining", in_flight=sender.lanes.in_flight)
            await sender.drain(settings.webhook_timeout_s + DRAIN_GRACE_S)
        sending.cancel()


async def _send(settings: SenderSettings, connected: asyncio.Future[Sender]) -> None:
    async with sender_of(settings) as sender:
        await sender.journal.answer(SENDERS_SUBJECT, sender.describe)
        connected.set_result(sender)
        log.info("webhooks_sending")
        await sender.run()
