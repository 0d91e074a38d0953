"""The OpenAPI document (3.1) and the JSON Schema of events: made from the routes, and the same on every machine."""

from functools import lru_cache
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.answers import HEADERS, parameter, problems
from app.chat_requests import ChatCompletionRequest
from app.chat_schemas import ChatCompletionChunk, OpenAIError
from app.requests import CancelRequest, DeliberationRequest
from app.routes import ROUTERS
from app.schemas import DeliberationEvent, Problem

TITLE = "Deliberation Gateway"
_DESCRIPTION = """\
Councils of LLM agents: post a task, read the verdict, or watch it happen.

A deliberation that has been answered with 202 is stored durably and ends exactly once. Errors are problem documents
(RFC 9457) with a stable `code`; unknown fields and parameters are refused. Event types may be added: a client should
pass over those it does not know."""
_TAGS = [
    {"name": "deliberations", "description": "Accept, read, list, stop"},
    {"name": "events", "description": "Watch a deliberation: SSE, or pages of JSON, over one cursor"},
    {"name": "roles", "description": "What councils are made of, and how they deliberate"},
    {"name": "openai", "description": "A façade: any client of OpenAI's chat completions can drive a deliberation"},
    {"name": "operations", "description": "Health, statistics, metrics"},
]
_REQUEST_ID = parameter("header", "X-Request-Id", "Echoed, logged and stored with what it started", maxLength=128)
_REFS = "#/components/schemas/{model}"


def _schemas() -> dict[str, Any]:
    """Schemas of what routes read and answer by themselves, by name."""
    _, taken = models_json_schema(
        [(body, "validation") for body in (DeliberationRequest, CancelRequest, ChatCompletionRequest)],
        ref_template=_REFS,
    )
    _, given = models_json_schema(
        [(answer, "serialization") for answer in (Problem, DeliberationEvent, ChatCompletionChunk, OpenAIError)],
        ref_template=_REFS,
    )
    schemas, answered = taken["$defs"], given["$defs"]
    both = schemas.keys() & answered.keys()
    assert not both, f"a name for what is taken and another thing that is answered: {both}"
    return schemas | answered


def _mended(operation: dict[str, Any]) -> None:
    """Replace the framework's own 422 by a problem document; a path alone cannot be invalid, only unknown."""
    invalid = operation["responses"].get("422")
    if invalid is None or "application/json" not in invalid.get("content", {}):
        return
    if all(declared["in"] == "path" for declared in operation.get("parameters", [])):
        del operation["responses"]["422"]
    else:
        operation["responses"]["422"] = problems(422)[422]


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The OpenAPI document. Callers must not change it."""
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router)
    made = get_openapi(
        title=TITLE,
        version=version("deliberation-gateway"),
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=app.routes,
        tags=_TAGS,
        servers=[{"url": "/"}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    components = made["components"]
    schemas = components["schemas"] | _schemas()
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["schemas"] = dict(sorted(schemas.items()))
    components["headers"] = HEADERS
    components["parameters"] = {"X-Request-Id": _REQUEST_ID}
    for path in made["paths"].values():
        for operation in path.values():
            _mended(operation)
        path["parameters"] = [{"$ref": "#/components/parameters/X-Request-Id"}]
    return made


def events_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of every event that a stream can carry."""
    schema = DeliberationEvent.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
