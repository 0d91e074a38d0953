"""Helpers: a log on a real nats-server, deliberations with webhooks, and senders in this or other processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from app.api.webhook_payloads import TERMINAL_EVENTS
from app.deliberation.facts import Accepted, Completed, Fact
from app.deliberation.ports import Record
from app.deliberation.specification import Webhook
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply, declared_consumers
from app.webhooks.attempts import DeliveryHistory, deliveries
from app.webhooks.sender.posting import Lookup
from app.webhooks.sender.sender_process import Sender, SenderSettings, sender_of
from app.webhooks.signatures import tenant_secret
from tests.conftest import NatsServer
from tests.story import NOW, Story

MASTER = "m" * 32
SECRET = tenant_secret(MASTER, "default")
FAST = "0.05,0.1,0.2"


@dataclass
class Deliberation:
    journal: JetStreamJournal
    story: Story
    tenant: str = "default"
    facts: list[Fact] = field(default_factory=list[Fact])

    @property
    def id(self) -> str:
        return self.story.id

    async def append(self, *facts: Fact) -> None:
        for fact in facts:
            await self.journal.append(self.tenant, fact)
            self.facts.append(fact)

    async def end(self) -> None:
        await self.append(Completed(deliberation_id=self.id, ts=NOW))

    async def run(self) -> None:
        first, second = self.story.agents
        await self.append(self.story.opened(), self.story.finished(first, "red"), self.story.finished(second, "blue"))
        await self.append(self.story.closed(), self.story.completed())

    async def records(self) -> list[Record]:
        return await self.journal.last([f"webhooks.{self.tenant}.{self.id}.>"])

    async def deliveries(self) -> dict[str, DeliveryHistory]:
        return deliveries(await self.records())

    async def delivery(self) -> DeliveryHistory:
        (found,) = (await self.deliveries()).values()
        return found

    async def finished(self, count: int = 1, timeout_s: float = 20) -> list[DeliveryHistory]:
        async with asyncio.timeout(timeout_s):
            while True:
                found = [each for each in (await self.deliveries()).values() if each.finished]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.02)


def accepted(story: Story, url: str, events: Iterable[str], cluster: str | None = None, **metadata: str) -> Accepted:
    fact = story.accepted(cluster=cluster)
    webhook = Webhook(url=url, events=tuple(events), metadata=metadata)
    specification = fact.specification.model_copy(update={"webhook": webhook})
    deadline_at = datetime.now(UTC) + timedelta(minutes=5)
    return fact.model_copy(update={"specification": specification, "deadline_at": deadline_at})


async def submit(
    journal: JetStreamJournal,
    url: str,
    *,
    events: Iterable[str] = TERMINAL_EVENTS,
    tenant: str = "default",
    cluster: str | None = None,
) -> Deliberation:
    deliberation = Deliberation(journal, Story(uuid.uuid4().hex[:26]), tenant)
    await deliberation.append(accepted(deliberation.story, url, events, cluster))
    return deliberation


@asynccontextmanager
async def declared(
    server: NatsServer, *, ack_wait_s: int | None = None, clusters: tuple[str, ...] = ()
) -> AsyncGenerator[JetStreamJournal]:
    """The server's log, with all streams; `ack_wait_s` is the redelivery time of a dead sender's items."""
    journal = await JetStreamJournal.connect(server.url, name=f"tests-{os.getpid()}")
    try:
        async with asyncio.timeout(10):
            await apply(journal, StreamSettings(clusters=clusters))
        if ack_wait_s is not None:
            await shorten_ack_wait(journal, ack_wait_s)
        yield journal
    finally:
        await journal.close()


async def shorten_ack_wait(journal: JetStreamJournal, ack_wait_s: int) -> None:
    """Lower the declared ack_wait of the senders' consumers, which is too long for a test."""
    for stream, config in declared_consumers(StreamSettings())[1:]:
        body = {"stream_name": stream, "config": {**config, "ack_wait": ack_wait_s * 1_000_000_000}}
        reply = await journal.request(
            f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{config['name']}", json.dumps(body).encode()
        )
        assert "error" not in reply, reply


def environment(server: NatsServer, **more: str) -> dict[str, str]:
    return {
        "NATS_URL": server.url,
        "WEBHOOK_SECRETS": MASTER,
        "WEBHOOK_HOSTS": "127.0.0.1",
        "WEBHOOK_RETRIES": FAST,
        "WEBHOOK_TIMEOUT": "2",
        "WEBHOOKS_PORT": "0",
        **more,
    }


@asynccontextmanager
async def sending(server: NatsServer, *, lookup: Lookup | None = None, **settings: Any) -> AsyncGenerator[Sender]:
    named: dict[str, Any] = {
        "nats_url": server.url,
        "webhook_secrets": MASTER,
        "webhook_hosts": "127.0.0.1",
        "webhook_retries_s": FAST,
        "webhook_timeout_s": 2,
        **settings,
    }
    async with sender_of(SenderSettings(**named), lookup=lookup) as sender:
        running = asyncio.create_task(sender.run())
        try:
            yield sender
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


class SenderProcess:
    def __init__(self, server: NatsServer, **more: str) -> None:
        self._environment = {**os.environ, **environment(server, **more)}
        self.process: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.webhooks"], env=self._environment, stdout=subprocess.PIPE, text=True
        )
        self.process = process
        said: list[str] = []
        # Read to the end: a full pipe would block the process.
        threading.Thread(
            target=lambda: said.extend(json.loads(line)["event"] for line in process.stdout or ()), daemon=True
        ).start()
        async with asyncio.timeout(30):
            while "webhooks_sending" not in said:
                assert process.poll() is None, f"the sender ended with {process.returncode}"
                await asyncio.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill(signal.SIGTERM)
