"""The OpenAPI documents (3.1 and 3.2) and the JSON Schema of events, generated from the routes.

The edition 3.1 declares the items of an event stream as its `schema`, as generators expect; 3.2 has `itemSchema`.
"""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from importlib.metadata import version
from threading import Lock
from typing import Any, Literal

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.access.authorization import ACCESS
from app.api.event_schemas import DeliberationEvent
from app.api.requests import CancelRequest, DeliberationRequest
from app.api.responses import EXAMPLES, HEADERS, headers, parameter, problems
from app.api.schemas import Problem
from app.facades import FACADES
from app.facades.declaration import Facade
from app.facades.mcp import routes as mcp
from app.openapi.examples import DELIVERY, EVENT_STREAM, composed
from app.planning import routes as plans
from app.planning.events import PlanRequest
from app.routes import deliberations, events, files, keys, login, operations, roles, statistics
from app.routes.keys import KeyRequest
from app.routes.login import LoginRequest
from app.routes.pages import install_pages
from app.webhooks import routes as webhooks
from app.webhooks.resources import WebhookPayload

# Every router of the gateway, in the order of the document.
ROUTERS = (
    deliberations.router,
    files.router,
    plans.router,
    events.router,
    webhooks.router,
    roles.router,
    login.router,
    keys.router,
    operations.router,
    statistics.router,
    *(facade.router for facade in FACADES),
    mcp.router,
)
TITLE = "Deliberation Gateway"
_DESCRIPTION = """\
Councils of LLM agents: post a task, read the verdict, or watch the deliberation.

After the answer 202 a deliberation is stored durably and ends exactly once. Errors are problem documents (RFC 9457)
with a stable `code`; unknown fields and parameters are refused. Event types may be added: clients must ignore unknown
ones.

Every request except health checks and login needs an API key as bearer token, or a browser session's cookie. A key
belongs to one tenant and has scopes; each operation names the scope that it needs. Deliberations of other tenants
answer 404. Never put a key into a URL."""
_DEVELOPMENT = """

**Development mode: this gateway asks for no keys, and listens on loopback only.** Set `KEY_PEPPER` to require keys."""
_TAGS = [
    {"name": "deliberations", "description": "Submit, read, list, cancel"},
    {"name": "files", "description": "Texts, documents and pictures, which deliberations name as evidence"},
    {"name": "plans", "description": "Approved plans: one deliberation per role"},
    {"name": "events", "description": "Watch deliberations: SSE or pages of JSON, with the same cursors"},
    {"name": "webhooks", "description": "Events posted to a URL: their deliveries"},
    {"name": "receivers", "description": "The request to receivers of events"},
    {"name": "roles", "description": "Roles of agents, and strategies of councils"},
    {"name": "keys", "description": "API keys of the tenant"},
    {"name": "sessions", "description": "Browser sessions: exchange a key for a cookie"},
    *(
        {"name": tag, "description": text}
        for tag, text in {facade.tag: facade.description for facade in FACADES}.items()
    ),
    {"name": "operations", "description": "Health, statistics, metrics"},
]
_REQUEST_ID = parameter(
    "header",
    "X-Request-Id",
    "Echoed, logged and stored with the deliberation; at most 128 letters, digits and `._:/+=-`",
    examples=["order-4711/1"],
)
_SECURITY = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "dlb_<id>_<secret>",
        "description": "An API key from `deliberate keys create`. Scopes: `submit`, `read`, `admin`.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "deliberate",
        "description": "A browser session from `POST /login`; over https the cookie is `__Host-deliberate`. "
        "Unsafe requests must come from a page of this site, or of an origin in CORS_ORIGINS.",
    },
}
_BODIES = (
    *(DeliberationRequest, CancelRequest, PlanRequest, LoginRequest, KeyRequest),
    *(body for facade in FACADES for body in facade.bodies),
)
_REFS = "#/components/schemas/{model}"
# Operations that take the id in an answer, and that id, by the answer's schema.
_LINKS = {"DeliberationPage": ("$response.body#/items/0/id", ("get_deliberation",))}
_SIGNATURE = "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="


def _schemas() -> dict[str, Any]:
    _, taken = models_json_schema(
        [(body, "validation") for body in _BODIES],
        ref_template=_REFS,
    )
    answers = (Problem, DeliberationEvent, WebhookPayload, *(answer for facade in FACADES for answer in facade.answers))
    _, answer_schemas = models_json_schema([(answer, "serialization") for answer in answers], ref_template=_REFS)
    schemas, answered = taken["$defs"], answer_schemas["$defs"]
    both = schemas.keys() & answered.keys()
    assert not both, f"names of both a request and an answer: {both}"
    for reference in answered["DeliberationEvent"]["discriminator"]["mapping"].values():
        _add_cursor(answered[reference.rpartition("/")[2]])
    for declared in (*schemas.values(), *answered.values()):
        _unwrap_single_choices(declared)
    return schemas | answered


