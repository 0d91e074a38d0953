"""A gateway on a socket over a log in memory, whose deliberations end at once: what is fuzzed.

Its log begins with the two deliberations of the document's examples, so that the examples hold here too. Streams are
short, because a fuzzer reads an answer to its end.

    python -m tests.fuzz.gateway    # prints its URL and a key, and serves until it is stopped
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from pydantic import SecretStr
from starlette.types import ASGIApp

from app.deliberation.facts import Accepted, CallDelta, CallStarted, Cancelled, Fact, Failed, decode
from app.deliberation.ports import Record
from app.main import create_app
from app.observability import logs
from app.openapi.example_log import EPOCH, TENANT, log, told
from app.settings import Settings
from app.testing import InMemoryJournal
from tests.components.access.keyed import PEPPER, make_key
from tests.components.cli.council_run import answer_text
from tests.components.routes.served import COORDINATOR, played
from tests.conditions import until

SETTINGS = Settings(
    key_pepper=SecretStr(PEPPER),
    tenant_requests_per_minute=10_000_000,
    tenant_in_flight_max=1_000_000,
    queue_depth_max=1_000_000,
    stream_age_max_s=0.2,
    webhooks=True,
    log_level="error",
)
RECORDS_MAX = 600


def facts_after(accepted: Accepted) -> list[Fact]:
    """What follows an acceptance: a small council deliberates, a large one fails, so that no request waits for it."""
    if accepted.specification.size <= 3 and accepted.specification.rounds <= 1:
        return played(accepted, now=lambda: accepted.ts, write=answer_text)
    return [Failed(deliberation_id=accepted.deliberation_id, ts=accepted.ts)]


class Player:
    """Ends what is accepted, or asked to stop, as a coordinator would, and lets the log forget the oldest."""

    def __init__(self, journal: InMemoryJournal) -> None:
        self.journal = journal
        self.kept = frozenset(record.tokens[2] for record in journal.records)
        self._heard: asyncio.Queue[Record] = asyncio.Queue()

    async def forever(self) -> None:
        """Play until cancelled."""
        await self.journal.subscribe(["deliberations.*.*.accepted", "deliberations.*.*.cancel"], self._heard.put_nowait)
        while True:
            await self.play(await self._heard.get())
            self._forget()

    async def play(self, record: Record) -> None:
        """Bring a deliberation to its end, of which an acceptance or a request to stop was heard."""
        heard = decode(record.data)
        ended = Cancelled(deliberation_id=heard.deliberation_id, ts=heard.ts)
        for fact in facts_after(heard) if isinstance(heard, Accepted) else [ended]:
            await self.journal.append(record.tokens[1], fact)

    def _forget(self) -> None:
        records = self.journal.records
        if len(records) > RECORDS_MAX:
            recent = records[-RECORDS_MAX // 2 :]
            begun = {record.tokens[2] for record in recent if record.tokens[-1] == "accepted"} | self.kept
            self.journal.records = [each for each in records if each.tokens[0] == "keys" or each.tokens[2] in begun]


async def exhibited() -> InMemoryJournal:
    """A log that holds the deliberations of the examples, and one coordinator that answers."""
    journal = InMemoryJournal(epoch=EPOCH, replies={"control.coordinator": [COORDINATOR]})
    for record in log():
        event = decode(record.data)
        if isinstance(event, CallStarted | CallDelta):
            await journal.publish_view(TENANT, event)
        else:
            await journal.append(TENANT, event)
    assert journal.records == list(log())
    for record in told():
        await journal.write(record.subject, record.data)
    return journal


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncGenerator[str, None]:
    """An application on a free port, and its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, lifespan="on", ws="none", log_config=None, server_header=False, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started or task.done())
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def fuzzed() -> AsyncGenerator[tuple[str, str], None]:
    """The gateway: its URL, and a key of the tenant whose deliberations the examples are."""
    logs.configure(SETTINGS.log_level)
    journal = await exhibited()
    player = Player(journal)
    key = await make_key(journal, TENANT)
    async with serving(create_app(SETTINGS, journal=journal)) as url, asyncio.TaskGroup() as group:
        playing = group.create_task(player.forever())
        try:
            yield url, key
        finally:
            playing.cancel()


async def _main() -> None:
    async with fuzzed() as (url, key):
        print(url, key, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(_main())
    except KeyboardInterrupt:
        pass
