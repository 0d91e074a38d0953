"""The archive's database: SQLite in one file, or PostgreSQL. Every error of the driver becomes ArchiveUnavailable."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self

from sqlalchemy import Table, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.archive.database.tables import REVISION
from app.deliberation.errors import ArchiveUnavailable, InvalidRequest

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
BUSY_S = 5.0
CONNECTIONS_MAX = 8
MIGRATE = "Run `deliberate archive migrate` with the same DATABASE_URL."


def engine_of(url: str) -> AsyncEngine:
    """An engine for `sqlite:///path` or `postgresql://…`; it connects at its first use. Raises InvalidRequest."""
    try:
        given = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidRequest(
            "DATABASE_URL is no URL; write sqlite:///path or postgresql://user:password@host/name."
        ) from None
    driver = DRIVERS.get(given.drivername.partition("+")[0])
    if driver is None:
        raise InvalidRequest(f"DATABASE_URL begins with {given.drivername!r}; use sqlite:///path or postgresql://…")
    given = given.set(drivername=driver)
    if driver == DRIVERS["sqlite"]:
        engine = create_async_engine(given, connect_args={"timeout": BUSY_S})
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        return engine
    limits: dict[str, Any] = {"timeout": BUSY_S, "command_timeout": 60}
    return create_async_engine(
        given, pool_size=CONNECTIONS_MAX, max_overflow=0, pool_pre_ping=True, connect_args=limits
    )


def _prepare_sqlite(connection: Any, _: object) -> None:  # noqa: ANN401 -- the driver's own type
    cursor = connection.cursor()
    # Readers and one writer do not wait for each other; a power cut may lose the last commits, which the log repeats.
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


class Database:
    """Connections to the archive. `open` and `close` belong to its owner."""

    def __init__(self, url: str) -> None:
        self._engine = engine_of(url)
        self.server = self._engine.url.render_as_string(hide_password=True)

    @classmethod
    async def connect(cls, url: str) -> Self:
        """A database with the tables that this version needs; raises InvalidRequest and ArchiveUnavailable."""
        database = cls(url)
        await database.check()
        return database

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction, committed at the end of the body; raises ArchiveUnavailable."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            raise ArchiveUnavailable(f"The archive {self.server} does not answer: {cause(exc)}") from exc

    def insert(self, table: Table) -> Any:  # noqa: ANN401 -- both dialects' inserts have the same methods and no common type
        """An insert that can say what happens to a row in conflict."""
        return (sqlite if self._engine.dialect.name == "sqlite" else postgresql).insert(table)

    async def check(self) -> None:
        """Raise ArchiveUnavailable unless the tables are those of `REVISION`."""
        async with self.begin() as connection:
            try:
                found = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
            except DBAPIError:
                found = None
        if found != REVISION:
            has = "has no tables" if found is None else f"has the tables of version {found}"
            raise ArchiveUnavailable(f"The archive {self.server} {has}; this program needs {REVISION}. {MIGRATE}")


def cause(exc: BaseException) -> str:
    """The driver's own words; SQLAlchemy's would quote the statement and its values."""
    return repr(exc.orig) if isinstance(exc, DBAPIError) else repr(exc)
