"""Routes: accept, read, cancel, delete and list deliberations."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.api.cursor import CURSOR_PATTERN
from app.api.headers import names_etag, submission_of, wait_of
from app.api.problems import ValidationFailed, parameter_problems, query_fault, refused
from app.api.refusals import InsufficientScope, PreconditionFailed
from app.api.request_body import body_of
from app.api.requests import CancelRequest, DeliberationRequest
from app.api.resource import resource
from app.api.responses import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, PREFER, answer, body, parameter, problems
from app.api.schemas import (
    Deliberation,
    DeliberationPage,
    DeliberationReceipt,
    DeliberationResult,
    Status,
    dump,
    narrowed,
)
from app.archive.database.search_query import QUERY_CHARS_MAX, InvalidSearch, parse
from app.catalog.entries import ListFilter, summary
from app.catalog.index import NOT_READ
from app.deliberation.errors import JournalUnavailable
from app.deliberation.fold import State
from app.deliberation.quote import Quote
from app.lifecycle.lists import AFTER_S
from app.routes.dependencies import (
    DeliberationId,
    Gateway,
    InGateway,
    Instant,
    MayRead,
    OfCaller,
    OfTenant,
    api_router,
    registry_of,
)

POLL_AFTER_S = 1
PAGE_MAX = 200
_METADATA = "metadata."
_HEADERS = ("ETag", "Preference-Applied")
_Q_DESCRIPTION = (
    "Only with these words in the task, the verdict or an answer: all of them; `this OR that`, `-without`, `begin*`, "
    'and phrases in `"`'
)
_AFTER_DESCRIPTION = (
    "Wait until the list has this event, such as `last_event_id` of an answer, or with `now` all present ones; "
    f"503 with `Retry-After` after {AFTER_S:.0f} s"
)
# OpenAPI describes `metadata.<key>=<value>` as an exploded object: its properties are parameters of their own.
_METADATA_SCHEMA: dict[str, Any] = {
    "type": "object",
    "propertyNames": {"pattern": r"^metadata\..+$"},
    "additionalProperties": {"type": "string"},
}

router = api_router("deliberations")


_WholeOrReceipt = Deliberation | DeliberationReceipt
Shown = Literal["whole", "summary", "receipt"]
_SHAPES: Mapping[Shown, type[DeliberationReceipt]] = {
    "whole": Deliberation,
    "summary": DeliberationResult,
    "receipt": DeliberationReceipt,
}


def _shown(*, read: bool) -> Shown:
    return "whole" if read else "receipt"


def _etag(state: State, shown: Shown) -> str:
    return f'"{state.deliberation_id}-{state.revision}{"" if shown == "whole" else f"-{shown}"}"'


def _check_if_match(request: Request, state: State) -> None:
    """Raises PreconditionFailed unless If-Match is absent or names an ETag of the present revision."""
    if "if-match" in request.headers:
        etags = {shown: _etag(state, shown) for shown in _SHAPES}
        if not names_etag(request, "if-match", *etags.values()):
            raise PreconditionFailed(etags["whole"])


def _headers(state: State, wait_s: int | None, shown: Shown) -> dict[str, str]:
    headers = {"ETag": _etag(state, shown), "Cache-Control": "private, no-cache"}
    return headers if wait_s is None else {**headers, "Preference-Applied": f"wait={wait_s}"}


def _resource_response(
    gateway: Gateway, tenant: str, state: State, status: int, headers: dict[str, str], shown: Shown, epoch: str = ""
) -> Response:
    """The resource; `epoch` names the log that its facts come from, by default the present log."""
    epoch, retention_s = epoch or gateway["catalog"].epoch, gateway["settings"].kept_s(tenant)
    if not epoch:
        raise JournalUnavailable(NOT_READ)
    content = narrowed(resource(state, epoch=epoch, retention_s=retention_s), _SHAPES[shown])
    return Response(dump(content), status, headers, media_type="application/json")


async def _awaited_response(
    gateway: Gateway,
    tenant: str,
    state: State,
    wait_s: int | None,
    headers: dict[str, str],
    shown: Shown,
    epoch: str = "",
) -> Response:
    state = await gateway["deliberations"].wait_until_ended(tenant, state, wait_s)
    sent = _headers(state, wait_s, shown) | headers
    if state.ended:
        return _resource_response(gateway, tenant, state, 200, sent, shown, epoch)
    return _resource_response(gateway, tenant, state, 202, {**sent, "Retry-After": str(POLL_AFTER_S)}, shown)


async def _revised(gateway: Gateway, tenant: str, state: State, wait_s: int) -> State:
    """The state after its next fact, or the current one after `wait_s`, while draining, or without a log."""
    if state.ended:
        return state
    try:
        changed = await gateway["feed"].changed(tenant, state.deliberation_id, state.last_sequence, wait_s)
        return await gateway["deliberations"].load(tenant, state.deliberation_id) if changed else state
    except JournalUnavailable:
        return state


async def _asked(request: Request, gateway: Gateway, *, read: bool) -> DeliberationRequest:
    return await body_of(request, DeliberationRequest, {**registry_of(gateway), "read": read})


@router.post(
    "/deliberations",
    summary="Accept a deliberation",
    status_code=202,
    responses={
        200: answer("It ended within the wait", "Location", *_HEADERS, "Idempotency-Replayed", model=_WholeOrReceipt),
        202: answer(
            "Accepted: stored durably; it will end",
            *("Location", "Retry-After", *_HEADERS, "Idempotency-Replayed"),
            model=_WholeOrReceipt,
        ),
        **problems(400, 408, 409, 410, 413, 415, 422, 429, 503),
    },
    openapi_extra={"requestBody": body("DeliberationRequest"), "parameters": [IDEMPOTENCY_KEY, PREFER]},
)
async def create_deliberation(request: Request, gateway: InGateway, tenant: OfTenant, read: MayRead) -> Response:
    """Answers after one durable write. With a key, a retry gets the first answer again and starts nothing.

    Without the scope `read` the answer is a receipt: id, status, times and links.
    """
    asked = await _asked(request, gateway, read=read)
    state, replayed = await gateway["deliberations"].accept(tenant, asked, submission_of(request))
    headers = {"Location": f"/deliberations/{state.deliberation_id}"}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return await _awaited_response(gateway, tenant, state, wait_of(request), headers, _shown(read=read))


@router.post(
    "/deliberations/quote",
    summary="Price a deliberation before it runs",
    responses={200: answer("The price; nothing was started", model=Quote), **problems(400, 408, 413, 415, 422, 503)},
    openapi_extra={"requestBody": body("DeliberationRequest")},
)
async def quote_deliberation(request: Request, gateway: InGateway, tenant: OfTenant, read: MayRead) -> Response:
    """Calls, tokens and cost of the same body, at most and as expected, for each stage. Nothing is written or charged.

    Without the scope `read` the tenant's history is left out.
    """
    asked = await _asked(request, gateway, read=read)
    quote = await gateway["deliberations"].quote(tenant, asked, read=read)
    return Response(dump(quote), headers={"Cache-Control": "no-store"}, media_type="application/json")


class DeliberationQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    view: Literal["whole", "summary"] = Field(
        "whole", description="`summary`: verdict, status, usage and times, without the request and each agent's work"
    )


@router.get(
    "/deliberations/{deliberation_id}",
    summary="Read a deliberation",
    responses={
        200: answer("The current state", *_HEADERS, model=Deliberation | DeliberationResult),
        304: answer("Unchanged since the ETag in If-None-Match", *_HEADERS),
        **problems(404, 410, 422, 503),
    },
    openapi_extra={"parameters": [IF_NONE_MATCH, PREFER]},
)
async def get_deliberation(
    request: Request,
    gateway: InGateway,
    tenant: OfTenant,
    deliberation_id: DeliberationId,
    query: Annotated[DeliberationQuery, Query()],
) -> Response:
    """The fold of its facts. With `Prefer: wait` a long poll, until the revision differs from the ETag given.

    Facts within 0.1 seconds are one change, and the end is a change at once.

    With `view=summary` the outcome, the cost and the times alone.
    """
    shown = query.view
    deliberation = await gateway["deliberations"].find(tenant, deliberation_id)
    state, wait_s = deliberation.state, wait_of(request)
    known = request.headers.get("if-none-match")
    if wait_s is not None and (known is None or names_etag(request, "if-none-match", _etag(state, shown))):
        state = await _revised(gateway, tenant, state, wait_s)
    if names_etag(request, "if-none-match", _etag(state, shown)):
        return Response(status_code=304, headers=_headers(state, wait_s, shown))
    return _resource_response(gateway, tenant, state, 200, _headers(state, wait_s, shown), shown, deliberation.epoch)


@router.post(
    "/deliberations/{deliberation_id}/cancel",
    summary="Cancel a deliberation",
    status_code=202,
    responses={
        200: answer("It has ended, for any reason", *_HEADERS, model=_WholeOrReceipt),
        202: answer("It is being cancelled", "Retry-After", *_HEADERS, model=_WholeOrReceipt),
        **problems(400, 404, 408, 410, 412, 413, 415, 422, 503),
    },
    openapi_extra={"requestBody": body("CancelRequest", required=False), "parameters": [IF_MATCH, PREFER]},
)
async def cancel_deliberation(
    request: Request, gateway: InGateway, caller: OfCaller, deliberation_id: DeliberationId, read: MayRead
) -> Response:
    """Idempotent: the first reason stays. The answer is 200 once the deliberation has ended for any reason.

    Without the scope `read` the answer is a receipt: id, status, times and links.
    """
    asked, tenant = await body_of(request, CancelRequest), caller.tenant
    if asked.by == "operator" and "admin" not in caller.scopes:
        raise InsufficientScope(("submit", "admin"), ("admin",))
    present = await gateway["deliberations"].find(tenant, deliberation_id)
    _check_if_match(request, present.state)
    state = await gateway["deliberations"].cancel(tenant, present.state, asked.reason, asked.by)
    return await _awaited_response(gateway, tenant, state, wait_of(request), {}, _shown(read=read), present.epoch)


@router.delete(
    "/deliberations/{deliberation_id}",
    summary="Delete a deliberation that has ended",
    status_code=204,
    responses={
        204: answer("Its facts are removed, and its id is never used again"),
        **problems(404, 409, 410, 412, 503),
    },
    openapi_extra={"parameters": [IF_MATCH]},
)
async def delete_deliberation(
    request: Request, gateway: InGateway, tenant: OfTenant, deliberation_id: DeliberationId
) -> Response:
    """Idempotent without If-Match. A tombstone remains until retention: reads and its Idempotency-Key answer 410."""
    if "if-match" in request.headers:
        _check_if_match(request, (await gateway["deliberations"].find(tenant, deliberation_id)).state)
    await gateway["deliberations"].delete(tenant, deliberation_id)
    return Response(status_code=204)


def _searchable(q: str) -> str:
    try:
        parse(q)
    except InvalidSearch as exc:
        raise refused("invalid_search", str(exc), exc.remedy) from exc
    return q


class ListQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    q: Annotated[str, Field(max_length=QUERY_CHARS_MAX), AfterValidator(_searchable)] | None = None
    status: Status | None = None
    role: Annotated[str, AfterValidator(str.upper)] | None = Field(default=None, max_length=64)
    strategy: str | None = Field(default=None, max_length=64)
    created_after: Instant | None = None
    created_before: Instant | None = None
    bench: bool = True
    limit: int = Field(default=50, ge=1, le=PAGE_MAX)
    after: str | None = Field(default=None, max_length=128)
    cursor: str | None = Field(default=None, max_length=128)


def _query(request: Request) -> tuple[ListQuery, dict[str, str]]:
    parameters: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in parameters or name.removeprefix(_METADATA) in metadata:
            raise ValidationFailed([query_fault(name, "repeated", "Repeated", "Give it once.")])
        if name.startswith(_METADATA) and name != _METADATA:
            metadata[name.removeprefix(_METADATA)] = value
        else:
            parameters[name] = value
    try:
        return ListQuery.model_validate(parameters), metadata
    except ValidationError as exc:
        raise parameter_problems(exc, ListQuery) from exc


@router.get(
    "/deliberations",
    summary="List deliberations, newest first",
    responses={200: answer("A page", "Link", model=DeliberationPage), **problems(400, 422, 503)},
    openapi_extra={
        "parameters": [
            parameter("query", "q", _Q_DESCRIPTION, minLength=1, maxLength=QUERY_CHARS_MAX),
            parameter("query", "status", "Only this status", enum=list(get_args(Status))),
            parameter("query", "role", "Only councils with a member of this role"),
            parameter("query", "strategy", "Only this strategy"),
            parameter("query", "created_after", "Only created later", format="date-time"),
            parameter("query", "created_before", "Only created earlier", format="date-time"),
            parameter("query", "bench", "false: without what `deliberate bench` asked", type="boolean", default=True),
            parameter("query", "limit", "Items on a page", type="integer", minimum=1, maximum=PAGE_MAX, default=50),
            parameter("query", "after", _AFTER_DESCRIPTION, pattern=CURSOR_PATTERN.replace("(", "(now|")),
            parameter("query", "cursor", "`next_cursor` of the previous page", pattern=r"^[A-Za-z0-9_-]{1,128}$"),
            {
                **parameter(
                    "query", "metadata", "Only with these metadata: `metadata.<key>=<value>`", **_METADATA_SCHEMA
                ),
                "style": "form",
                "explode": True,
            },
        ]
    },
)
async def list_deliberations(request: Request, gateway: InGateway, tenant: OfTenant) -> Response:
    """Read from the archive, whose lag is `behind_s`. Repeat the filters with the cursor, as the Link header does."""
    query, metadata = _query(request)
    filters = query.model_dump(exclude={"q", "status", "limit", "cursor", "after"})
    asked = ListFilter(statuses=frozenset([query.status] if query.status else []), metadata=metadata, **filters)
    if query.after is not None:
        await gateway["lists"].wait_for(query.after)
    search = None if query.q is None else parse(query.q)
    listed = await gateway["lists"].page(tenant, asked, search, limit=query.limit, cursor=query.cursor)
    headers = {"Cache-Control": "private, no-cache"}
    if listed.next_cursor is not None:
        kept = [(name, value) for name, value in request.query_params.multi_items() if name not in ("cursor", "after")]
        headers["Link"] = f'</deliberations?{urlencode([*kept, ("cursor", listed.next_cursor)])}>; rel="next"'
    items = tuple(map(summary, listed.entries))
    page = DeliberationPage(items=items, next_cursor=listed.next_cursor, behind_s=listed.behind_s)
    return Response(dump(page), headers=headers, media_type="application/json")
