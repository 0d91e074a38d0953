"""The arguments of the application, of workers and of coordinators without Ray."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode, SettingsConfigDict

from app.deliberation.roles import EngineSpec, Role, engine_base
from app.deliberation.specification import Token
from app.process_settings import (
    LogLevel,
    LogServer,
    PublicationRules,
    RoleRules,
    WorkerDrain,
    WorkspaceRules,
    listed,
    setting,
)

EngineUrls = Annotated[tuple[Annotated[str, AfterValidator(engine_base)], ...], NoDecode, BeforeValidator(listed)]
ClusterLabels = Annotated[tuple[Token, ...], NoDecode, BeforeValidator(listed)]
RoleNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)]


class ApplicationArgs(LogServer, RoleRules, PublicationRules, WorkspaceRules):
    # A variable that is set to nothing counts as absent. Subclasses name this class last, to inherit it.
    model_config = SettingsConfigDict(extra="forbid", env_ignore_empty=True)

    engine_urls: EngineUrls = setting(
        (),
        "Base URLs of OpenAI-compatible engines, separated by commas, for roles that name none; their key is in "
        "`VLLM_API_KEY`.",
        env="VLLM_URL",
    )
    model: str | None = setting(
        None, "Model of roles that name none; the first that the engine serves if unset.", env="VLLM_MODEL"
    )
    coordinator_replicas: int = setting(
        1, "Coordinator replicas. While one is replaced, another continues.", "replicas", ge=1, le=64
    )
    coordinator_slots: int = setting(
        2_048,
        "Deliberations that a coordinator holds at once, in equal parts for those without a label and each of its "
        "labels.",
        "deliberations",
        ge=1,
        le=10_000,
    )
    coordinator_clusters: ClusterLabels = setting(
        (),
        "Labels of CLUSTERS, separated by commas: these coordinators take the deliberations with them, and also those "
        "without a label.",
    )
    stream_deltas: bool = setting(
        True,
        "Whether engines stream their answers. With `false` a hung engine is detected only by the call's deadline, not "
        "after 20 seconds without a token.",
    )
    engine_away_timeout_s: float = setting(
        30.0,
        "How long a call waits while it can connect to none of its engines; then it fails as `engine_unavailable`. "
        "With a short deadline it gives up after four fifths of the time left.",
        ge=1,
        le=3_600,
    )
    workspace_dir: Path | None = setting(
        None,
        "Directory of the copies of repositories, one per node, up to 2 GB; a folder for temporary files if unset.",
    )


class CoordinatorArgs(LogLevel, WorkerDrain, ApplicationArgs):
    coordinator_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    coordinator_port: int = setting(8084, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)


class WorkerArgs(LogLevel, WorkerDrain, ApplicationArgs):
    worker_roles: RoleNames = setting((), "Roles to serve, separated by commas; those that run over NATS if unset.")
    worker_concurrency: int | None = setting(
        None, "Calls of each role in flight to engines; that of the role if unset.", "calls", ge=1, le=10_000
    )
    worker_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    worker_port: int = setting(8085, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)


def with_engines(role: Role, engines: tuple[EngineSpec, ...], model: str | None) -> Role:
    first = tuple(spec.model_copy(update={"model": spec.model or model}) for spec in role.engines or engines)
    second = tuple(spec.model_copy(update={"model": spec.model or model}) for spec in role.fallback)
    return role.model_copy(update={"engines": first, "fallback": second})
