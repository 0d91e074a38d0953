"""The OpenAPI documents (3.1 and 3.2) and the JSON Schema of events: made from the routes, the same on every machine.

In 3.1 the items of an event stream are its `schema`, which generators and validators of 3.1 take; 3.2 has `itemSchema`.
"""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Literal

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.access.authorization import ACCESS
from app.api.event_schemas import DeliberationEvent
from app.api.requests import CancelRequest, DeliberationRequest
from app.api.responses import EXAMPLES, HEADERS, headers, parameter, problems
from app.api.schemas import Problem
from app.openai.completions import DONE_DATA
from app.openai.requests import ChatCompletionRequest
from app.openai.routes import refusals
from app.openai.schemas import ChatCompletionChunk, OpenAIError
from app.openapi.examples import EVENT_STREAM, Exhibit, exhibits
from app.openapi.routers import ROUTERS
from app.openapi.webhooks import receiver_operation
from app.routes.login import LoginRequest
from app.routes.pages import install_pages
from app.webhooks.resources import WebhookPayload

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
    {"name": "webhooks", "description": "Events told to a URL: what became of each, and what receivers get"},
    {"name": "roles", "description": "What councils are made of, and how they deliberate"},
    {"name": "sessions", "description": "Browsers: a key for a cookie"},
    {"name": "openai", "description": "A façade: any client of OpenAI's chat completions can drive a deliberation"},
    {"name": "operations", "description": "Health, statistics, metrics"},
]
_REQUEST_ID = parameter(
    "header",
    "X-Request-Id",
    "Echoed, logged and stored with what it started, if it has at most 128 letters, digits and `._:/+=-`",
    examples=["order-4711/1"],
)
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
# What may be asked next with the id that an answer holds, by the schema of the answer.
_LINKS = {
    "Deliberation": (
        "$response.body#/id",
        (
            "get_deliberation",
            "read_deliberation_events",
            "list_deliveries",
            "cancel_deliberation",
            "delete_deliberation",
        ),
    ),
    "DeliberationPage": ("$response.body#/items/0/id", ("get_deliberation",)),
}


def _schemas() -> dict[str, Any]:
    """Schemas of what routes read and answer by themselves, by name."""
    _, taken = models_json_schema(
        [(body, "validation") for body in (DeliberationRequest, CancelRequest, ChatCompletionRequest, LoginRequest)],
        ref_template=_REFS,
    )
    answers = (Problem, DeliberationEvent, ChatCompletionChunk, OpenAIError, WebhookPayload)
    _, given = models_json_schema([(answer, "serialization") for answer in answers], ref_template=_REFS)
    schemas, answered = taken["$defs"], given["$defs"]
    both = schemas.keys() & answered.keys()
    assert not both, f"a name for what is taken and another thing that is answered: {both}"
    for reference in answered["DeliberationEvent"]["discriminator"]["mapping"].values():
        _placed(answered[reference.rpartition("/")[2]])
    for declared in (*schemas.values(), *answered.values()):
        _chosen(declared)
    return schemas | answered


def _chosen(schema: dict[str, Any]) -> None:
    """Replace a property's choice of one by that one: linters ask for two."""
    for declared in schema.get("properties", {}).values():
        if len(declared.get("anyOf", ())) == 1:
            declared.update(*declared.pop("anyOf"))


def _placed(event: dict[str, Any]) -> None:
    """Make an event's schema one that generators of code understand.

    On a page it has its cursor; said beside the reference, or by `allOf`, that would be lost in one generator or the
    other. And a property that is told to be `readOnly` gives every type that it is in a second one for writing.
    """
    event["properties"]["id"] = {"type": "string", "description": "The event's cursor; on JSON pages alone"}
    for declared in event["properties"].values():
        declared.pop("readOnly", None)


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
    names = ("Cache-Control", "Development-Mode")
    if needed is not None:
        names += ("RateLimit", "RateLimit-Policy")
    for status, declared in operation["responses"].items():
        if needed is None or status not in ("401",):
            declared["headers"] = headers(*names) | declared.get("headers", {})


