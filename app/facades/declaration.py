"""The declaration of a façade: the closed set of what it adds to the gateway."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import APIRouter
from pydantic import BaseModel

from app.api.problems import ErrorFormat
from app.api.responses import Declared, answer


class Facade(NamedTuple):
    """One API over deliberations.

    Errors below `prefix` have the form `errors`, and `declared_errors` describes them by status. `bodies` are read by
    the routes, `answers` are in no route's `responses`: the OpenAPI document takes both. `last_data` ends each of its
    event streams, after the events.
    """

    router: APIRouter
    tag: str
    description: str
    prefix: str
    errors: ErrorFormat
    declared_errors: Callable[..., Declared]
    bodies: tuple[type[BaseModel], ...] = ()
    answers: tuple[type[BaseModel], ...] = ()
    last_data: str | None = None


def streamed(description: str, *names: str, model: type[BaseModel] | None = None, kind: str = "type") -> dict[str, Any]:
    """The declaration of an answer, or of its events: `kind` names theirs, and the protocol's reference the rest."""
    event = {"type": "object", "properties": {kind: {"type": "string"}}}
    sent = answer(description, "Location", "X-Deliberation-Id", *names, "X-Accel-Buffering", model=model)
    return {**sent, "content": {"text/event-stream": {"schema": event}}}
