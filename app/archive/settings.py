"""The settings of the archive's process, read from the environment once."""

from pydantic import SecretStr

from app.process_settings import LogAccess, setting
from app.settings import DATABASE_URL_DESCRIPTION, ArchiveRetention


class ArchiveSettings(LogAccess, ArchiveRetention):
    """The settings of `python -m app.archive`."""

    database_url: SecretStr = setting(..., DATABASE_URL_DESCRIPTION)
    archive_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    archive_port: int = setting(8082, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)