def _unwrap_single_choices(schema: dict[str, Any]) -> None:
    """Replace each `anyOf` with one entry by that entry, as linters require."""
    for declared in schema.get("properties", {}).values():
        if len(declared.get("anyOf", ())) == 1:
            declared.update(*declared.pop("anyOf"))


def _add_cursor(event: dict[str, Any]) -> None:
    """Add the cursor of JSON pages to an event's schema, and drop `readOnly`.

    Code generators lose a cursor declared beside the reference or by `allOf`, and double each type with a `readOnly`
    property.
    """
    event["properties"]["id"] = {"type": "string", "description": "The event's cursor; only on JSON pages"}
    for declared in event["properties"].values():
        declared.pop("readOnly", None)


def _facade_of(path: str) -> Facade | None:
    return next((facade for facade in FACADES if path.startswith(facade.prefix)), None)


def _replace_validation_error(path: str, operation: dict[str, Any]) -> None:
    """Replace FastAPI's 422 by a problem document; remove it if all parameters are in the path, and from façades."""
    invalid = operation["responses"].get("422")
    if invalid is None or "application/json" not in invalid.get("content", {}):
        return
    if _facade_of(path) or all(declared["in"] == "path" for declared in operation.get("parameters", [])):
        del operation["responses"]["422"]
    else:
        operation["responses"]["422"] = problems(422)[422]


def _declare_access(path: str, operation: dict[str, Any]) -> None:
    name = operation["operationId"]
    assert name in ACCESS, f"ACCESS in app/access/authorization.py lacks the operation {name}: add its scopes there"
    needed = ACCESS[name]
    statuses = (400,) if needed is None else (400, 401, 403, 429) if needed else (400, 401, 429)
    facade = _facade_of(path)
    errors = problems(*statuses) if facade is None else facade.declared_errors(*statuses)
    responses = {**{str(status): declared for status, declared in errors.items()}, **operation["responses"]}
    operation["responses"] = dict(sorted(responses.items()))
    operation["security"] = [] if needed is None else [{scheme: list(needed)} for scheme in _SECURITY]
    if needed is not None:
        named = " and ".join(f"`{scope}`" for scope in needed)
        credential = f"the scope{'s' if len(needed) > 1 else ''} {named}" if needed else "any key"
        operation["description"] = f"{operation['description']}\n\nNeeds {credential}."
    names = ("Cache-Control", "Development-Mode")
    if needed is not None:
        names += ("RateLimit", "RateLimit-Policy")
    for status, declared in operation["responses"].items():
        if needed is None or status not in ("401",):
            declared["headers"] = headers(*names) | declared.get("headers", {})


