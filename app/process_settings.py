"""The declaration of settings, and the settings that several processes share."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, AliasGenerator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import (
    DEFAULT_KEY_VARIABLE,
    AgentRunner,
    EngineSpec,
    Role,
    api_key,
    engines_of,
    parse_roles,
)
from app.deliberation.specification import Token
from app.log.signature import SECRET_CHARS_MIN
from app.log.stream_settings import (
    ACK_WAIT_S_MAX,
    ACK_WAIT_S_MIN,
    DAY_S,
    DEFAULT_PUBLICATIONS,
    REPLICAS_MAX,
    RETENTION_S_MAX,
    RETENTION_S_MIN,
    Publication,
)
from app.workspace.repositories import AllowedRepositories, checked_prefix

PACKAGED_ROLES = Path(__file__).with_name("roles.yaml")


def variable_of(name: str) -> str:
    return name.removesuffix("_s").upper()


def setting(default: Any, description: str, unit: str = "", *, env: str | None = None, **bounds: Any) -> Any:  # noqa: ANN401 -- a field
    """A documented setting, read from the variable `env` or `variable_of` its name; one in `_s` is in seconds."""
    return Field(default, validation_alias=env, description=description, json_schema_extra={"unit": unit}, **bounds)


def _in_lower_case(text: object) -> object:
    return text.lower() if isinstance(text, str) else text


def listed(text: object) -> object:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if isinstance(text, str) else text


def _long_enough(secret: SecretStr) -> SecretStr:
    if len(secret) < SECRET_CHARS_MIN:
        fault = f"It has {len(secret)} characters, and needs {SECRET_CHARS_MIN} or more"
        raise ValueError(f"{fault}. Set it to what `openssl rand -hex 32` writes.")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_long_enough)]
Secrets = Annotated[tuple[Secret, ...], NoDecode, BeforeValidator(listed)]


class ProcessSettings(BaseSettings):
    # Errors leave the values out: some settings are secrets.
    model_config = SettingsConfigDict(
        alias_generator=AliasGenerator(validation_alias=variable_of),
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        hide_input_in_errors=True,
    )


class LogServer(ProcessSettings):
    nats_url: str = setting(
        "nats://127.0.0.1:4222", "Server that holds the log, or `file:///path` of a file with its URL.", min_length=1
    )


class LogLevel(ProcessSettings):
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_in_lower_case)] = setting(
        "info", "Lowest severity that is logged; tasks and answers are never logged above debug."
    )


class LogAccess(LogServer, LogLevel):
    log_key_file: Path | None = setting(
        None,
        "File with the secrets that sign records, the same for every part and `deliberate keys`. At least 32 "
        "characters per line, newest first. Without it every record is accepted.",
    )


def read_text(path: Path | str) -> str:
    return Path(path).read_text(encoding="utf-8-sig")


class RolesFile(ProcessSettings):
    roles_file: Path | None = setting(
        None, "Roles of the councils, the same for every part; the packaged ones if unset."
    )


def read_roles(path: Path | None) -> Mapping[str, Role]:
    """The roles of a YAML file, by default the packaged one; raises InvalidRequest naming the fault."""
    path = path or PACKAGED_ROLES
    try:
        return parse_roles(yaml.safe_load(read_text(path)), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        fault = getattr(error, "strerror", None) or error
        fault = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else fault
        remedy = "correct the file, or name a YAML file of roles by --roles or ROLES_FILE"
        raise InvalidRequest(f"{path}: {fault}", "roles_file", remedy) from error


def load_roles(path: Path | None) -> Mapping[str, Role]:
    """Returns the roles as `read_roles` does. Reads each engine's key, and names a missing one before a start."""
    roles = read_roles(path)
    for engine in engines_of(roles):
        api_key(engine, os.environ, read_text, str(path or PACKAGED_ROLES))
    return roles


def default_engines(urls: Sequence[str]) -> tuple[EngineSpec, ...]:
    """The engines of roles that name none; raises InvalidRequest when VLLM_API_KEY is set and no key."""
    variable = DEFAULT_KEY_VARIABLE if os.environ.get(DEFAULT_KEY_VARIABLE) else None
    engines = tuple(EngineSpec(url=url, api_key_env=variable) for url in urls)
    for engine in engines:
        api_key(engine, os.environ, read_text, DEFAULT_KEY_VARIABLE)
    return engines


class RoleRules(RolesFile):
    agents: AgentRunner = setting(
        "ray",
        "Runner of the agents of roles that name none: replicas in Ray Serve, workers that pull from NATS, or the "
        "coordinator's own process. The same for every part; the workers' queues are declared with the streams.",
    )


