"""The sender's process: `python -m app.webhooks` reads the environment and sends until it receives a signal."""

from app.log.signature import LogSigner
from app.observability.process import run_process
from app.webhooks.sender.sender_process import SenderSettings, serve


def _settings() -> SenderSettings:
    settings = SenderSettings()
    LogSigner.of_file(settings.log_key_file)
    return settings


if __name__ == "__main__":
    run_process(_settings, serve)
