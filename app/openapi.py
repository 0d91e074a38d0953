"""The OpenAPI document (3.1) and the JSON Schema of events: made from the routes, and the same on every machine."""

from functools import lru_cache
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.answers import HEADERS, headers, parameter, problems
from app.chat import refusals
from app.chat_requests import ChatCompletionRequest
from app.chat_schemas import ChatCompletionChunk, OpenAIError
from app.login import LoginRequest
from app.requests import CancelRequest, DeliberationRequest
from app.routes import ROUTERS
from app.schemas import DeliberationEvent, Problem
from app.tenants import ACCESS

TITLE = "Deliberation Gateway"
_DESCRIPTION = """\
Councils of LLM agents: post a task, read the verdict, or watch it happen.

A deliberation that has been answered with 202 is stored durably and ends exactly once. Errors are problem documents
(RFC 9457) with a stable `code`; unknown fields and parameters are refused. Event types may be added: a client should
pass over those it does not know.

Every request but those for health and login needs an API key as bearer token, or the cookie of a browser's session; a
key belongs to one tenant and has scopes, which each operation names. Others' deliberations are answered as those that
do not exist. Never put a key into a URL."""
_DEVELOPMENT = """

**Development mode: this gateway asks for no keys, and listens on loopback only.** Set `KEY_PEPPER` to have it ask."""
_TAGS = [
    {"name": "deliberations", "description": "Accept, read, list, stop"},
    {"name": "events", "description": "Watch a deliberation: SSE, or pages of JSON, over one cursor"},
    {"name": "roles", "description": "What councils are made of, and how they deliberate"},
    {"name": "sessions", "description": "Browsers: a key for a cookie"},
    {"name": "openai", "description": "A façade: any client of OpenAI's chat completions can drive a deliberation"},
    {"name": "operations", "description": "Health, statistics, metrics"},
]
_REQUEST_ID = parameter("header", "X-Request-Id", "Echoed, logged and stored with what it started", maxLength=128)
_SECURITY = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "dlb_<id>_<secret>",
        "description": "An API key, made by `deliberate keys create`. Scopes: `submit`, `read`, `admin`.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "deliberate",
        "description": "A browser's session, begun by `POST /login`; over https the cookie is `__Host-deliberate`. "
        "Requests that change something must come from a page of this site, or of an origin in CORS_ORIGINS.",
    },
}
_REFS = "#/components/schemas/{model}"


def _schemas() -> dict[str, Any]:
    """Schemas of what routes read and answer by themselves, by name."""
    _, taken = models_json_schema(
        [(body, "validation") for body in (DeliberationRequest, CancelRequest, ChatCompletionRequest, LoginRequest)],
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


def _guarded(path: str, operation: dict[str, Any]) -> None:
    """Declare what the operation needs, and the refusals and headers that any answer may have."""
    needed = ACCESS[operation["operationId"]]
    statuses = (400,) if needed is None else (400, 401, 429) if needed == "key" else (400, 401, 403, 429)
    refused = refusals(*statuses) if path.startswith("/v1/") else problems(*statuses)
    responses = {**{str(status): declared for status, declared in refused.items()}, **operation["responses"]}
    operation["responses"] = dict(sorted(responses.items()))
    roles = [] if needed in (None, "key") else [needed]
    operation["security"] = [] if needed is None else [{scheme: roles} for scheme in _SECURITY]
    if needed is not None:
        told = "any key" if needed == "key" else f"the scope `{needed}`"
        operation["description"] = f"{operation['description']}\n\nNeeds {told}."
    names = ("Development-Mode",) if needed is None else ("Development-Mode", "RateLimit", "RateLimit-Policy")
    for status, declared in operation["responses"].items():
        if needed is None or status not in ("401",):
            declared["headers"] = headers(*names) | declared.get("headers", {})


@lru_cache(maxsize=2)
def document(*, development: bool = False) -> dict[str, Any]:
    """The OpenAPI document; `development` adds to its description that no keys are asked for. Not to be changed."""
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router)
    made = get_openapi(
        title=TITLE,
        version=version("deliberation-gateway"),
        openapi_version="3.1.0",
        description=_DESCRIPTION + (_DEVELOPMENT if development else ""),
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
    components["securitySchemes"] = _SECURITY
    components["parameters"] = {"X-Request-Id": _REQUEST_ID}
    for place, path in made["paths"].items():
        for operation in path.values():
            _mended(operation)
            _guarded(place, operation)
        path["parameters"] = [{"$ref": "#/components/parameters/X-Request-Id"}]
    return made


def events_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of every event that a stream can carry."""
    schema = DeliberationEvent.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
