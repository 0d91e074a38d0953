"""The sender's settings, read from the environment once."""

from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from app.process_settings import LogAccess, WebhookTimeout, listed, setting
from app.settings import WebhookRules
from app.webhooks.sender.schedule import DELAYS_S
from app.webhooks.signatures import MASTER_CHARS_MIN

Secret = Annotated[SecretStr, Field(min_length=MASTER_CHARS_MIN)]
Secrets = Annotated[tuple[Secret, ...], NoDecode, BeforeValidator(listed)]
Delays = Annotated[
    tuple[Annotated[float, Field(ge=0, le=604_800)], ...], NoDecode, BeforeValidator(listed), Field(max_length=32)
]


class SenderSettings(LogAccess, WebhookTimeout, WebhookRules):
    """The settings of `python -m app.webhooks`."""

    webhook_secrets: Secrets = setting(
        (),
        "At least one secret of at least 32 characters, newest first, separated by commas; all of them sign. "
        "`deliberate webhooks secret` prints what a tenant's receivers verify with.",
        "characters",
        min_length=1,
        validate_default=True,
    )
    webhook_retries_s: Delays = setting(
        DELAYS_S, "Delays from each failed attempt to the next, separated by commas; up to a fifth is added as jitter."
    )
    webhooks_in_flight_max: int = setting(256, "Maximum of concurrent attempts.", "attempts", ge=1, le=10_000)
    webhooks_in_flight_per_tenant_max: int = setting(64, "The same, per tenant.", "attempts", ge=1, le=10_000)
    webhooks_in_flight_per_host_max: int = setting(8, "The same, per tenant and host.", "attempts", ge=1, le=10_000)
    webhooks_held_max: int = setting(
        5_000, "Maximum of deliberations followed at once; others wait in the log.", "deliberations", ge=1, le=100_000
    )
    webhooks_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    webhooks_port: int = setting(8081, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)
