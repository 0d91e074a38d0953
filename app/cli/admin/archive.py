"""`deliberate archive migrate`: brings the archive's tables to the version that this program needs."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.exits import EXIT_HELP, CommandError, Exit, run, usage_errors
from app.cli.stack.layout import DATABASE_URL_FILE, sqlite_url
from app.cli.target import find_data_dir
from app.deliberation.errors import ArchiveUnavailable

DATABASE_REMEDY = "start the database, or correct the URL"

archive_cli = typer.Typer()

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="DATABASE_URL",
        metavar="URL",
        show_default="that of the stack in .deliberate",
        help="Database of the archive: `sqlite:///path` of a file, or `postgresql://user:password@host/name`.",
    ),
]
ArchiveDirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        file_okay=False,
        help="Use the archive of the stack in this directory, which need not run.",
    ),
]


def archive_url(database_url: str | None, data_dir: Path | None) -> str:
    if database_url is not None:
        return database_url
    remedy = "name the database by --database-url or DATABASE_URL"
    directory = find_data_dir(data_dir, remedy)
    named, own = directory / DATABASE_URL_FILE, directory.resolve() / "archive.db"
    if named.is_file():
        return named.read_text(encoding="utf-8-sig").strip()
    if not own.is_file():
        raise CommandError(
            Exit.USAGE, "missing_setting", f"there is no archive {own}", remedy=f"{remedy}, or the stack by --data-dir"
        )
    return sqlite_url(own)


@archive_cli.command("migrate", epilog=EXIT_HELP)
def migrate_command(database_url: DatabaseOption = None, data_dir: ArchiveDirectoryOption = None) -> None:
    """Create or upgrade the archive's tables. Stop no process for it: each waits for tables that it can use."""
    run(lambda: _migrate(database_url, data_dir), as_json=False)


async def _migrate(database_url: str | None, data_dir: Path | None) -> Exit:
    url = archive_url(database_url, data_dir)
    # Only this command and a starting stack need the database's packages.
    from app.archive.database.migrate import migrate
    from app.archive.database.tables import REVISION

    try:
        with usage_errors("correct DATABASE_URL"):
            await migrate(url)
    except ArchiveUnavailable as exc:
        raise CommandError(Exit.UNREACHABLE, exc.code, str(exc), remedy=DATABASE_REMEDY) from exc
    print(f"the archive has the tables of version {REVISION}")
    return Exit.SUCCESS
