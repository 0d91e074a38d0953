"""What replicas tell of themselves over the log, read as far as it goes: another version may say more, or less."""

from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from app.api.cluster_schemas import CircuitState, ReplicaVersions, Turn

StatusType = TypeVar("StatusType", bound=BaseModel)


def without_credentials(url: str) -> str:
    """A URL without the user and password that it may carry."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class EngineStatus(BaseModel):
    """An engine, as a replica that asks it sees it; `url` without the credentials that it may carry."""

    url: str
    healthy: bool = False
    circuit: CircuitState = "closed"
    in_flight: int = 0
    models: tuple[str, ...] = ()
    version: str | None = None

    @field_validator("url")
    @classmethod
    def _bare(cls, url: str) -> str:
        return without_credentials(url)


class ReplicaStatus(BaseModel):
    """What every replica says, also one of another version: what is not there reads as nothing."""

    replica: str
    node: str | None = None
    application: str | None = None
    deployment: str | None = None
    wanted: int | None = None
    in_flight: int = 0
    versions: ReplicaVersions = Field(default_factory=ReplicaVersions)


class AgentStatus(ReplicaStatus):
    """A replica of a role."""

    role: str
    model: str | None = None
    simulated: bool = False
    concurrency: int | None = None
    counts: dict[str, int] = Field(default_factory=dict[str, int])
    engines: tuple[EngineStatus, ...] = ()


class CoordinatorStatus(ReplicaStatus):
    """A coordinator's replica."""

    slots: int | None = None
    gates: tuple[Turn, ...] = ()


def read(of: type[StatusType], replies: Iterable[dict[str, Any]]) -> tuple[tuple[StatusType, ...], tuple[int, ...]]:
    """The replies that can be read, and of each that cannot how many faults it has."""
    found: list[StatusType] = []
    faults: list[int] = []
    for reply in replies:
        try:
            found.append(of.model_validate(reply))
        except ValidationError as exc:
            faults.append(exc.error_count())
    return tuple(found), tuple(faults)
