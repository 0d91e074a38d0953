"""`deliberate archive migrate`: brings the archive's tables to the version that this program needs."""

from typing import Annotated

import typer

from app.cli.exits import EXIT_HELP, CommandError, Exit, run
from app.deliberation.errors import ArchiveUnavailable, InvalidRequest

archive_cli = typer.Typer(no_args_is_help=True, help="Prepare the archive's database.", epilog=EXIT_HELP)

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="DATABASE_URL",
        metavar="URL",
        help="Database of the archive: `sqlite:///path` of a file, or `postgresql://user:password@host/name`.",
    ),
]


@archive_cli.callback()
def archive() -> None:
    """Prepare the archive's database."""


@archive_cli.command("migrate", epilog=EXIT_HELP)
def migrate_command(database_url: DatabaseOption = None) -> None:
    """Create or upgrade the archive's tables. Stop no process for it: each waits for tables that it can use."""
    run(lambda: _migrate(database_url), as_json=False)


async def _migrate(url: str | None) -> Exit:
    if url is None:
        raise CommandError(
            Exit.USAGE, "missing_setting", "no database is named", remedy="give it by --database-url or DATABASE_URL"
        )
    # Only this command and a starting stack need the database's packages.
    from app.archive.database.migrate import migrate
    from app.archive.database.tables import REVISION

    try:
        await migrate(url)
    except InvalidRequest as exc:
        raise CommandError(Exit.USAGE, "invalid_setting", str(exc), remedy="correct DATABASE_URL") from exc
    except ArchiveUnavailable as exc:
        raise CommandError(
            Exit.UNREACHABLE, exc.code, str(exc), remedy="start the database, or correct the URL"
        ) from exc
    print(f"the archive has the tables of version {REVISION}")
    return Exit.SUCCESS