def _operations(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in made["paths"].items():
        yield from ((path, operation) for method, operation in methods.items() if method != "parameters")


def _add_links(operation: dict[str, Any], known: set[str]) -> None:
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


def _json_first(operation: dict[str, Any]) -> None:
    """Put JSON before event streams: some code generators read only the first media type."""
    for declared in operation["responses"].values():
        if EVENT_STREAM in declared.get("content", {}):
            declared["content"][EVENT_STREAM] = declared["content"].pop(EVENT_STREAM)


def _add_examples(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    for declared in operation.get("parameters", ()):
        if declared.get("required"):
            declared["example"] = composed(declared["schema"], schemas, declared["name"], operation["operationId"])
    for content in operation.get("requestBody", {}).get("content", {}).values():
        # A form of parts has none.
        examples = schemas.get(content["schema"].get("$ref", "").rpartition("/")[2], {}).get("examples", ())
        content["examples"] = {
            f"example_{number}": {"value": example} for number, example in enumerate(examples, start=1)
        }
    for status, declared in operation["responses"].items():
        if int(status) < 400:
            for content in declared.get("content", {}).values():
                content["example"] = composed(content["schema"], schemas, operation["operationId"])


def _header(name: str, description: str, example: str) -> dict[str, Any]:
    declared = {"in": "header", "name": name, "required": True, "description": description}
    return {**declared, "schema": {"type": "string"}, "example": example}


def _receiver_operation(schemas: dict[str, Any]) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/WebhookPayload"}
    return {
        "operationId": "receive_event",
        "summary": "An event of a deliberation with a webhook",
        "description": "Sent at least once per subscribed event, signed by Standard Webhooks 1.0.0. Verify the "
        "signature over the bytes as received. Repeated deliveries of an event have the same `webhook-id`.",
        # A tag of its own: generators would write its client over that of the deliveries.
        "tags": ["receivers"],
        "security": [],
        "parameters": [
            _header("webhook-id", "The delivery's id, the same at every attempt", DELIVERY),
            _header("webhook-timestamp", "Seconds since 1970 of this attempt", "1767225600"),
            _header("webhook-signature", "`v1,` and HMAC-SHA256 in base64, for each secret", _SIGNATURE),
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": composed(schema, schemas)}},
        },
        "responses": {
            "2XX": {"description": "Accepted"},
            "410": {"description": "Gone: no more events of this deliberation are sent"},
            "default": {"description": "Failed: the delivery is retried later"},
        },
    }


@lru_cache(maxsize=2)
def document(*, development: bool = False) -> dict[str, Any]:
    """OpenAPI 3.1; `development` adds a note on missing authentication. The result is cached: do not modify it."""
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
    # What a validator makes of the content of messages is no schema of theirs.
    for name in ("HTTPValidationError", "ValidationError", "MessageContent", "FilePart"):
        schemas.pop(name, None)
    components["schemas"] = dict(sorted(schemas.items()))
    components["headers"] = HEADERS
    components["examples"] = EXAMPLES
    components["securitySchemes"] = _SECURITY
    components["parameters"] = {"X-Request-Id": _REQUEST_ID}
    made["webhooks"] = {"event": {"post": _receiver_operation(schemas)}}
    known = {operation["operationId"] for _, operation in _operations(made)}
    for path, operation in _operations(made):
        _replace_validation_error(path, operation)
        _declare_access(path, operation)
        _add_links(operation, known)
        _json_first(operation)
        _add_examples(operation, schemas)
    for body in _BODIES:
        schemas[body.__name__].pop("examples", None)
    for methods in made["paths"].values():
        methods["parameters"] = [{"$ref": "#/components/parameters/X-Request-Id"}]
    return made


def _last_data(operation_id: str) -> str | None:
    """The data that ends the event stream of a façade's operation."""
    routes = ((facade.last_data, route) for facade in FACADES for route in facade.router.routes)
    return next((last for last, route in routes if getattr(route, "name", "") == operation_id), None)


def _use_item_schema(content: dict[str, Any], last_data: str | None) -> None:
    data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json"}
    data["contentSchema"] = content.pop("schema")
    if last_data is not None:
        data = {"anyOf": [{"const": last_data}, data]}
    item: dict[str, Any] = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The cursor; absent for events without one"},
            "event": {"type": "string", "description": "The `type` in `data`"},
            "data": data,
            "retry": {"type": "integer", "minimum": 0, "description": "Milliseconds to wait before a reconnect"},
        },
        "required": ["data"],
    }
    content["itemSchema"] = item
    event = content.pop("example")
    lines = [f"event: {event['type']}"] if "type" in event else []
    stream = "\n".join([*lines, f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}", "", ""])
    if last_data is not None:
        stream += f"data: {last_data}\n\n"
    content["examples"] = {"stream": {"serializedValue": stream}}


@lru_cache(maxsize=2)
def document_3_2(*, development: bool = False) -> dict[str, Any]:
    """The same document in OpenAPI 3.2. The result is cached: do not modify it."""
    made = deepcopy(document(development=development))
    made["openapi"] = "3.2.0"
    for _, operation in _operations(made):
        for declared in operation["responses"].values():
            content = declared.get("content", {}).get(EVENT_STREAM)
            if content is not None:
                _use_item_schema(content, _last_data(operation["operationId"]))
    return made


@lru_cache(maxsize=4)
def encoded(edition: Literal["3.1", "3.2"], development: bool) -> bytes:
    made = document if edition == "3.1" else document_3_2
    return json.dumps(made(development=development), ensure_ascii=False).encode()


# A cache lets all threads that find nothing generate at once, and the generator is not safe for threads.
_ONE_AT_A_TIME = Lock()


def install(app: FastAPI, *, development: bool) -> None:
    """Serve the documents and their page. The first request generates them in a thread, so streams are not blocked."""

    def served(edition: Literal["3.1", "3.2"]) -> Callable[[], Response]:
        def answer() -> Response:
            with _ONE_AT_A_TIME:
                return Response(encoded(edition, development), media_type="application/json")

        return answer

    app.add_api_route("/openapi.json", served("3.1"), include_in_schema=False)
    app.add_api_route("/openapi-3.2.json", served("3.2"), include_in_schema=False)
    install_pages(app, title=TITLE)


def events_schema() -> dict[str, Any]:
    schema = DeliberationEvent.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
