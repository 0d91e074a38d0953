"""The archive behind a real PgBouncer in transaction mode, where each transaction may get another connection."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import asyncpg
import pytest
from sqlalchemy import TextClause
from typer.testing import CliRunner, Result

from app.archive.database import store as store_module
from app.archive.database.connection import CONNECTIONS_MAX
from app.archive.database.search_query import SearchTooSlow
from app.archive.database.store import RowFilter, Store
from app.cli import cli
from app.log.journal import JetStreamJournal
from tests.conftest import NatsServer
from tests.integration.archive.conftest import opened
from tests.integration.archive.killed_processes import Installation, running
from tests.integration.archive.pgbouncer import PgBouncer
from tests.integration.archive.postgres import PostgresServer
from tests.integration.archive.projecting import until_copied
from tests.integration.archive.searches import ENDLESS, answer, places_of, write

UNNAMED = "?prepared_statement_cache_size=0"
DELIBERATIONS = 12


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.database("pooled")


@pytest.fixture(scope="module")
def pooler(database: str) -> Iterator[PgBouncer]:
    pooler = PgBouncer(database)
    yield pooler
    pooler.stop()


@pytest.fixture(scope="module")
def url(database: str, pooler: PgBouncer) -> str:
    url = pooler.url(database) + ("" if pooler.keeps_statements else UNNAMED)
    done = migrated(url)
    assert done.exit_code == 0, done.stderr
    return url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with opened(url) as database:
        yield Store(database)


def migrated(url: str) -> Result:
    return CliRunner().invoke(cli, ["archive", "migrate", "--database-url", url])


def test_a_pooler_that_keeps_no_prepared_statements_is_refused_by_name(postgres: PostgresServer) -> None:
    database = postgres.database("refused")
    pooler = PgBouncer(database)
    if pooler.keeps_statements:
        pooler.stop()
        pooler = PgBouncer(database, max_prepared_statements="0")
    refused, done = migrated(pooler.url(database)), migrated(pooler.url(database) + UNNAMED)
    pooler.stop()

    assert refused.exit_code == 3 and done.exit_code == 0, (refused.output, done.output)
    assert UNNAMED.removeprefix("?") in refused.stderr and "max_prepared_statements" in refused.stderr
    assert refused.stderr.count("\n") == 1


async def test_gateway_and_archive_work_by_transactions(
    journal: JetStreamJournal, own_nats_server: NatsServer, url: str
) -> None:
    installation = Installation(journal, own_nats_server, url)
    async with running(installation):
        ids = await asyncio.gather(*(installation.play(number, deleted=number == 0) for number in range(DELIBERATIONS)))
        await until_copied(journal)
        listed = await installation.listed()
        asked = ["/deliberations?q=task", "/deliberations?metadata.number=3", "/stats?by=role"] * CONNECTIONS_MAX
        answers = await asyncio.gather(*(installation.answer("GET", path) for path in asked))

        assert sorted(listed) == sorted(ids[1:])
        assert {response.status_code for response in answers} == {200}
        assert {len(response.json()["items"]) for response in answers[::3]} == {DELIBERATIONS - 1}
        assert [item["id"] for item in answers[1].json()["items"]] == [ids[3]]


async def test_settings_and_the_bound_of_a_search_end_with_their_transaction(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, "The cat sat.")
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "SEARCH_S", 0.2)
        patched.setattr("app.archive.database.texts.selection", endless)
        with pytest.raises(SearchTooSlow, match=r"takes longer than 0\.2 s"):
            await places_of(store, "cat")
    assert await places_of(store, "cat") == [0]

    settings = "SELECT current_setting('statement_timeout'), current_setting('jit'), pg_backend_pid(), pg_sleep(0.1)"
    seen = await asyncio.gather(*(another_client(url, settings) for _ in range(CONNECTIONS_MAX)))
    assert {(timeout, jit) for timeout, jit, *_ in seen} == {("0", "on")}
    assert len({pid for _, _, pid, _ in seen}) == CONNECTIONS_MAX, "each of the server's connections was seen"


async def another_client(url: str, question: str) -> tuple[Any, ...]:
    client = cast("Any", await asyncpg.connect(url.partition("?")[0], statement_cache_size=0))  # pyright: ignore[reportUnknownMemberType]
    async with client.transaction():
        row = await client.fetchrow(question)
    await client.close()
    return tuple(row)


def endless(*_: object, **__: object) -> TextClause:
    return ENDLESS


async def test_all_rows_are_read_by_one_transaction_while_others_write(store: Store) -> None:
    await write(store, *["violet"] * 40)
    places = list[str]()
    async for row in store.rows(RowFilter(tenant="acme")):
        places.append(row.deliberation_id)
        if len(places) % 10 == 0:
            await write(store, answer("changed"))

    assert [int(each) for each in places] == list(range(40))
