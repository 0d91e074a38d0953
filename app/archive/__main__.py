"""The archive's process: `python -m app.archive` reads the environment and copies until it receives a signal."""

from app.archive.database.connection import engine_of
from app.archive.process import ArchiveSettings, serve
from app.log.signature import LogSigner
from app.observability.process import run_process


def _settings() -> ArchiveSettings:
    settings = ArchiveSettings()
    LogSigner.of_file(settings.log_key_file)
    engine_of(settings.database_url.get_secret_value())
    return settings


if __name__ == "__main__":
    run_process(_settings, serve)