def _pairs(text: object) -> object:
    """The pairs of `left=right,…`, split at the first `=`; the fields' types say which are faults."""
    if not isinstance(text, str):
        return text
    return tuple(tuple(map(str.strip, pair.partition("=")[::2])) for pair in text.split(",") if pair.strip())


def _files_by_url(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    for prefix, path in pairs:
        if not prefix.startswith("http") or not os.path.isabs(path):
            raise ValueError(f"{prefix}={path} is no URL with an absolute path. Write https://host/path=/path/of/file.")
    return pairs


Prefix = Annotated[str, AfterValidator(checked_prefix)]
Prefixes = Annotated[tuple[Prefix, ...], NoDecode, BeforeValidator(listed)]
TenantPrefixes = Annotated[tuple[tuple[Token, Prefix], ...], NoDecode, BeforeValidator(_pairs)]
FilesByPrefix = Annotated[
    tuple[tuple[Prefix, str], ...], NoDecode, BeforeValidator(_pairs), AfterValidator(_files_by_url)
]


class WorkspaceRules(ProcessSettings):
    workspaces: Prefixes = setting(
        (),
        "Repositories that requests may name as their workspace: prefixes of URLs and absolute paths, separated by "
        "commas. The same for every part; without it repositories are refused.",
    )
    tenant_workspaces: TenantPrefixes = setting(
        (),
        "Prefixes of repositories for single tenants, as `acme=https://host/acme,globex=/srv/globex`; no other tenant "
        "may name a repository below, also where WORKSPACES has a shorter prefix. The same for every part.",
    )
    workspace_headers_files: FilesByPrefix = setting(
        (),
        "Files with headers for private repositories, as `https://host/acme=/run/secrets/acme`: a `Name: value` on "
        "each line, read at each use and sent below that URL alone. The same for every part.",
    )

    @property
    def repositories(self) -> AllowedRepositories:
        return AllowedRepositories(self.workspaces, self.tenant_workspaces, dict(self.workspace_headers_files))


class LogRetention(ProcessSettings):
    retention_s: int = setting(
        DAY_S,
        "How long facts are kept after acceptance; the maximum age of stream DELIBERATIONS. At least the longest "
        "deadline, so that no deliberation loses its acceptance before its end.",
        env="DELIBERATION_CLEANUP",
        ge=RETENTION_S_MIN,
        le=RETENTION_S_MAX,
    )


class PublicationRules(ProcessSettings):
    publications: Annotated[tuple[Publication, ...], NoDecode, BeforeValidator(listed)] = setting(
        DEFAULT_PUBLICATIONS,
        "Messages for other services, these alone, separated by commas: `announcements` of ends, `responses` and "
        "`results` of calls, `texts` as they grow; set to nothing for none. The same for every part.",
        env="PUBLISH",
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_nothing(cls, values: dict[str, Any]) -> dict[str, Any]:
        """An empty PUBLISH selects no message, also in a process that treats other empty variables as absent."""
        named = values.keys() & {"PUBLISH", "publications"} or os.environ.get("PUBLISH") != ""
        return values if named else {**values, "PUBLISH": ""}


class ClusterRules(ProcessSettings):
    clusters: Annotated[tuple[Token, ...], NoDecode, BeforeValidator(listed)] = setting(
        (),
        "Labels of clusters that a request may name as its `cluster`, separated by commas. The same for every part; "
        "each label's queue is declared with the streams.",
    )


class StreamRules(LogRetention, PublicationRules, ClusterRules):
    stream_replicas: int = setting(
        1, "Servers that hold each stream, as declared with `deliberate streams apply`.", ge=1, le=REPLICAS_MAX
    )
    ack_wait_s: float = setting(
        ACK_WAIT_S_MIN,
        "Silence of a coordinator or worker after which another takes over, as declared with the streams. Its "
        "heartbeat comes every two seconds.",
        ge=ACK_WAIT_S_MIN,
        le=ACK_WAIT_S_MAX,
    )


class GatewayDrain(ProcessSettings):
    drain_delay_s: float = setting(
        0.0, "After a stop signal, how long /readyz reports draining before the socket closes.", ge=0, le=600
    )
    drain_timeout_s: int = setting(10, "How long open requests may take to finish after that.", ge=0, le=600)


class WebhookTimeout(ProcessSettings):
    webhook_timeout_s: float = setting(15.0, "Maximum duration of one attempt.", gt=0, le=60)


class WorkerDrain(ProcessSettings):
    worker_drain_s: float = setting(
        5.0,
        "How long the calls of a worker, or of a coordinator with agents of its own, may take to finish after a stop "
        "signal; the others are made again.",
        ge=0,
        le=3_600,
    )
