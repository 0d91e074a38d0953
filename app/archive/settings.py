"""The settings of the archive's process, read from the environment once."""

from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from app.settings import (
    DATABASE_URL_DESCRIPTION,
    LOG_KEY_DESCRIPTION,
    ArchiveRetention,
    setting,
)


class ArchiveSettings(ArchiveRetention):
    """Each setting has a description, a unit, limits and an environment variable."""

    nats_url: str = setting(
        "nats://127.0.0.1:4222", "Server that holds the log, or `file:///path` of a file with its URL.", min_length=1
    )
    log_key_file: Path | None = setting(None, LOG_KEY_DESCRIPTION)
    database_url: SecretStr = setting(..., DATABASE_URL_DESCRIPTION)
    archive_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    archive_port: int = setting(8082, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severity of logged events.")
