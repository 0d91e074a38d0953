"""The fuzzed gateway: on a socket, over a log in memory, with deliberations that end at once.

Its log starts with the deliberation that the document's examples name. Streams are short, because a
fuzzer reads each answer to its end.

    python -m tests.fuzz.gateway    # prints its URL and a key, and serves until it is stopped
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from tempfile import TemporaryDirectory

import uvicorn
from pydantic import SecretStr
from starlette.types import ASGIApp

from app.access.key_writer import KeyWriter
from app.access.keys import Pepper
from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Copied, Store
from app.deliberation.calls import Call
from app.deliberation.facts import Accepted, Cancelled, Fact, Failed, decode
from app.deliberation.ports import Record
from app.main import create_app
from app.observability import logs
from app.settings import Settings
from tests.components.access.keyed import PEPPER, make_key
from tests.components.cli.council_run import answer_text
from tests.components.openapi.example_journal import TENANT, example_journal
from tests.components.routes.served import AGENT, COORDINATOR, played, written
from tests.conditions import until
from tests.fakes import InMemoryJournal

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
    if accepted.specification.size <= 3 and accepted.specification.rounds <= 1:
        return played(accepted, now=lambda: accepted.ts, write=_written)
    return [Failed(deliberation_id=accepted.deliberation_id, ts=accepted.ts)]


def _written(call: Call) -> str:
    return written(call) if call.output.is_action else answer_text(call)


class Player:
    def __init__(self, journal: InMemoryJournal) -> None:
        self.journal = journal
        self.kept = frozenset(record.tokens[2] for record in journal.records)
        self._queue: asyncio.Queue[Record] = asyncio.Queue()

    async def run(self) -> None:
        await self.journal.subscribe(["deliberations.*.*.accepted", "deliberations.*.*.cancel"], self._queue.put_nowait)
        while True:
            await self.play(await self._queue.get())
            self._drop_old()

    async def play(self, record: Record) -> None:
        event = decode(record.data)
        ended = Cancelled(deliberation_id=event.deliberation_id, ts=event.ts)
        for fact in facts_after(event) if isinstance(event, Accepted) else [ended]:
            await self.journal.append(record.tokens[1], fact)

    def _drop_old(self) -> None:
        records = self.journal.records
        if len(records) > RECORDS_MAX:
            recent = records[-RECORDS_MAX // 2 :]
            started = {record.tokens[2] for record in recent if record.tokens[-1] == "accepted"} | self.kept
            self.journal.records = [each for each in records if each.tokens[0] == "keys" or each.tokens[2] in started]


@asynccontextmanager
async def serving(app: ASGIApp, **state: object) -> AsyncGenerator[str, None]:
    """Serves an application, with `state` in place of what its lifespan yields."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, lifespan="on", ws="none", log_config=None, server_header=False, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started or task.done())
    server.lifespan.state.update(state)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def mark_copied(journal: InMemoryJournal, archive: Store) -> None:
    """Say that the archive has the whole log, so that no list waits for it; its tables stay empty."""
    heard = asyncio.Event()
    await journal.subscribe(["deliberations.>"], lambda _: heard.set())
    while True:
        heard.clear()
        state = await journal.state()
        await archive.log_number(state.epoch)
        await archive.put([], copied=Copied(state.epoch, state.last_sequence, datetime.now(UTC)))
        await heard.wait()


@asynccontextmanager
async def fuzzed() -> AsyncGenerator[tuple[str, str], None]:
    logs.configure(SETTINGS.log_level)
    journal = await example_journal(**{"coordinator": COORDINATOR, "role.DEV": AGENT})
    player = Player(journal)
    key = await make_key(journal, TENANT)
    with TemporaryDirectory() as directory:
        database_url = f"sqlite:///{directory}/archive.db"
        await migrate(database_url)
        settings = SETTINGS.model_copy(update={"database_url": SecretStr(database_url)})
        app, writer = create_app(settings, journal=journal), KeyWriter(journal, Pepper(PEPPER))
        async with serving(app, key_writer=writer) as url, asyncio.TaskGroup() as group:
            database = Database(database_url)
            tasks = [group.create_task(each) for each in (player.run(), mark_copied(journal, Store(database)))]
            try:
                yield url, key
            finally:
                for task in tasks:
                    task.cancel()
                await database.close()


async def _main() -> None:
    async with fuzzed() as (url, key):
        print(url, key, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(_main())
    except KeyboardInterrupt:
        pass