def _operations(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and operation of each."""
    for place, path in made["paths"].items():
        yield from ((place, operation) for method, operation in path.items() if method != "parameters")


def _linked(operation: dict[str, Any], known: set[str]) -> None:
    """Say which operations take the id that an answer holds."""
    for declared in operation["responses"].values():
        schema = declared.get("content", {}).get("application/json", {}).get("schema", {})
        expression, targets = _LINKS.get(schema.get("$ref", "").rpartition("/")[2], ("", ()))
        links = {
            target: {"operationId": target, "parameters": {"deliberation_id": expression}}
            for target in targets
            if target in known
        }
        if links:
            declared["links"] = links


def _pages_first(operation: dict[str, Any]) -> None:
    """Put JSON before what streams: of several media types some generators of code take the first one alone."""
    for declared in operation["responses"].values():
        if EVENT_STREAM in declared.get("content", {}):
            declared["content"][EVENT_STREAM] = declared["content"].pop(EVENT_STREAM)


def _shown_parameter(declared: dict[str, Any], exhibit: Exhibit) -> None:
    """An example of a parameter; where its properties are parameters of their own, of those."""
    given: Any = exhibit.parameters.get(declared["name"])
    if declared.get("explode") and declared["schema"].get("type") == "object":
        begin = f"{declared['name']}."
        given = {name: value for name, value in exhibit.parameters.items() if name.startswith(begin)} or None
    if given is not None:
        declared.setdefault("examples", {})[exhibit.name] = {"summary": exhibit.summary, "value": given}


def _shown(operation: dict[str, Any]) -> None:
    """Put the examples in: an exchange's parts have its name."""
    for exhibit in exhibits().get(operation["operationId"], ()):
        for declared in operation.get("parameters", ()) if exhibit.status != 400 else ():
            _shown_parameter(declared, exhibit)
        if exhibit.body is not None:
            examples = operation["requestBody"]["content"]["application/json"].setdefault("examples", {})
            examples[exhibit.name] = {"summary": exhibit.summary, "value": exhibit.body}
        if exhibit.answer is not None:
            content = operation["responses"][str(exhibit.status)]["content"][exhibit.media]
            examples = content.setdefault("examples", {})
            examples[exhibit.name] = {"summary": exhibit.summary, "value": exhibit.value}


@lru_cache(maxsize=2)
def document(*, development: bool = False) -> dict[str, Any]:
    """The document of 3.1; `development` adds to its description that no keys are asked for. Not to be changed."""
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router)
    made = deepcopy(
        get_openapi(
            title=TITLE,
            version=version("deliberation-gateway"),
            openapi_version="3.1.0",
            description=_DESCRIPTION + (_DEVELOPMENT if development else ""),
            routes=app.routes,
            tags=_TAGS,
            servers=[{"url": "/"}],
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
    )
    components = made["components"]
    schemas = components["schemas"] | _schemas()
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["schemas"] = dict(sorted(schemas.items()))
    components["headers"] = HEADERS
    components["examples"] = EXAMPLES
    components["securitySchemes"] = _SECURITY
    components["parameters"] = {"X-Request-Id": _REQUEST_ID}
    made["webhooks"] = {"event": {"post": receiver_operation()}}
    known = {operation["operationId"] for _, operation in _operations(made)}
    for place, operation in _operations(made):
        _mended(operation)
        _guarded(place, operation)
        _linked(operation, known)
        _pages_first(operation)
        _shown(operation)
    for path in made["paths"].values():
        path["parameters"] = [{"$ref": "#/components/parameters/X-Request-Id"}]
    return made


def _itemized(content: dict[str, Any], operation_id: str) -> None:
    """An event stream as 3.2 tells it: the schema is that of one item, which is read off the stream's lines."""
    data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json"}
    data["contentSchema"] = content.pop("schema")
    if operation_id == "create_chat_completion":
        data = {"anyOf": [{"const": DONE_DATA}, data]}
    item: dict[str, Any] = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The cursor; absent where none can point here"},
            "event": {"type": "string", "description": "The same as `type` in the data"},
            "data": data,
            "retry": {"type": "integer", "minimum": 0, "description": "Milliseconds before reconnecting"},
        },
        "required": ["data"],
    }
    content["itemSchema"] = item
    shown = {each.name: each for each in exhibits().get(operation_id, ()) if each.media == EVENT_STREAM}
    for name, example in content.get("examples", {}).items():
        del example["value"]
        example["serializedValue"] = shown[name].answer


@lru_cache(maxsize=2)
def document_3_2(*, development: bool = False) -> dict[str, Any]:
    """The same document as OpenAPI 3.2 has it. Not to be changed."""
    made = deepcopy(document(development=development))
    made["openapi"] = "3.2.0"
    for _, operation in _operations(made):
        for declared in operation["responses"].values():
            content = declared.get("content", {}).get(EVENT_STREAM)
            if content is not None:
                _itemized(content, operation["operationId"])
    return made


@lru_cache(maxsize=4)
def _encoded(edition: Literal["3.1", "3.2"], development: bool) -> bytes:
    made = document if edition == "3.1" else document_3_2
    return json.dumps(made(development=development), ensure_ascii=False).encode()


def install(app: FastAPI, *, development: bool) -> None:
    """Serve the documents and their page. They are made when first asked for, in a thread: streams go on meanwhile."""

    def served(edition: Literal["3.1", "3.2"]) -> Callable[[], Response]:
        return lambda: Response(_encoded(edition, development), media_type="application/json")

    app.add_api_route("/openapi.json", served("3.1"), include_in_schema=False)
    app.add_api_route("/openapi-3.2.json", served("3.2"), include_in_schema=False)
    install_pages(app, title=TITLE)


def events_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of every event that a stream can carry."""
    schema = DeliberationEvent.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
