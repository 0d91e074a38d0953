"""The arguments of the application, of workers and of coordinators without Ray, and what they read from files."""

import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import (
    DEFAULT_KEY_VARIABLE,
    AgentRunner,
    EngineSpec,
    Role,
    api_key,
    engine_base,
    engines_of,
    parse_roles,
)
from serve_deployments.engine.keys import read_text

LogLevel = Literal["debug", "info", "warning", "error"]


def _setting(variable: str, default: Any, description: str, **bounds: Any) -> Any:  # noqa: ANN401 -- pydantic validates it
    """A field with the default of an environment variable, which its description names."""
    return Field(
        default_factory=lambda: os.environ.get(variable) or default, description=f"{description} ({variable})", **bounds
    )


class ApplicationArgs(BaseModel):
    """Arguments of the application; a field's default is the environment variable that its description names."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    nats_url: str = _setting("NATS_URL", "nats://127.0.0.1:4222", "The log, or `file:///path` of a file with its URL")
    engine_urls: list[Annotated[str, AfterValidator(engine_base)]] = Field(
        default_factory=lambda: [url for url in os.environ.get("VLLM_URL", "").split(",") if url.strip()],
        description="Base URLs of the engines of roles that name none (VLLM_URL, comma-separated); their key is in "
        "VLLM_API_KEY",
    )
    model: str | None = _setting(
        "VLLM_MODEL", None, "Model of roles that name none; the first that the engine serves when absent"
    )
    roles_file: str | None = _setting("ROLES_FILE", None, "Path of roles.yaml; the packaged one when absent")
    agents: AgentRunner = _setting("AGENTS", "ray", "What runs the agents of roles that do not say it: `ray` or `nats`")
    coordinator_replicas: int = _setting("COORDINATOR_REPLICAS", 1, "Coordinator replicas", ge=1, le=64)
    coordinator_slots: int = _setting(
        "COORDINATOR_SLOTS", 2_048, "Deliberations that a coordinator holds at once", ge=1, le=10_000
    )
    stream_deltas: bool = _setting("STREAM_DELTAS", True, "Whether text is streamed while it grows")
    engine_away_timeout_s: float = _setting(
        "ENGINE_AWAY_TIMEOUT",
        30.0,
        "Seconds that a call waits while it can connect to no engine",
        ge=1,
        le=3_600,
    )


class ProcessArgs(ApplicationArgs):
    """Arguments of a process without Ray."""

    log_level: LogLevel = _setting("LOG_LEVEL", "info", "Least severity of logged events")


class CoordinatorArgs(ProcessArgs):
    """Arguments of `python -m serve_deployments.coordinator`."""

    coordinator_host: str = _setting("COORDINATOR_HOST", "127.0.0.1", "Address of /healthz", min_length=1)
    coordinator_port: int = _setting("COORDINATOR_PORT", 8084, "Port of /healthz; 0 takes a free one", ge=0, le=65_535)


class WorkerArgs(ProcessArgs):
    """Arguments of `deliberate worker`; without `roles` it serves those that run over NATS."""

    roles: tuple[str, ...] = ()
    concurrency: int | None = Field(default=None, ge=1, le=10_000)
    worker_host: str = _setting("WORKER_HOST", "127.0.0.1", "Address of /healthz", min_length=1)
    worker_port: int = _setting("WORKER_PORT", 8085, "Port of /healthz; 0 takes a free one", ge=0, le=65_535)
    worker_drain_s: float = _setting(
        "WORKER_DRAIN", 5.0, "Seconds that calls may take to finish after a stop signal", ge=0, le=3_600
    )


def load_roles(path: str | None) -> Mapping[str, Role]:
    """The roles of a file, or the packaged ones; raises InvalidRequest, which names the fault.

    Every key of their engines is read once, so that the fault of a missing one is named before anything starts.
    """
    source = Path(path) if path else files("app") / "roles.yaml"
    try:
        roles = parse_roles(yaml.safe_load(source.read_text(encoding="utf-8")), str(source))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{source} cannot be read as YAML: {error}", "roles_file") from error
    for engine in engines_of(roles):
        api_key(engine, os.environ, read_text, str(source))
    return roles


def default_engines(urls: Sequence[str]) -> tuple[EngineSpec, ...]:
    """The engines of roles that name none; raises InvalidRequest when VLLM_API_KEY is set and no key."""
    variable = DEFAULT_KEY_VARIABLE if os.environ.get(DEFAULT_KEY_VARIABLE) else None
    engines = tuple(EngineSpec(url=url, api_key_env=variable) for url in urls)
    for engine in engines:
        api_key(engine, os.environ, read_text, DEFAULT_KEY_VARIABLE)
    return engines


def with_engines(role: Role, engines: tuple[EngineSpec, ...], model: str | None) -> Role:
    """The role with its engines; `model` is for those of them that name none."""
    first = tuple(spec.model_copy(update={"model": spec.model or model}) for spec in role.engines or engines)
    second = tuple(spec.model_copy(update={"model": spec.model or model}) for spec in role.fallback)
    return role.model_copy(update={"engines": first, "fallback": second})
