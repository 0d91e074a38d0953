"""The settings, read from the environment once; the rest of the gateway receives values."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from app.access.loopback import is_loopback
from app.access.origins import checked_host, checked_origin
from app.api.webhook_targets import Rules
from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import ROLE_PATTERN, ROLES_BY_COMPLEXITY, Complexity, Role, run_by
from app.deliberation.specification import TIMEOUT_S_MAX, TOKEN_PATTERN, Token
from app.log.signature import SECRET_CHARS_MIN
from app.log.stream_settings import DAY_S, RETENTION_S_MAX, RETENTION_S_MIN, StreamSettings
from app.process_settings import (
    ClusterRules,
    GatewayDrain,
    LogAccess,
    ProcessSettings,
    RoleRules,
    Secret,
    Secrets,
    StreamRules,
    WebhookTimeout,
    WorkerDrain,
    WorkspaceRules,
    listed,
    setting,
)

DATABASE_URL_DESCRIPTION = (
    "Database of the archive: `sqlite:///path` of a file, or `postgresql://user:password@host/name`."
)
ARCHIVE_RETENTION_S = 90 * DAY_S
ARCHIVE_RETENTION_S_MAX = 10 * RETENTION_S_MAX


SPEND_MAX = Decimal(10**9)


def _by_tenant(
    variable: str, example: str, missing: str, limits: str, read: Callable[[str], int | Decimal | str | None]
) -> BeforeValidator:
    """The reader of `tenant=value,…`; `read` returns None for a value that is not within the limits."""

    def read_all(written: object) -> object:
        if not isinstance(written, str):
            return written
        by_tenant = dict[str, int | Decimal | str]()
        for entry in filter(None, map(str.strip, written.split(","))):
            tenant, _, text = map(str.strip, entry.partition("="))
            if re.fullmatch(TOKEN_PATTERN, tenant) is None:
                raise ValueError(f"{entry!r} names no tenant. Write {variable} as {example}.")
            if (value := read(text)) is None:
                raise ValueError(f"{entry!r} lacks its {missing}. Write {tenant}=N in {variable}, with N {limits}.")
            if tenant in by_tenant:
                raise ValueError(f"{tenant!r} stands twice in {variable}. Give it one value.")
            by_tenant[tenant] = value
        return by_tenant

    return BeforeValidator(read_all)


def _retention(text: str) -> int | None:
    return int(text) if text.isdecimal() and RETENTION_S_MIN <= int(text) <= ARCHIVE_RETENTION_S_MAX else None


def _amount(text: str) -> Decimal | None:
    known = re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", text) is not None
    return Decimal(text) if known and Decimal(text) <= SPEND_MAX else None


Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)]
Ports = Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], NoDecode, BeforeValidator(listed)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(checked_origin)], ...], NoDecode, BeforeValidator(listed)]

OwnHosts = Annotated[tuple[Annotated[str, AfterValidator(checked_host)], ...], NoDecode, BeforeValidator(listed)]
Retentions = Annotated[
    Mapping[str, int],
    NoDecode,
    _by_tenant(
        "ARCHIVE_RETENTIONS",
        "acme=604800,globex=86400",
        "seconds",
        f"from {RETENTION_S_MIN} to {ARCHIVE_RETENTION_S_MAX}",
        _retention,
    ),
]
_SPEND_LIMITS = f"from 0 to {SPEND_MAX} with at most six decimal places"
SpendsPerDay = Annotated[
    Mapping[str, Decimal],
    NoDecode,
    _by_tenant("SPENDS_PER_DAY", "acme=5,globex=20", "amount", _SPEND_LIMITS, _amount),
]


ClustersOfTenants = Annotated[
    Mapping[str, str],
    NoDecode,
    _by_tenant(
        "TENANT_CLUSTERS",
        "acme=eu,globex=us",
        "label",
        "a label of CLUSTERS",
        lambda text: text if re.fullmatch(TOKEN_PATTERN, text) else None,
    ),
]


class WebhookRules(ProcessSettings):
    webhook_ports: Ports = setting((443, 8443), "Ports that webhooks may be sent to, separated by commas.")
    webhook_hosts: Hosts = setting(
        (),
        "Hosts, as `name` or `name:port`, that may be private, use any port, and lack TLS; separated by commas. For "
        "development and for your own receivers.",
    )

    @property
    def webhook_rules(self) -> Rules:
        return Rules.of(self.webhook_ports, self.webhook_hosts)


Roles = Annotated[
    tuple[Annotated[str, Field(pattern=ROLE_PATTERN)], ...], NoDecode, BeforeValidator(listed), Field(min_length=1)
]


Tenants = Annotated[tuple[Token, ...], NoDecode, BeforeValidator(listed), Field(min_length=1)]


class PlanRules(ProcessSettings):
    plan_roles_basic: Roles = setting(
        ROLES_BY_COMPLEXITY["basic"],
        "Roles of a plan of complexity `basic`, or of none, that names no roles; separated by commas.",
    )
    plan_roles_medium: Roles = setting(ROLES_BY_COMPLEXITY["medium"], "The same, of complexity `medium`.")
    plan_roles_complex: Roles = setting(ROLES_BY_COMPLEXITY["complex"], "The same, of complexity `complex`.")

    @property
    def plan_roles(self) -> dict[Complexity, tuple[str, ...]]:
        return {
            "basic": self.plan_roles_basic,
            "medium": self.plan_roles_medium,
            "complex": self.plan_roles_complex,
        }


class ContextRules(ProcessSettings):
    context: bool = setting(
        False,
        "Whether a service that answers `context.get` is asked about the story of a request with `metadata.story_id`. "
        "Its text becomes evidence.",
    )
    context_timeout_s: float = setting(
        2.0, "How long an acceptance waits for it; without an answer the work goes on.", gt=0, le=30
    )


class SpendRules(ProcessSettings):
    spend_per_day: Decimal | None = setting(
        None,
        "What each tenant may spend in a day in UTC, in the currency of the roles file; from then on POST answers 429. "
        "Engines of all roles need prices.",
        "currency",
        ge=0,
        le=SPEND_MAX,
        decimal_places=6,
    )
    spends_per_day: SpendsPerDay = setting({}, "Tenants with another limit, as `acme=5,globex=20`.", "currency")


class TenantClusters(ClusterRules):
    tenant_clusters: ClustersOfTenants = setting(
        {},
        "Labels of clusters by tenant, for all deliberations of the tenant, as `acme=eu,globex=us`; their requests may "
        "name no other label.",
    )

    @field_validator("tenant_clusters")
    @classmethod
    def _declared(cls, clusters: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        if unknown := sorted(set(clusters.values()) - set(info.data.get("clusters", ()))):
            raise ValueError(f"CLUSTERS does not declare {', '.join(unknown)}. Add it there.")
        return clusters


class ArchiveRetention(ProcessSettings):
    archive_retention_s: int = setting(
        ARCHIVE_RETENTION_S,
        "How long the archive keeps a deliberation after its acceptance.",
        ge=RETENTION_S_MIN,
        le=ARCHIVE_RETENTION_S_MAX,
    )
    archive_retentions_s: Retentions = setting(
        {},
        "Tenants whose deliberations are kept for another time, as `acme=604800,globex=86400`; the limits are those "
        "of `ARCHIVE_RETENTION`.",
    )


class Settings(
    LogAccess,
    PlanRules,
    ContextRules,
    SpendRules,
    TenantClusters,
    RoleRules,
    StreamRules,
    ArchiveRetention,
    GatewayDrain,
    WebhookRules,
    WorkspaceRules,
):
    """The gateway's settings: each a bound with its unit, limits and the name of its environment variable."""

    deliberation_timeout_s: int = setting(300, "Deadline of a deliberation that names none.", ge=1, le=TIMEOUT_S_MAX)
    database_url: SecretStr | None = setting(
        None,
        f"{DATABASE_URL_DESCRIPTION} Without it there are no lists, and deliberations go with the log. With it, a plan "
        "starts nothing twice after its facts have left the log.",
    )
    queue_depth_max: int = setting(
        2_000,
        "Accepted and unfinished deliberations; above it POST answers 429, and plans wait.",
        "deliberations",
        ge=1,
        le=1_000_000,
    )
    tenant_in_flight_max: int = setting(
        500,
        "Accepted and unfinished deliberations of one tenant, in all gateways; above it POST answers 429. Not in "
        "development mode.",
        "deliberations",
        ge=1,
        le=1_000_000,
    )
    file_bytes_max: int = setting(
        64 << 20, "Bytes of one uploaded file; above it POST answers 413.", "files", ge=1 << 10, le=1 << 30
    )
    tenant_file_bytes_max: int = setting(
        1 << 30, "Bytes of all files of one tenant; above it POST answers 413.", "files", ge=1 << 10, le=1 << 40
    )
    host: str = setting("127.0.0.1", "Address to listen on.", min_length=1)
    port: int = setting(8080, "Port to listen on; 0 takes a free one.", ge=0, le=65_535)
    key_pepper: Secret | None = setting(
        None,
        "Secret that hashes keys, the same for all gateways and `deliberate keys`. Without it requests need no key, "
        "and the gateway listens on loopback only.",
        "characters",
        min_length=SECRET_CHARS_MIN,
    )
    keys_nats_url: SecretStr | None = setting(
        None,
        "NATS server with the user that may write keys, as `NATS_URL`. Without it `/keys` shows keys, and only "
        "`deliberate keys` makes and revokes them.",
    )
    session_lifetime_s: int = setting(
        43_200, "How long a browser session lasts; it never outlasts its key.", ge=60, le=2_592_000
    )
    cors_origins: Origins = setting(
        (), "Origins of pages that may send requests with credentials; exact, separated by commas. None by default."
    )
    allowed_hosts: OwnHosts = setting(
        (),
        "Names and addresses of this gateway that Host may carry, besides loopback; exact, separated by commas. "
        "Empty: any Host with keys, loopback only in development mode.",
    )
    forwarded_allow_ips: str = setting(
        "127.0.0.1",
        "Proxies that are trusted for X-Forwarded-For and -Proto: addresses and networks, separated by commas.",
    )
    tenant_requests_per_minute: int = setting(
        6_000,
        "Requests of one tenant to this process; above it the answer is 429. Not in development mode.",
        "requests",
        ge=1,
        le=10_000_000,
    )
    streams_max: int = setting(5_000, "Open SSE streams of this process.", "streams", ge=1, le=100_000)
    streams_per_client_max: int = setting(
        1_000,
        "Open SSE streams of one tenant, or without keys from one address, of this process.",
        "streams",
        ge=1,
        le=100_000,
    )
    heartbeat_s: float = setting(
        10.0,
        "Interval of comments or empty chunks that keep idle streams open through proxies.",
        env="STREAM_HEARTBEAT",
        gt=0,
        le=60,
    )
    stream_age_max_s: float = setting(
        900.0, "Age at which a stream asks its viewer to reconnect, so that draining is quick.", gt=0, le=86_400
    )
    stream_send_timeout_s: float = setting(
        25.0, "A viewer that reads nothing for this long is disconnected.", gt=0, le=600
    )
    connections_max: int = setting(
        10_000,
        "Open connections of this process, no more than its descriptors allow. A new one replaces the oldest idle one.",
        "connections",
        ge=1,
        le=1_000_000,
    )
    connections_per_client_max: int = setting(
        4_000,
        "Open connections from one address; from the proxies in FORWARDED_ALLOW_IPS, requests of one client under way.",
        "connections",
        ge=1,
        le=1_000_000,
    )
    nats_store_max: int | None = setting(
        None,
        "The `max_file_store` of nats-server; `GET /status` warns once the streams hold four fifths.",
        "bytes",
        ge=1,
    )
    webhooks: bool = setting(False, "Whether requests may name a webhook; `python -m app.webhooks` must run too.")
    planning: bool = setting(
        False, "Whether this gateway takes the plans and transitions that a planning service announces over NATS."
    )
    planning_tenants: Tenants = setting(
        ("default",),
        "Gateways start the plans of these tenants, separated by commas. A plan without a tenant gets the first one.",
    )

    def kept_s(self, tenant: str) -> int:
        """The seconds after their acceptance for which a tenant's deliberations can be read."""
        if self.database_url is None:
            return self.retention_s
        return max(self.retention_s, self.archive_retentions_s.get(tenant, self.archive_retention_s))


class StackSettings(Settings, WebhookTimeout, WorkerDrain):
    """The settings of children that `deliberate up` needs too, and those that it checks before anything starts."""

    planning: bool = setting(True, "Whether the stack's gateway takes announced plans.")
    webhook_secrets: Secrets = setting((), "The sender's.")


def declared_by(settings: Settings, roles: Mapping[str, Role]) -> StreamSettings:
    """Returns the declaration of the log that the settings and the placed roles ask for."""
    return StreamSettings(
        settings.retention_s,
        settings.stream_replicas,
        settings.ack_wait_s,
        run_by("nats", roles),
        settings.publications,
        settings.clusters,
    )


def check_exposure(settings: Settings) -> None:
    """Raises InvalidRequest for a gateway that would ask no keys of other machines."""
    if settings.key_pepper is None and not is_loopback(settings.host):
        raise InvalidRequest(
            f"HOST={settings.host}: without keys the gateway listens on loopback only. Set KEY_PEPPER to a secret of "
            "at least 32 characters, for example from `openssl rand -hex 32`, and create keys with `deliberate keys "
            "create`; or leave HOST out."
        )
