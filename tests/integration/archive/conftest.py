import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Store
from tests.integration.archive.postgres import PostgresServer


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
    database = Database(database_url)
    yield Store(database)
    await database.close()
