"""What an operator may set for the sender, read from the environment once."""

from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from app.settings import WebhookRules, listed, rows_of, setting
from app.webhooks.sender.schedule import DELAYS_S
from app.webhooks.signatures import MASTER_CHARS_MIN

Secret = Annotated[SecretStr, Field(min_length=MASTER_CHARS_MIN)]
Secrets = Annotated[tuple[Secret, ...], NoDecode, BeforeValidator(listed)]


def _numbers(given: object) -> object:
    """Numbers between commas."""
    return tuple(map(float, cast("tuple[str, ...]", listed(given)))) if isinstance(given, str) else given


Delays = Annotated[
    tuple[Annotated[float, Field(ge=0, le=604_800)], ...], NoDecode, BeforeValidator(_numbers), Field(max_length=32)
]


class SenderSettings(WebhookRules):
    """The sender's settings: each a bound with its unit, limits and the name of its environment variable."""

    nats_url: str = setting("nats://127.0.0.1:4222", "NATS_URL", "Server that holds the log.", min_length=1)
    webhook_secrets: Secrets = setting(
        (),
        "WEBHOOK_SECRETS",
        "Secrets of at least 32 characters, the newest first, separated by commas; every one signs. "
        "`deliberate webhooks secret` tells what a tenant's receivers check with. At least one is needed.",
        unit="characters",
        min_length=1,
        validate_default=True,
    )
    webhook_retries_s: Delays = setting(
        DELAYS_S,
        "WEBHOOK_RETRIES",
        "From each failed attempt to the next, separated by commas; up to a fifth is added by chance.",
        unit="seconds",
    )
    webhook_timeout_s: float = setting(
        15.0, "WEBHOOK_TIMEOUT", "How long one attempt may take.", unit="seconds", gt=0, le=60
    )
    webhooks_in_flight_max: int = setting(
        256, "WEBHOOKS_IN_FLIGHT_MAX", "Attempts under way at once.", unit="attempts", ge=1, le=10_000
    )
    webhooks_in_flight_per_tenant_max: int = setting(
        64, "WEBHOOKS_IN_FLIGHT_PER_TENANT_MAX", "The same, for one tenant.", unit="attempts", ge=1, le=10_000
    )
    webhooks_in_flight_per_host_max: int = setting(
        8, "WEBHOOKS_IN_FLIGHT_PER_HOST_MAX", "The same, to one host for one tenant.", unit="attempts", ge=1, le=10_000
    )
    webhooks_held_max: int = setting(
        5_000,
        "WEBHOOKS_HELD_MAX",
        "Deliberations that are followed at once; others wait in the log until one ends.",
        unit="deliberations",
        ge=1,
        le=100_000,
    )
    webhooks_host: str = setting("127.0.0.1", "WEBHOOKS_HOST", "Address that /healthz is answered on.", min_length=1)
    webhooks_port: int = setting(
        8081, "WEBHOOKS_PORT", "Port that /healthz is answered on; 0 takes a free one.", ge=0, le=65_535
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "LOG_LEVEL", "Least severe events that are logged; of a URL never more than its host."
    )

    def masters(self) -> list[str]:
        """The secrets, the newest first."""
        return [secret.get_secret_value() for secret in self.webhook_secrets]


def sender_settings_table() -> str:
    """A Markdown table of the sender's settings, for docs/configuration.md."""
    return "\n".join(rows_of(SenderSettings)) + "\n"
