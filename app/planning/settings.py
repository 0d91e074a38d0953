"""The settings of the process that takes plans, read from the environment once."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from app.deliberation.specification import TIMEOUT_S_MAX, Token
from app.log.stream_settings import DAY_S, RETENTION_S_MAX, RETENTION_S_MIN
from app.settings import (
    DATABASE_URL_DESCRIPTION,
    LOG_KEY_DESCRIPTION,
    ContextRules,
    PlanRules,
    SpendRules,
    listed,
    setting,
)

Tenants = Annotated[tuple[Token, ...], NoDecode, BeforeValidator(listed), Field(min_length=1)]


class PlanningSettings(PlanRules, ContextRules, SpendRules):
    """Each setting has a description, a unit, limits and an environment variable. Bounds are those of the gateways."""

    nats_url: str = setting(
        "nats://127.0.0.1:4222", "Server that holds the log, or `file:///path` of a file with its URL.", min_length=1
    )
    log_key_file: Path | None = setting(None, LOG_KEY_DESCRIPTION)
    roles_file: Path | None = setting(None, "Roles of the councils, as the gateways have them.")
    planning_tenants: Tenants = setting(
        ("default",),
        "Tenants whose plans are taken, separated by commas. A plan may name one; the first is that of the others.",
    )
    deliberation_timeout_s: int = setting(300, "Deadline of each deliberation.", ge=1, le=TIMEOUT_S_MAX)
    retention_s: int = setting(
        DAY_S, "Age of stream DELIBERATIONS.", env="DELIBERATION_CLEANUP", ge=RETENTION_S_MIN, le=RETENTION_S_MAX
    )
    database_url: SecretStr | None = setting(
        None, f"{DATABASE_URL_DESCRIPTION} With it, a plan starts nothing twice after its facts have left the log."
    )
    queue_depth_max: int = setting(
        2_000, "Accepted and unfinished deliberations; above it plans wait.", "deliberations", ge=1, le=1_000_000
    )
    tenant_in_flight_max: int = setting(500, "The same of one tenant.", "deliberations", ge=1, le=1_000_000)
    planning_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    planning_port: int = setting(8083, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severity of logged events.")
