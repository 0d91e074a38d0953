"""The database: SQLite or PostgreSQL. Errors become ArchiveRefused for a value, else ArchiveUnavailable."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiosqlite
from sqlalchemy import Connection, Table, event, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.archive.database.tables import REVISION, metadata
from app.deliberation.errors import ArchiveRefused, ArchiveUnavailable, InvalidRequest

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
BUSY_S = 5.0
STATEMENT_S = 60.0
CONNECTIONS_MAX = 8
_VERSIONS = "alembic_version"
START = "Start the database, or correct DATABASE_URL."
REFUSED = "It would refuse it again: report this error."
MIGRATE = "Run `deliberate archive migrate` with the same DATABASE_URL."
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SSL_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
# Classes of SQLSTATE: a value cannot be stored, breaks a constraint, or exceeds a limit of PostgreSQL.
_OF_VALUES = ("22", "23", "54")
_QUERY_CANCELED = "57014"
# A prepared statement is missing, or exists already: a pooler has changed the connection to the server.
_OF_POOLERS = ("26000", "42P05")
POOLER = (
    "The pooler before PostgreSQL keeps no prepared statements: add prepared_statement_cache_size=0 to the query of "
    "DATABASE_URL, or let PgBouncer 1.21 or newer keep them by max_prepared_statements."
)
# For each transaction, because a pooler takes no settings for a connection. A plan for any values would look at every
# row where a filter's value is rare. Reading a page takes less time than compiling its plan or starting workers for it.
# The rows of a search are read ahead, as PostgreSQL 18 does by itself. The slowest searches after a restart then take a
# third of the time.
_SET = text(
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true), "
    "set_config('max_parallel_workers_per_gather', '0', true), set_config('effective_io_concurrency', '16', true)"
)

# asyncpg takes these from a URL as libpq does.
_OF_LIBPQ = {"sslmode", *_SSL_FILES, "sslpassword", "application_name", "options", "passfile", "target_session_attrs"}
# SQLAlchemy takes these from its URL.
_OF_SQLALCHEMY = {"host", "port", "prepared_statement_cache_size"}


class StatementTooSlow(Exception):
    pass


def engine_of(url: str, *, statement_s: float | None = STATEMENT_S) -> AsyncEngine:
    """Returns an engine, which connects at its first use; raises InvalidRequest. `statement_s` is for PostgreSQL."""
    try:
        parsed_url = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidRequest(
            "DATABASE_URL is no URL; write sqlite:///path or postgresql://user:password@host/name."
        ) from None
    driver = DRIVERS.get(parsed_url.drivername.partition("+")[0])
    if driver is None:
        raise InvalidRequest(
            f"DATABASE_URL begins with {parsed_url.drivername!r}; use sqlite:///path or postgresql://…"
        )
    parsed_url = parsed_url.set(drivername=driver)
    if driver == DRIVERS["sqlite"]:
        if parsed_url.query and "uri" not in parsed_url.query:
            remedy = "remove it, or write sqlite:///file:path?key=value&uri=true"
            raise InvalidRequest(
                f"DATABASE_URL has {next(iter(parsed_url.query))!r}, which a path does not take; {remedy}."
            )
        arguments = {"timeout": BUSY_S, "factory": _Connection, "async_creator_fn": _open_sqlite}
        engine = create_async_engine(parsed_url, connect_args=arguments)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        return engine
    options = {"command_timeout": statement_s, **_options_of(parsed_url.normalized_query)}
    parsed_url = parsed_url.difference_update_query(parsed_url.query.keys() - _OF_SQLALCHEMY)
    return create_async_engine(
        parsed_url, pool_size=CONNECTIONS_MAX, max_overflow=0, pool_pre_ping=True, connect_args=options
    )


def _options_of(query: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    options = {name: values[-1] for name, values in query.items()}
    for name in ("connect_timeout", "prepared_statement_cache_size"):
        if not options.get(name, "0").isdecimal():
            raise InvalidRequest(f"DATABASE_URL has a {name!r} that is no whole number; write {name}=10.")
    # Zero is no limit, as for libpq.
    timeout_s = float(options.pop("connect_timeout", BUSY_S)) or None
    # asyncpg binds no channel: the other values permit that.
    if options.pop("channel_binding", "disable") not in ("disable", "prefer"):
        remedy = "remove it, and let sslmode=verify-full check the server by sslrootcert"
        raise InvalidRequest(f"DATABASE_URL requires 'channel_binding', which the driver does not have; {remedy}.")
    # asyncpg's own name.
    if "ssl" in options:
        options["sslmode"] = options.pop("ssl")
    for name in sorted(options.keys() - _OF_LIBPQ - _OF_SQLALCHEMY):
        takes = ", ".join(sorted(_OF_LIBPQ | {"connect_timeout", "host", "port"}))
        raise InvalidRequest(f"DATABASE_URL has {name!r}, which is not supported; remove it. It takes {takes}.")
    if options.get("sslmode", "prefer") not in _SSL_MODES:
        raise InvalidRequest(f"DATABASE_URL has an unknown 'sslmode'; write one of {', '.join(_SSL_MODES)}.")
    for name in sorted(options.keys() & set(_SSL_FILES)):
        if not Path(options[name]).is_file():
            raise InvalidRequest(f"DATABASE_URL has a {name!r} that is no file; write the path of a PEM file.")
    # Without a cache the driver names no statement, and SQLAlchemy takes this option from its URL.
    unnamed = {"statement_cache_size": 0} if int(options.get("prepared_statement_cache_size", "1")) == 0 else {}
    read = {name: value for name, value in options.items() if name in _OF_LIBPQ}
    # The host and the rest come beside this URL.
    return {"timeout": timeout_s, **unnamed, **({"dsn": f"postgresql://?{urlencode(read)}"} if read else {})}


class _Connection(sqlite3.Connection):
    """A connection that ends its transaction at `close`; after a cancelled statement it would keep its lock."""

    def close(self) -> None:
        if self.in_transaction:
            with suppress(sqlite3.Error):
                self.rollback()
        super().close()


async def _open_sqlite(*path: str, **options: Any) -> aiosqlite.Connection:  # noqa: ANN401 -- sqlite3's
    """A connection. After a failure its thread has ended: it reports to the event loop, which may close then."""
    connection = aiosqlite.connect(*path, **options)
    thread = connection._thread  # pyright: ignore[reportPrivateUsage] -- there is no other way to wait for it
    thread.daemon = True
    try:
        return await connection
    except sqlite3.Error:
        await asyncio.to_thread(thread.join)
        raise


def _prepare_sqlite(connection: Any, _: object) -> None:  # noqa: ANN401 -- the driver's own type
    cursor = connection.cursor()
    # Readers and one writer do not wait for each other; a power cut may lose the last commits, which the log repeats.
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    # Removed content is overwritten with zeros.
    cursor.execute("PRAGMA secure_delete = ON")
    cursor.close()


class Database:
    """Connections to the archive. `open` and `close` belong to its owner. `dialect` is `sqlite` or `postgresql`."""

    def __init__(self, url: str) -> None:
        self._engine = engine_of(url)
        self.server = self._engine.url.render_as_string(hide_password=True)
        self.dialect = self._engine.dialect.name

    async def close(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction, committed at the end of the body; raises ArchiveUnavailable and ArchiveRefused."""
        try:
            async with self._engine.begin() as connection:
                if self.dialect == "postgresql":
                    await connection.execute(_SET)
                yield connection
        except (OverflowError, UnicodeEncodeError) as exc:
            # sqlite3's own, for an integer beyond 64 bits and a lone surrogate.
            raise ArchiveRefused(f"The archive {self.server} refuses a value: {_kind(exc)}. {REFUSED}") from exc
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            if _is_about_a_value(exc):
                raise ArchiveRefused(f"The archive {self.server} refuses a value: {_kind(exc)}. {REFUSED}") from exc
            raise ArchiveUnavailable(f"The archive {self.server} does not answer: {cause(exc)}. {START}") from exc

    @asynccontextmanager
    async def bounded(self, connection: AsyncConnection, limit_s: float) -> AsyncGenerator[None]:
        """Interrupts what the body executes in a transaction after a time; raises StatementTooSlow then."""
        driver: Any = (await connection.get_raw_connection()).driver_connection
        loop = asyncio.get_running_loop()
        interrupt: asyncio.TimerHandle | None = None
        if self.dialect == "sqlite":
            interrupt = loop.call_later(limit_s, driver._conn.interrupt)
        else:
            await connection.execute(text(f"SET LOCAL statement_timeout = {round(limit_s * 1_000)}"))
        try:
            yield
        except DBAPIError as exc:
            codes = getattr(exc.orig, "sqlstate", None), getattr(exc.orig, "sqlite_errorcode", None)
            if codes[0] == _QUERY_CANCELED or codes[1] == sqlite3.SQLITE_INTERRUPT:
                raise StatementTooSlow from exc
            raise
        finally:
            if interrupt is not None:
                interrupt.cancel()

    async def empty_write_ahead_log(self) -> None:
        """Empty SQLite's write-ahead log of removed content; a reader beyond BUSY_S puts it off."""
        if self.dialect == "sqlite":
            async with self.begin() as connection:
                await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))

    async def check(self) -> None:
        async with self.begin() as connection:
            fault = await connection.run_sync(schema_fault)
        if fault is not None:
            raise ArchiveUnavailable(f"The archive {self.server} {fault}")


