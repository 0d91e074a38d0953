"""After a deletion no file holds a byte of it: neither the log's files nor those of the database."""

import asyncio
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, text

from app.archive.database.connection import engine_of
from app.archive.database.store import Store
from app.archive.database.tables import deliberations
from app.deliberation.facts import Event
from app.log.gateway_log import JetStreamLog
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from app.main import lifespan_of
from app.routes.dependencies import SystemClock
from app.settings import Settings
from tests.components.routes.served import APP, answering
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.archive.projecting import projecting, until_copied
from tests.story import Story

WINDOW_BYTES = 24


def told(story: Story, secret: str) -> list[Event]:
    """A deliberation with the secret in its task, its answers, and an answer's partial text."""
    answers = [story.finished(agent, f'{{"answer":"{secret}"}}') for agent in story.agents]
    views = [story.started(story.agents[0]), *(story.delta(story.agents[0], place, secret) for place in range(3))]
    accepted = story.accepted(task=f"Keep {secret} to yourself.")
    return [accepted, story.opened(), *views, *answers, story.closed(), story.completed()]


async def tell(journal: JetStreamJournal, story: Story, secret: str) -> None:
    for event in told(story, secret):
        if event.type in ("call.started", "call.delta"):
            await journal.publish_view("default", event)  # pyright: ignore[reportArgumentType] -- these are views
        else:
            await journal.append("default", event)  # pyright: ignore[reportArgumentType] -- the others are facts


async def until_stored(journal: JetStreamJournal, counts: dict[str, int]) -> None:
    async with asyncio.timeout(20):
        for stream, count in counts.items():
            while (await journal.request(f"$JS.API.STREAM.INFO.{stream}"))["state"]["messages"] < count:
                await asyncio.sleep(0.01)


async def stored_bytes(database_url: str, deliberation_id: str) -> bytes:
    """What the database stores of a deliberation's facts; they are compressed."""
    engine = engine_of(database_url)
    async with engine.connect() as connection:
        chosen = select(deliberations.c.facts).where(deliberations.c.id == deliberation_id)
        found = (await connection.execute(chosen)).scalar_one()
    await engine.dispose()
    return found


async def do_as_documented(database_url: str) -> None:
    """What docs/archive.md tells the operator of PostgreSQL to do; SQLite needs nothing."""
    if database_url.startswith("sqlite"):
        return
    engine = engine_of(database_url)
    steps = ["VACUUM FULL", "SELECT pg_switch_wal()", "CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"]
    async with engine.connect() as connection:
        connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
        for step in ("ALTER SYSTEM SET wal_recycle = off", "SELECT pg_reload_conf()", *steps):
            await connection.execute(text(step))
    await engine.dispose()


def files_with(directory: Path, needles: set[bytes]) -> list[str]:
    found = list[str]()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and any(needle in content for content in [path.read_bytes()] for needle in needles):
            found.append(str(path.relative_to(directory)))
    return found


@pytest.mark.parametrize("size", [20, 20_000])
async def test_a_deletion_leaves_no_byte_in_any_file(
    size: int,
    journal: JetStreamJournal,
    store: Store,
    database_url: str,
    own_nats_server: NatsServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The secret is short enough for one page of the database, then too long for it."""
    data = tmp_path if database_url.startswith("sqlite") else request.getfixturevalue("postgres").data
    secret, doomed, kept = secrets.token_hex(size), Story("doomed"), Story("kept")
    async with projecting(journal, store):
        for story, said in ((Story("before"), "nothing"), (doomed, secret), (kept, "something else")):
            await tell(journal, story, said)
        await until_copied(journal)
    # The server fills the streams of copies after a publish has been acknowledged.
    await until_stored(journal, {"AGENT_RESULTS": 6, "VLLM_STREAMING": 9})
    packed = await stored_bytes(database_url, doomed.id)
    in_log = {secret[:WINDOW_BYTES].encode()}
    # One for each 1,000 bytes of a long value, so that each page and each of PostgreSQL's pieces has one.
    places = range(0, len(packed) - WINDOW_BYTES, max(101, min(1_000, len(packed) // 100)))
    in_database = in_log | {packed[at : at + WINDOW_BYTES] for at in places}
    before = files_with(own_nats_server.store, in_log), files_with(data, in_database)

    settings = Settings(nats_url=own_nats_server.url, database_url=database_url)  # pyright: ignore[reportArgumentType]
    log = JetStreamLog(own_nats_server.url, StreamSettings(publications=PUBLICATIONS), LogSigner())
    async with lifespan_of(settings, log, SystemClock())(APP) as gateway:
        await until(lambda: gateway["catalog"].caught_up)
        async with answering(gateway) as client:
            deleted = await client.delete(f"/deliberations/{doomed.id}")
            gone = await client.get(f"/deliberations/{doomed.id}")
            left = await client.get(f"/deliberations/{kept.id}")
    async with projecting(journal, store):
        await until_copied(journal)
    await store.erase_removed(datetime.now(UTC) - timedelta(days=1), expired=False)
    await do_as_documented(database_url)

    assert [answer.status_code for answer in (deleted, gone, left)] == [204, 410, 200]
    assert all(before), "the search finds what is there"
    assert files_with(own_nats_server.store, in_log) == []
    assert [name for name in files_with(data, in_database) if not name.startswith("nats/")] == []
