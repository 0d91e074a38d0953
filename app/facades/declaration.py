"""The declaration of a façade: the closed set of its contributions, which the gateway takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from app.api.problems import ErrorFormat
from app.api.responses import Declared


@dataclass(frozen=True, slots=True)
class Facade:
    """One API over deliberations.

    Errors below `prefix` have the form `errors`, and `declared_errors` describes them by status. `bodies` are read by
    the routes, `answers` are in no route's `responses`: the OpenAPI document takes both. `headers` are declared, and
    shown to pages of other origins. `last_data` ends each of its event streams, after the events.
    """

    router: APIRouter
    tag: str
    description: str
    prefix: str
    errors: ErrorFormat
    declared_errors: Callable[..., Declared]
    bodies: tuple[type[BaseModel], ...] = ()
    answers: tuple[type[BaseModel], ...] = ()
    headers: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    last_data: str | None = None
