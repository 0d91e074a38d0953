"""The settings, read from the environment once; the rest of the gateway receives values."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.access.keys import PEPPER_CHARS_MIN
from app.access.origins import checked_origin
from app.api.webhook_targets import Rules
from app.deliberation.specification import TIMEOUT_S_MAX
from app.log.stream_settings import (
    ACK_WAIT_S_MAX,
    ACK_WAIT_S_MIN,
    DAY_S,
    REPLICAS_MAX,
    RETENTION_S_MAX,
    RETENTION_S_MIN,
)

LOG_KEY_DESCRIPTION = (
    "File with the secret that seals the log's records: at least 32 characters; during a rotation one per line, the "
    "newest first. The same for all gateways, coordinators, agents, senders and `deliberate keys`. Without it whatever "
    "is written to NATS is believed."
)
PACKAGED_ROLES = Path(__file__).with_name("roles.yaml")


def setting(default: Any, env: str, description: str, *, unit: str = "", **bounds: Any) -> Any:  # noqa: ANN401 -- a field
    """A field of settings: read from the environment variable `env`, documented in docs/configuration.md."""
    return Field(
        default, validation_alias=env, description=description, json_schema_extra={"env": env, "unit": unit}, **bounds
    )


def listed(given: object) -> object:
    """The comma-separated entries, without surrounding spaces."""
    return tuple(each.strip() for each in given.split(",") if each.strip()) if isinstance(given, str) else given


Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)]
Ports = Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], NoDecode, BeforeValidator(listed)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(checked_origin)], ...], NoDecode, BeforeValidator(listed)]


class WebhookRules(BaseSettings):
    """The allowed webhook targets: the gateway checks the URL, and the sender checks the host's addresses."""

    # Errors leave the values out: some settings are secrets.
    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True, hide_input_in_errors=True)

    webhook_ports: Ports = setting(
        (443, 8443), "WEBHOOK_PORTS", "Ports that webhooks may be sent to, separated by commas."
    )
    webhook_hosts: Hosts = setting(
        (),
        "WEBHOOK_HOSTS",
        "Hosts, as `name` or `name:port`, that may be private, use any port, and lack TLS; separated by commas. For "
        "development and for your own receivers.",
    )

    @property
    def webhook_rules(self) -> Rules:
        """Both settings as rules for URLs and addresses."""
        return Rules.of(self.webhook_ports, self.webhook_hosts)


