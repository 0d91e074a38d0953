"""The process that takes plans: `python -m app.planning` reads the environment and runs until it receives a signal."""

from app.admission.spends import SpendLimits
from app.log.signature import LogSigner
from app.observability.process import run_process
from app.planning.consumer_process import PlanningSettings, serve
from app.process_settings import read_roles


def _settings() -> PlanningSettings:
    settings = PlanningSettings()
    LogSigner.of_file(settings.log_key_file)
    SpendLimits.of(settings.spend_per_day, settings.spends_per_day, read_roles(settings.roles_file))
    return settings


if __name__ == "__main__":
    run_process(_settings, serve)
