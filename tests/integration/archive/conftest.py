import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Store
from tests.integration.archive.postgres import PostgresServer


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def migrated(url: str) -> AsyncGenerator[Database]:
    await migrate(url)
    async with opened(url) as database:
        yield database


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'archive.db'}"
    return request.getfixturevalue("postgres").database(f"t{uuid.uuid4().hex}")


@pytest.fixture
async def database_url(empty_url: str) -> str:
    await migrate(empty_url)
    return empty_url


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with opened(database_url) as database:
        yield Store(database)