class Settings(WebhookRules):
    """The gateway's settings: each a bound with its unit, limits and the name of its environment variable."""

    nats_url: str = setting("nats://127.0.0.1:4222", "NATS_URL", "Server that holds the log.", min_length=1)
    host: str = setting("127.0.0.1", "HOST", "Address to listen on.", min_length=1)
    port: int = setting(8080, "PORT", "Port to listen on; 0 takes a free one.", ge=0, le=65_535)
    key_pepper: SecretStr | None = setting(
        None,
        "KEY_PEPPER",
        "Secret that hashes keys, the same for all gateways and `deliberate keys`. Without it requests need no key, "
        "and the gateway listens on loopback only.",
        unit="characters",
        min_length=PEPPER_CHARS_MIN,
    )
    log_key_file: Path | None = setting(None, "LOG_KEY_FILE", LOG_KEY_DESCRIPTION)
    session_lifetime_s: int = setting(
        43_200,
        "SESSION_LIFETIME",
        "How long a browser session lasts; it never outlasts its key.",
        unit="seconds",
        ge=60,
        le=2_592_000,
    )
    cors_origins: Origins = setting(
        (),
        "CORS_ORIGINS",
        "Origins whose pages may send requests with credentials; exact, separated by commas. None by default.",
    )
    forwarded_allow_ips: str = setting(
        "127.0.0.1",
        "FORWARDED_ALLOW_IPS",
        "Proxies whose X-Forwarded-For and -Proto are trusted: addresses and networks, separated by commas.",
    )
    tenant_requests_per_minute: int = setting(
        6_000,
        "TENANT_REQUESTS_PER_MINUTE",
        "Requests of one tenant to this process; above it the answer is 429. Not in development mode.",
        unit="requests",
        ge=1,
        le=10_000_000,
    )
    tenant_in_flight_max: int = setting(
        500,
        "TENANT_IN_FLIGHT_MAX",
        "Accepted and unfinished deliberations of one tenant, in all gateways; above it POST answers 429. Not in "
        "development mode.",
        unit="deliberations",
        ge=1,
        le=1_000_000,
    )
    roles_file: Path | None = setting(None, "ROLES_FILE", "Roles of the councils; the packaged ones if unset.")
    deliberation_timeout_s: int = setting(
        300,
        "DELIBERATION_TIMEOUT",
        "Deadline of a deliberation that names none.",
        unit="seconds",
        ge=1,
        le=TIMEOUT_S_MAX,
    )
    retention_s: int = setting(
        DAY_S,
        "DELIBERATION_CLEANUP",
        "How long facts are kept after acceptance; the maximum age of stream DELIBERATIONS. At least the longest "
        "deadline, so that no deliberation loses its acceptance before its end.",
        unit="seconds",
        ge=RETENTION_S_MIN,
        le=RETENTION_S_MAX,
    )
    stream_replicas: int = setting(
        1,
        "STREAM_REPLICAS",
        "Servers that hold each stream, as declared with `deliberate streams apply`.",
        ge=1,
        le=REPLICAS_MAX,
    )
    ack_wait_s: float = setting(
        ACK_WAIT_S_MIN,
        "ACK_WAIT",
        "Silence of a coordinator after which another takes over, as declared with the streams. Its heartbeat comes "
        "every two seconds.",
        unit="seconds",
        ge=ACK_WAIT_S_MIN,
        le=ACK_WAIT_S_MAX,
    )
    queue_depth_max: int = setting(
        2_000,
        "QUEUE_DEPTH_MAX",
        "Accepted and unfinished deliberations; above it POST answers 429.",
        unit="deliberations",
        ge=1,
        le=1_000_000,
    )
    catalog_size_max: int = setting(
        100_000,
        "CATALOG_SIZE_MAX",
        "Deliberations in lists and statistics; beyond it the oldest ended ones are removed.",
        unit="deliberations",
        ge=100,
        le=10_000_000,
    )
    streams_max: int = setting(
        5_000, "STREAMS_MAX", "Open SSE streams of this process.", unit="streams", ge=1, le=100_000
    )
    streams_per_client_max: int = setting(
        1_000,
        "STREAMS_PER_CLIENT_MAX",
        "Open SSE streams of one tenant, or without keys from one address, of this process.",
        unit="streams",
        ge=1,
        le=100_000,
    )
    heartbeat_s: float = setting(
        10.0,
        "STREAM_HEARTBEAT",
        "Interval of comments that keep idle streams open through proxies.",
        unit="seconds",
        gt=0,
        le=60,
    )
    stream_age_max_s: float = setting(
        900.0,
        "STREAM_AGE_MAX",
        "Age at which a stream asks its viewer to reconnect, so that draining is quick.",
        unit="seconds",
        gt=0,
        le=86_400,
    )
    stream_send_timeout_s: float = setting(
        25.0,
        "STREAM_SEND_TIMEOUT",
        "A viewer that reads nothing for this long is disconnected.",
        unit="seconds",
        gt=0,
        le=600,
    )
    drain_delay_s: float = setting(
        0.0,
        "DRAIN_DELAY",
        "After a stop signal, how long /readyz reports draining before the socket closes.",
        unit="seconds",
        ge=0,
        le=600,
    )
    drain_timeout_s: int = setting(
        10, "DRAIN_TIMEOUT", "How long open requests may take to finish after that.", unit="seconds", ge=0, le=600
    )
    webhooks: bool = setting(
        False, "WEBHOOKS", "Whether requests may name a webhook; `python -m app.webhooks` must run too."
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "LOG_LEVEL", "Lowest severity that is logged; tasks and answers are never logged above debug."
    )
