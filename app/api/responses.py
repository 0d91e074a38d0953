"""Declarations for the OpenAPI document: headers, problems by status, and parameters."""

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any

from pydantic import BaseModel

from app.api.headers import KEY_PATTERN, WAIT_MAX_S
from app.api.problems import PROBLEM_JSON, STATUSES, ErrorAnswer, body_fault, problem

Declared = dict[int | str, dict[str, Any]]


def _text(description: str, **schema: Any) -> dict[str, Any]:  # noqa: ANN401 -- a JSON Schema
    return {"description": description, "schema": {"type": "string", **schema}}


HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-Id": _text("The request's id: the client's own, if it sent a valid one"),
    "Location": _text("Path of the deliberation"),
    "ETag": _text("Strong validator: changes with every fact"),
    "Retry-After": {
        "description": "Seconds to wait before the next attempt",
        "schema": {"type": "integer", "minimum": 1},
    },
    "Preference-Applied": _text("The applied preference, for example `wait=10`"),
    "Idempotency-Replayed": _text("`true` when the key was used before: nothing was started", enum=["true"]),
    "Set-Cookie": _text("The session's token: HttpOnly, SameSite=Strict, and Secure over https"),
    "WWW-Authenticate": _text("The required credential, and the fault of the given one (RFC 6750)"),
    "RateLimit": _text(
        "Requests left to the tenant, and seconds until there is one more (draft-ietf-httpapi-ratelimit-headers-11)",
        examples=['"requests";r=5999;t=60'],
    ),
    "RateLimit-Policy": _text("Requests of the tenant in each window of seconds", examples=['"requests";q=6000;w=60']),
    "Development-Mode": _text("Present in development mode only", enum=["no keys, loopback only"]),
    "Cache-Control": _text("Whether the client may cache the answer, with revalidation, or not at all"),
    "Vary": _text("The answer depends on `Accept`"),
    "X-Accel-Buffering": _text("Tells proxies not to buffer the stream", enum=["no"]),
    "X-Deliberation-Id": _text("The id of the deliberation"),
    "X-Adjusted": _text("What the gateway changed in the request, separated by commas", examples=["max_tokens=32768"]),
    "X-Should-Retry": _text("`false` where OpenAI's clients should not retry", enum=["false"]),
    "Content-Length": {"description": "Bytes of the content", "schema": {"type": "integer"}},
    "Content-Disposition": _text("To be saved under the file's name"),
    "Content-Security-Policy": _text("Not to be shown as a page", enum=["sandbox"]),
    "Link": _text('The next page, as `rel="next"`'),
    "Allow": _text("The methods that the path supports"),
    "Accept-Encoding": _text("The coding in which bodies are read", enum=["identity"]),
}


def _example(code: str, status: int, title: str) -> dict[str, Any]:
    fault = body_fault("/rounds", "less_than_equal", "It is too large", "Give 5 or less.")
    faults = (fault,) if code == "invalid_request" else ()
    error = ErrorAnswer(code, f"{title}.", status in (408, 429, 503), faults)
    document = problem(error, "/deliberations", "5f0c1b7e9a3d4c2b8e6f7a10")
    return {"summary": title, "value": document.model_dump(mode="json")}


EXAMPLES: dict[str, dict[str, Any]] = {code: _example(code, *status) for code, status in STATUSES.items()}


def headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, "X-Request-Id")}


def answer(description: str, *names: str, model: type[BaseModel] | UnionType | None = None) -> dict[str, Any]:
    body = {} if model is None else {"model": model}
    return {**body, "description": description, "headers": headers(*names)}


def declared_errors(
    statuses: Iterable[int],
    table: Mapping[str, tuple[int, str]],
    content: Callable[[Iterable[str]], dict[str, Any]],
    names: Mapping[int, tuple[str, ...]],
) -> Declared:
    """Declared errors for these statuses and 500; `table` has status and title by code, `names` further headers."""
    usual = {
        401: ("WWW-Authenticate",),
        412: ("ETag",),
        415: ("Accept-Encoding",),
        429: ("Retry-After",),
        503: ("Retry-After",),
    }
    names = {**usual, **names}
    declared: Declared = {}
    for status in sorted({*statuses, 500}):
        titles = {code: title for code, (mapped, title) in table.items() if mapped == status}
        description = "; ".join(f"`{code}`: {title}" for code, title in titles.items())
        declared[status] = {**answer(description, *names.get(status, ())), "content": content(titles)}
    return declared


def _problem_content(codes: Iterable[str]) -> dict[str, Any]:
    examples = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}
    return {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}}


def problems(*statuses: int) -> Declared:
    return declared_errors(statuses, STATUSES, _problem_content, {})


def parameter(place: str, name: str, description: str, **schema: Any) -> dict[str, Any]:  # noqa: ANN401 -- a JSON Schema
    schema.setdefault("type", "string")
    return {"in": place, "name": name, "required": False, "description": description, "schema": schema}


def body(schema: str, *, required: bool = True) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"required": required, "content": content}


PREFER = parameter(
    "header",
    "Prefer",
    f"`wait=n`: hold the answer until there is something new, for n seconds at most (up to {WAIT_MAX_S}; RFC 7240)",
    examples=["wait=5"],
)
IDEMPOTENCY_KEY = parameter(
    "header",
    "Idempotency-Key",
    "The same key with the same body never starts a second deliberation",
    pattern=KEY_PATTERN,
)
IF_MATCH = parameter("header", "If-Match", "An ETag: the answer is 412, and nothing changes, once it is outdated")
IF_NONE_MATCH = parameter("header", "If-None-Match", "An ETag: the answer is 304 while it is unchanged")
