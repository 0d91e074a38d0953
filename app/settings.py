"""Everything an operator may set, read from the environment once; the rest of the gateway receives values."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.keys import PEPPER_CHARS_MIN
from app.origins import checked_origin

# The deploying process shares no code with the gateway but the core, so these are documented here and read there.
CLUSTER_VARIABLES = (
    ("RAY_ADDRESS", "`auto`", "Ray cluster that the agents are deployed to."),
    ("NATS_URL", "`nats://127.0.0.1:4222`", "Server that holds the log; the same as the gateway's."),
    ("VLLM_URL", "", "Base URLs of OpenAI-compatible engines, separated by commas, for roles that name none."),
    ("VLLM_MODEL", "", "Model for roles that name none; the first that the engine serves if unset."),
    ("ROLES_FILE", "", "The same roles as the gateway's."),
    ("STREAM_DELTAS", "`true`", "Whether texts are streamed while they grow; `false` asks engines for whole answers."),
)
PACKAGED_ROLES = Path(__file__).with_name("roles.yaml")


def _setting(default: Any, env: str, description: str, *, unit: str = "", **bounds: Any) -> Any:  # noqa: ANN401 -- a field
    return Field(
        default, validation_alias=env, description=description, json_schema_extra={"env": env, "unit": unit}, **bounds
    )


def _listed(given: object) -> object:
    """What stands between commas, without the spaces around it."""
    return tuple(each.strip() for each in given.split(",") if each.strip()) if isinstance(given, str) else given


Origins = Annotated[tuple[Annotated[str, AfterValidator(checked_origin)], ...], NoDecode, BeforeValidator(_listed)]


class Settings(BaseSettings):
    """The gateway's settings: each a bound with its unit, limits and the name of its environment variable."""

    # Errors leave the values out: one of them is a secret.
    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True, hide_input_in_errors=True)

    nats_url: str = _setting("nats://127.0.0.1:4222", "NATS_URL", "Server that holds the log.", min_length=1)
    host: str = _setting("127.0.0.1", "HOST", "Address to listen on.", min_length=1)
    port: int = _setting(8080, "PORT", "Port to listen on; 0 takes a free one.", ge=0, le=65_535)
    key_pepper: SecretStr | None = _setting(
        None,
        "KEY_PEPPER",
        "Secret that keys are hashed with, the same for all gateways and `deliberate keys`; without it no keys are "
        "asked for, and only loopback is listened on.",
        unit="characters",
        min_length=PEPPER_CHARS_MIN,
    )
    session_lifetime_s: int = _setting(
        43_200,
        "SESSION_LIFETIME",
        "How long a browser stays logged in; never longer than its key is good.",
        unit="seconds",
        ge=60,
        le=2_592_000,
    )
    cors_origins: Origins = _setting(
        (),
        "CORS_ORIGINS",
        "Origins whose pages may ask, with credentials; exact, separated by commas. None by default.",
    )
    forwarded_allow_ips: str = _setting(
        "127.0.0.1",
        "FORWARDED_ALLOW_IPS",
        "Proxies whose X-Forwarded-For and -Proto are believed: addresses and networks, separated by commas.",
    )
    tenant_requests_per_minute: int = _setting(
        6_000,
        "TENANT_REQUESTS_PER_MINUTE",
        "Requests of one tenant to this process; above it they are answered 429. Not in development mode.",
        unit="requests",
        ge=1,
        le=10_000_000,
    )
    tenant_in_flight_max: int = _setting(
        500,
        "TENANT_IN_FLIGHT_MAX",
        "Deliberations of one tenant, accepted and unfinished, in all gateways; above it POST answers 429. Not in "
        "development mode.",
        unit="deliberations",
        ge=1,
        le=1_000_000,
    )
    roles_file: Path | None = _setting(None, "ROLES_FILE", "Roles of the councils; the packaged ones if unset.")
    deliberation_timeout_s: int = _setting(
        300, "DELIBERATION_TIMEOUT", "Deadline of a deliberation that names none.", unit="seconds", ge=1, le=3_600
    )
    retention_s: int = _setting(
        86_400,
        "DELIBERATION_CLEANUP",
        "How long facts are kept, counted from acceptance; equal to the age of stream DELIBERATIONS.",
        unit="seconds",
        ge=60,
        le=31_536_000,
    )
    stream_replicas: int = _setting(
        1, "STREAM_REPLICAS", "Servers that hold each stream, as `deliberate streams apply` declared them.", ge=1, le=5
    )
    ack_wait_s: float = _setting(
        6.0,
        "ACK_WAIT",
        "Silence of a coordinator after which another takes over, as declared with the streams.",
        unit="seconds",
        gt=0,
        le=600,
    )
    queue_depth_max: int = _setting(
        2_000,
        "QUEUE_DEPTH_MAX",
        "Deliberations accepted and unfinished; above it POST answers 429.",
        unit="deliberations",
        ge=1,
        le=1_000_000,
    )
    catalog_size_max: int = _setting(
        100_000,
        "CATALOG_SIZE_MAX",
        "Deliberations that lists and statistics remember; the oldest ended ones are forgotten first.",
        unit="deliberations",
        ge=100,
        le=10_000_000,
    )
    streams_max: int = _setting(
        5_000, "STREAMS_MAX", "Open SSE streams of this process.", unit="streams", ge=1, le=100_000
    )
    streams_per_client_max: int = _setting(
        1_000, "STREAMS_PER_CLIENT_MAX", "Open SSE streams from one address.", unit="streams", ge=1, le=100_000
    )
    heartbeat_s: float = _setting(
        10.0, "STREAM_HEARTBEAT", "A comment keeps proxies awake this often.", unit="seconds", gt=0, le=60
    )
    stream_age_max_s: float = _setting(
        900.0,
        "STREAM_AGE_MAX",
        "A stream older than this is told to reconnect, so that draining is quick.",
        unit="seconds",
        gt=0,
        le=86_400,
    )
    stream_send_timeout_s: float = _setting(
        30.0,
        "STREAM_SEND_TIMEOUT",
        "A viewer that takes nothing for this long is dropped.",
        unit="seconds",
        gt=0,
        le=600,
    )
    drain_delay_s: float = _setting(
        0.0,
        "DRAIN_DELAY",
        "After a request to stop, how long /readyz says so before the socket closes.",
        unit="seconds",
        ge=0,
        le=600,
    )
    drain_timeout_s: int = _setting(
        10, "DRAIN_TIMEOUT", "How long requests under way may take to end while stopping.", unit="seconds", ge=0, le=600
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "LOG_LEVEL", "Least severe events that are logged; tasks and answers are never logged above debug."
    )


def _limits(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    given = {**field.get("anyOf", [{}])[0], **field}
    least = "not empty" if given.get("minLength") == 1 else "≥ {}"
    signs = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "minLength": least}
    return ", ".join(sign.format(given[key]) for key, sign in signs.items() if key in given)


def settings_table() -> str:
    """Markdown tables of every setting, for docs/configuration.md: the gateway's, and those of the cluster's side."""
    rows = ["| variable | default | unit | limits | what it is |", "|---|---|---|---|---|"]
    for field in Settings.model_json_schema(by_alias=False)["properties"].values():
        default = "" if field.get("default") in (None, []) else f"`{field['default']}`"
        rows.append(f"| `{field['env']}` | {default} | {field['unit']} | {_limits(field)} | {field['description']} |")
    rows += ["", "Read by the process that deploys the agents, not by the gateway:", ""]
    rows += ["| variable | default | what it is |", "|---|---|---|"]
    rows += [f"| `{env}` | {default} | {description} |" for env, default, description in CLUSTER_VARIABLES]
    return "\n".join(rows) + "\n"
