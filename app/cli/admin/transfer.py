"""`deliberate export` and `deliberate import`: the archive's database as lines of JSON or, exported, as Parquet."""

import asyncio
import errno
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from app.cli.admin.archive import DATABASE_REMEDY, ArchiveDirectoryOption, DatabaseOption, archive_url
from app.cli.exits import CommandError, Exit, cause, run, usage_errors
from app.cli.options import checked_tenant
from app.cli.render.text import counted
from app.deliberation.errors import ArchiveRefused, ArchiveUnavailable, InvalidRequest

if TYPE_CHECKING:
    from app.archive.database.store import RowFilter, Store

STANDARD = Path("-")
PARQUET = ".parquet"
READ_BYTES = 1_000_000


def _checked_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-01-31 or 2026-01-31T12:00:00Z") from exc
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _checked_tenant(value: str | None) -> str | None:
    return None if value is None else checked_tenant(value)


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator["Store"]:
    # Imported here: only few commands need the database's packages.
    from app.archive.database.connection import Database
    from app.archive.database.store import Store

    with usage_errors("correct DATABASE_URL"):
        database = Database(url)
    try:
        await database.check()
        yield Store(database)
    except ArchiveUnavailable as exc:
        raise CommandError(Exit.UNREACHABLE, exc.code, str(exc), remedy=DATABASE_REMEDY) from exc
    except ArchiveRefused as exc:
        raise CommandError(Exit.FAILED, exc.code, str(exc)) from exc
    finally:
        await database.close()


def _unusable(path: Path, why: OSError) -> CommandError:
    remedy = "name another file, or `-`"
    return CommandError(Exit.USAGE, "file_unusable", f"{path} cannot be used: {cause(why)}", remedy=remedy)


def _check_new(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


@contextmanager
def _destination(path: Path) -> Generator[BinaryIO]:
    """A new file that its owner alone may read, or the standard output; raises OSError.

    The file gets its name once the body has written all of it; a failure leaves none.
    """
    if path == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    _check_new(path)
    number, beside = tempfile.mkstemp(prefix=".export-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check_new(path)
        os.rename(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)


def _source(path: Path) -> AbstractContextManager[BufferedReader]:
    return nullcontext(cast("BufferedReader", sys.stdin.buffer)) if path == STANDARD else path.open("rb")


async def _lines(path: Path) -> AsyncGenerator[bytes]:
    line = bytearray()
    try:
        with _source(path) as source:
            while part := await _read_part(source):
                *ends, rest = part.split(b"\n")
                for end in ends:
                    yield bytes(line + end)
                    line.clear()
                line += rest
    except OSError as exc:
        raise _unusable(path, exc) from exc
    if line:
        yield bytes(line)


async def _read_part(source: BufferedReader) -> bytes:
    """Returns the next bytes of a file, none at its end. The wait for a pipe or a terminal can be cancelled."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    # The selector takes no file of a disk, which never waits: PermissionError. A file in memory has no number.
    with suppress(PermissionError, UnsupportedOperation):
        loop.add_reader(source.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(source.fileno())
    return source.read1(READ_BYTES)


def _report(done: str, counts: Counter[str], *, as_table: bool = False) -> None:
    deliberations = counted(counts["deliberations"], "deliberation")
    tombstones = "" if as_table else f" and {counted(counts['tombstones'], 'tombstone')}"
    print(f"{done} {deliberations}{tombstones}", file=sys.stderr)


def _report_oldest(accepted_at: datetime | None) -> None:
    from app.settings import ARCHIVE_RETENTION_S

    retention = timedelta(seconds=ARCHIVE_RETENTION_S)
    if accepted_at is not None and accepted_at < datetime.now(UTC) - retention:
        print(
            f"the oldest was accepted at {accepted_at.isoformat(timespec='seconds')} → set ARCHIVE_RETENTION or "
            f"ARCHIVE_RETENTIONS to keep what is older than {retention.days} days",
            file=sys.stderr,
        )


def _check_format(file: Path) -> None:
    from app.archive.parquet import check_pyarrow

    try:
        if file.suffix == PARQUET:
            check_pyarrow()
    except InvalidRequest as exc:
        remedy = "pip install 'deliberation-gateway[parquet]', or export lines of JSON"
        raise CommandError(Exit.USAGE, "package_missing", str(exc), remedy=remedy) from exc


async def _export(store: "Store", chosen: "RowFilter", counts: Counter[str], file: Path) -> None:
    from app.archive.parquet import export_parquet
    from app.archive.transfer import export_archive

    with _destination(file) as destination:
        if file.suffix == PARQUET:
            await export_parquet(store, chosen, counts, destination)
        else:
            async with aclosing(export_archive(store, chosen, counts)) as lines:
                async for line in lines:
                    destination.write(line)


def export_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="New file to write, as Parquet if it ends in .parquet; `-` is the standard output."
        ),
    ],
    database_url: DatabaseOption = None,
    data_dir: ArchiveDirectoryOption = None,
    tenant: Annotated[str | None, typer.Option(callback=_checked_tenant, help="Only of this tenant.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option("--from", metavar="TIME", parser=_checked_time, help="Only accepted at or after it."),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--to", metavar="TIME", parser=_checked_time, help="Only accepted before it.")
    ] = None,
) -> None:
    """Write the archive's ended deliberations and tombstones as lines of JSON, as they are at one moment.

    A FILE that ends in .parquet becomes a table of the deliberations, which no import takes. A TIME is a date, or a
    time as in RFC 3339. Deliberations that have not ended are in the log alone, and left out.
    """

    async def main() -> Exit:
        from app.archive.database.store import RowFilter

        _check_format(file)
        counts, chosen = Counter[str](), RowFilter(tenant, since, until)
        async with _opened(archive_url(database_url, data_dir)) as store:
            try:
                await _export(store, chosen, counts, file)
            except BrokenPipeError:
                raise
            except OSError as exc:
                raise _unusable(file, exc) from exc
        _report("exported", counts, as_table=file.suffix == PARQUET)
        return Exit.SUCCESS

    run(main, as_json=False)


def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; `-` is the standard input.")],
    database_url: DatabaseOption = None,
    data_dir: ArchiveDirectoryOption = None,
) -> None:
    """Write an export into an empty archive. A repetition changes nothing, and resumes what was interrupted.

    An export has no proof of who wrote it: import only what you trust as you trust the log.
    """

    async def main() -> Exit:
        from app.archive.transfer import import_archive

        async with _opened(archive_url(database_url, data_dir)) as store:
            try:
                async with aclosing(_lines(file)) as lines:
                    imported = await import_archive(store, lines, datetime.now(UTC))
            except InvalidRequest as exc:
                remedy = "what stands before that line was imported; a repetition changes nothing"
                raise CommandError(Exit.FAILED, "invalid_export", str(exc), remedy=remedy) from exc
        _report("imported", imported.counts)
        _report_oldest(imported.oldest)
        return Exit.SUCCESS

    run(main, as_json=False)
