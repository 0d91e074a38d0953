"""The sender's settings, read from the environment once."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from app.settings import LOG_KEY_DESCRIPTION, WebhookRules, listed, setting
from app.webhooks.sender.schedule import DELAYS_S
from app.webhooks.signatures import MASTER_CHARS_MIN

Secret = Annotated[SecretStr, Field(min_length=MASTER_CHARS_MIN)]
Secrets = Annotated[tuple[Secret, ...], NoDecode, BeforeValidator(listed)]
Delays = Annotated[
    tuple[Annotated[float, Field(ge=0, le=604_800)], ...], NoDecode, BeforeValidator(listed), Field(max_length=32)
]


class SenderSettings(WebhookRules):
    """Each setting has a description, a unit, limits and an environment variable."""

    nats_url: str = setting("nats://127.0.0.1:4222", "NATS_URL", "NATS server of the log.", min_length=1)
    log_key_file: Path | None = setting(None, "LOG_KEY_FILE", LOG_KEY_DESCRIPTION)
    webhook_secrets: Secrets = setting(
        (),
        "WEBHOOK_SECRETS",
        "At least one secret of at least 32 characters, newest first, separated by commas; all of them sign. "
        "`deliberate webhooks secret` prints what a tenant's receivers verify with.",
        unit="characters",
        min_length=1,
        validate_default=True,
    )
    webhook_retries_s: Delays = setting(
        DELAYS_S,
        "WEBHOOK_RETRIES",
        "Delays from each failed attempt to the next, separated by commas; up to a fifth is added as jitter.",
        unit="seconds",
    )
    webhook_timeout_s: float = setting(
        15.0, "WEBHOOK_TIMEOUT", "Maximum duration of one attempt.", unit="seconds", gt=0, le=60
    )
    webhooks_in_flight_max: int = setting(
        256, "WEBHOOKS_IN_FLIGHT_MAX", "Maximum of concurrent attempts.", unit="attempts", ge=1, le=10_000
    )
    webhooks_in_flight_per_tenant_max: int = setting(
        64, "WEBHOOKS_IN_FLIGHT_PER_TENANT_MAX", "The same, per tenant.", unit="attempts", ge=1, le=10_000
    )
    webhooks_in_flight_per_host_max: int = setting(
        8, "WEBHOOKS_IN_FLIGHT_PER_HOST_MAX", "The same, per tenant and host.", unit="attempts", ge=1, le=10_000
    )
    webhooks_held_max: int = setting(
        5_000,
        "WEBHOOKS_HELD_MAX",
        "Maximum of deliberations followed at once; others wait in the log.",
        unit="deliberations",
        ge=1,
        le=100_000,
    )
    webhooks_host: str = setting("127.0.0.1", "WEBHOOKS_HOST", "Address of /healthz.", min_length=1)
    webhooks_port: int = setting(8081, "WEBHOOKS_PORT", "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "LOG_LEVEL", "Least severity of logged events. Of a webhook's URL only the host is logged."
    )
