"""Roles as roles.yaml declares them: persona, model, engines, sampling, replica bounds and concurrency.

Reading the file is an edge's work; here its parsed content is checked.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from app.deliberation.errors import InvalidRequest
from app.deliberation.specification import Sampling

ROLE_PATTERN = r"^[A-Z][A-Z0-9_-]{0,31}$"


def engine_base(given: str) -> str:
    """The base URL of an engine, whether or not it was given with `/v1`, as OpenAI's clients take it; ValueError."""
    url = given.strip()
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"an engine is an http(s) URL, not {given!r}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def without_credentials(url: str) -> str:
    """A URL without user and password."""
    return re.sub(r"(?<=://)[^/?#]*@", "", url, count=1)


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Replicas(_Declared):
    """Bounds within which Ray Serve scales the role's deployment."""

    min: int = Field(default=1, ge=1, le=1_000)
    max: int = Field(default=1, ge=1, le=1_000)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max, which is {self.max}")
        return self


class Role(_Declared):
    """One role: the persona, model and engines of its agents, and the bounds of its replicas."""

    persona: str = Field(
        min_length=1, max_length=4_000, description="The agent's persona; it ends every prompt of the role"
    )
    model: str | None = Field(default=None, description="Model name; the first that the engine serves when absent")
    engines: tuple[Annotated[str, AfterValidator(engine_base)], ...] = Field(
        default=(), description="Base URLs of engines; the default ones when empty"
    )
    sampling: Sampling = Field(default=Sampling(), description="Used where a request names none")
    replicas: Replicas = Replicas()
    queue_max: int | None = Field(
        default=None,
        ge=1,
        description="Deliberations accepted and unfinished that need the role; above it POST answers 429",
    )
    hedge: bool = Field(
        default=False, description="Ask a second engine when the first is slower than 95 % of like calls (2 % of calls)"
    )
    concurrency: int = Field(default=1_024, ge=1, le=10_000, description="Calls in flight to engines, per replica")

    @field_validator("sampling", mode="before")
    @classmethod
    def _known(cls, sampling: Sampling | dict[str, object]) -> Sampling | dict[str, object]:
        # A Sampling drops what it does not know, because facts may come from newer writers. A file's typo is a fault.
        if isinstance(sampling, dict) and (unknown := sampling.keys() - Sampling.model_fields.keys()):
            raise ValueError(f"unknown: {', '.join(sorted(map(str, unknown)))}")
        return sampling


class RoleTable(_Declared):
    """All roles by name."""

    roles: dict[str, Role] = Field(min_length=1)

    @field_validator("roles")
    @classmethod
    def _named(cls, roles: dict[str, Role]) -> dict[str, Role]:
        for name in roles:
            if re.fullmatch(ROLE_PATTERN, name) is None:
                raise ValueError(f"a role's name matches {ROLE_PATTERN}, not {name!r}")
        return roles


def parse_roles(content: object) -> Mapping[str, Role]:
    """Roles by name from the parsed content of roles.yaml; raises InvalidRequest naming the first fault."""
    try:
        return RoleTable.model_validate(content).roles
    except ValidationError as exc:
        first: Any = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "roles.yaml"
        raise InvalidRequest(f"roles.yaml: {where}: {first['msg']}", where) from exc
