"""The archive's process: `python -m app.archive` reads the environment and copies until it receives a signal."""

import asyncio
import sys

from pydantic import ValidationError

from app.archive.database.connection import engine_of
from app.archive.service import serve
from app.archive.settings import ArchiveSettings
from app.deliberation.errors import InvalidRequest, JournalUnavailable
from app.log.seal import LogSeal
from app.observability import logs


def main() -> None:
    """Exit with 2 for invalid settings, with 1 when the log refuses the connection."""
    try:
        settings = ArchiveSettings()
        LogSeal.of_file(settings.log_key_file)
        engine_of(settings.database_url.get_secret_value())
    except (ValidationError, InvalidRequest) as exc:
        print(exc, file=sys.stderr)
        raise SystemExit(2) from exc
    logs.configure(settings.log_level)
    try:
        asyncio.run(serve(settings))
    except* JournalUnavailable as refused:
        print(*refused.exceptions, sep="\n", file=sys.stderr)
        raise SystemExit(1) from refused


if __name__ == "__main__":
    main()