def insert(dialect: str, table: Table) -> Any:  # noqa: ANN401 -- both dialects' inserts have the same methods and no common type
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)


def schema_fault(connection: Connection) -> str | None:
    present = set(inspect(connection).get_table_names())
    missing = sorted(metadata.tables.keys() - present)
    if _VERSIONS not in present:
        if not present:
            return f"has no tables; this program needs {REVISION}. {MIGRATE}"
        return "holds tables of another program. Name another database by DATABASE_URL."
    version = str(connection.execute(text(f"SELECT version_num FROM {_VERSIONS}")).scalar())
    if version == REVISION:
        return f"lacks the table {missing[0]}. Restore a backup, or name another database." if missing else None
    has = f"has the tables of version {version}; this program needs {REVISION}."
    if re.fullmatch(r"[0-9]{4}", version) is None:
        return "holds tables of another program. Name another database by DATABASE_URL."
    return f"{has} {MIGRATE}" if version < REVISION else f"{has} A newer program made them: update this one."


def _is_about_a_value(exc: Exception) -> bool:
    match exc:
        case DataError() | IntegrityError():
            return True
        case DBAPIError(statement=str()):
            # Without a statement it is a fault of the connection, such as a wrong option in the URL.
            return str(getattr(exc.orig, "sqlstate", None)).startswith(_OF_VALUES)
        case StatementError(orig=ValueError() | TypeError() | OverflowError()):
            # SQLAlchemy converts values for the driver.
            return True
        case _:
            return False


def _kind(exc: BaseException) -> str:
    """The kind of a refusal. The driver's words would quote the value, which is a client's text."""
    error = exc.orig if isinstance(exc, StatementError) and exc.orig is not None else exc
    state = getattr(error, "sqlstate", None)
    return type(error).__name__ + (f", SQLSTATE {state}" if state else "")


def cause(exc: BaseException) -> str:
    """The driver's own words; SQLAlchemy's would quote the statement and its values."""
    if not isinstance(exc, DBAPIError):
        return repr(exc)
    return POOLER if getattr(exc.orig, "sqlstate", None) in _OF_POOLERS else repr(exc.orig)
