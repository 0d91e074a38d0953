"""The sender's process: its settings, two queue workers that share the bulkheads, and a health port."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from app.log.journal import JetStreamJournal
from app.log.queue_worker import QueueWorker
from app.log.signature import LogSigner
from app.log.stream_settings import STREAM, WEBHOOKS_STREAM
from app.log.streams import ATTEMPTS_CONSUMER, WEBHOOKS_CONSUMER
from app.observability.environment import tracer_of_environment
from app.observability.process import STARTED_AT, VERSIONS, health_server, stop_signal
from app.observability.replica_status import SENDERS_SUBJECT
from app.process_settings import LogAccess, Secrets, WebhookTimeout, listed, setting
from app.settings import WebhookRules
from app.webhooks.sender.bulkheads import Bounds, Bulkheads
from app.webhooks.sender.delivery import DELAYS_S, DeliveryWorker
from app.webhooks.sender.planner import DeliveryPlanner
from app.webhooks.sender.posting import Lookup, Poster
from app.webhooks.signatures import Signer

Delays = Annotated[
    tuple[Annotated[float, Field(ge=0, le=604_800)], ...], NoDecode, BeforeValidator(listed), Field(max_length=32)
]


class SenderSettings(LogAccess, WebhookTimeout, WebhookRules):
    webhook_secrets: Secrets = setting(
        (),
        "At least one secret of at least 32 characters, newest first, separated by commas; all of them sign. "
        "`deliberate webhooks secret` prints what a tenant's receivers verify with.",
        "characters",
        min_length=1,
        validate_default=True,
    )
    webhook_retries_s: Delays = setting(
        DELAYS_S, "Delays from each failed attempt to the next, separated by commas; up to a fifth is added as jitter."
    )
    webhooks_in_flight_max: int = setting(256, "Maximum of concurrent attempts.", "attempts", ge=1, le=10_000)
    webhooks_in_flight_per_tenant_max: int = setting(64, "The same, per tenant.", "attempts", ge=1, le=10_000)
    webhooks_in_flight_per_host_max: int = setting(8, "The same, per tenant and host.", "attempts", ge=1, le=10_000)
    webhooks_held_max: int = setting(
        5_000, "Maximum of deliberations followed at once; others wait in the log.", "deliberations", ge=1, le=100_000
    )
    webhooks_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    webhooks_port: int = setting(8081, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)


ATTEMPTS_HELD_MAX = 1_000
# How long a write is retried, so that an attempt is recorded even while the log restarts.
WRITE_TIMEOUT_S = 15.0
DRAIN_GRACE_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sender:
    journal: JetStreamJournal
    worker: DeliveryWorker
    bulkheads: Bulkheads
    queues: tuple[QueueWorker, ...]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for queue in self.queues:
                group.create_task(queue.run())

    async def drain(self, timeout_s: float) -> None:
        self.worker.draining.set()
        for queue in self.queues:
            queue.stop()
        try:
            async with asyncio.timeout(timeout_s):
                while self.bulkheads.in_flight:  # noqa: ASYNC110 -- once per process, for seconds
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log.info("webhooks_drain_timed_out", in_flight=self.bulkheads.in_flight)

    async def describe(self) -> dict[str, Any]:
        shared: dict[str, Any] = {}
        for stream, consumer in ((STREAM, WEBHOOKS_CONSUMER), (WEBHOOKS_STREAM, ATTEMPTS_CONSUMER)):
            state = await self.journal.request(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")
            shared[consumer] = {"new": state.get("num_pending", 0), "taken": state.get("num_ack_pending", 0)}
        return {
            "replica": f"webhooks-{os.getpid()}",
            "started_at": STARTED_AT,
            "versions": VERSIONS,
            "counts": dict(self.worker.counts),
            "in_flight": self.bulkheads.in_flight,
            "waiting": self.bulkheads.waiting,
            "held": {queue.name: queue.held for queue in self.queues},
            "queues": shared,
        }


@asynccontextmanager
async def sender_of(settings: SenderSettings, *, lookup: Lookup | None = None) -> AsyncGenerator[Sender]:
    """A connected sender. Waits for the log without a limit; raises JournalUnavailable if it refuses the connection."""
    rules = settings.webhook_rules
    bounds = Bounds(
        total_max=settings.webhooks_in_flight_max,
        tenant_max=settings.webhooks_in_flight_per_tenant_max,
        host_max=settings.webhooks_in_flight_per_host_max,
    )
    bulkheads = Bulkheads(bounds)
    log_signer = LogSigner.of_file(settings.log_key_file)
    journal = JetStreamJournal(settings.nats_url, name="webhooks", timeout_s=WRITE_TIMEOUT_S, signer=log_signer)
    tracer = tracer_of_environment("webhooks")
    async with AsyncExitStack() as opened:
        if tracer is not None:
            opened.push_async_callback(tracer.close)
        opened.push_async_callback(journal.close)
        await journal.open()
        poster = Poster(rules, timeout_s=settings.webhook_timeout_s, lookup=lookup)
        await opened.enter_async_context(poster)
        signer = Signer([secret.get_secret_value() for secret in settings.webhook_secrets])
        worker = DeliveryWorker(journal, poster, bulkheads, signer, rules, settings.webhook_retries_s, tracer)
        planner = DeliveryPlanner(journal, worker)
        deliberations = QueueWorker(
            journal, STREAM, WEBHOOKS_CONSUMER, settings.webhooks_held_max, lambda item: planner.follow(item.record)
        )
        attempts = QueueWorker(
            journal, WEBHOOKS_STREAM, ATTEMPTS_CONSUMER, ATTEMPTS_HELD_MAX, lambda item: planner.retry(item.record)
        )
        yield Sender(journal, worker, bulkheads, (deliberations, attempts))


async def serve(settings: SenderSettings) -> None:
    """Send until SIGTERM or SIGINT. Raises JournalUnavailable when the log refuses the connection."""
    stopping = stop_signal()
    connected: asyncio.Future[Sender] = asyncio.get_running_loop().create_future()
    async with health_server(settings.webhooks_host, settings.webhooks_port) as port, asyncio.TaskGroup() as group:
        log.info("webhooks_listening", host=settings.webhooks_host, port=port)
        sending = group.create_task(_send(settings, connected))
        await stopping.wait()
        if connected.done():
            sender = connected.result()
            log.info("webhooks_draining", in_flight=sender.bulkheads.in_flight)
            await sender.drain(settings.webhook_timeout_s + DRAIN_GRACE_S)
        sending.cancel()


async def _send(settings: SenderSettings, connected: asyncio.Future[Sender]) -> None:
    async with sender_of(settings) as sender:
        await sender.journal.answer(SENDERS_SUBJECT, lambda _: sender.describe())
        connected.set_result(sender)
        log.info("webhooks_sending")
        await sender.run()
