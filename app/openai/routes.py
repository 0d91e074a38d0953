"""Routes: deliberations as OpenAI's chat completions, so that whatever speaks to a model can speak to a council.

A model is a strategy with a role, `council/DEV`. The request is accepted on the same path as any deliberation, and the
answer waits for its end. A client that leaves before has nowhere to come back to, so its deliberation is stopped;
unless its request carries an Idempotency-Key, under which it can ask again for the same one.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import structlog
from fastapi import APIRouter, Path, Request, Response
from starlette.types import Receive, Scope, Send

from app.api.problems import STATUSES, NotReady, request_id_of
from app.api.request_body import body_of
from app.api.requests import submission_of
from app.api.responses import IDEMPOTENCY_KEY, Declared, body, headers
from app.api.schemas import dump
from app.deliberation.calls import FactProblem
from app.deliberation.errors import DeliberationError, JournalUnavailable
from app.deliberation.fold import State
from app.openai.completions import completion, error_frames, frames, opening_frame
from app.openai.problems import CHAT_STATUSES, NoVerdict, chat_headers, stream_error
from app.openai.requests import ChatCompletionRequest, Known, deliberation_of, model_parts
from app.openai.schemas import ChatCompletion, ModelList, ModelResource
from app.routes.dependencies import Gateway, InGateway, OfTenant
from app.streaming.event_stream import EventStreamResponse

OWNER = "deliberation-gateway"
CLIENT_LEFT = 499
# A coordinator ends at the deadline what has not ended before; hearing of it takes a moment more.
END_GRACE_S = 10.0
LAG_S = 0.1
LAGS_MAX = 20

router = APIRouter(prefix="/v1", tags=["openai"])
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingCompletion:
    """A client that waits for a deliberation, accepted as `state`; `returns` tells whether it can ask for it again."""

    gateway: Gateway
    tenant: str
    state: State
    returns: bool

    async def heard(self) -> bool:
        """Whether the end was heard: at once, by the deadline and a moment more, or not because the process drains."""
        gateway, accepted = self.gateway, self.state.accepted
        left_s = max(0.0, (accepted.deadline_at - gateway["clock"].now()).total_seconds())
        return await gateway["catalog"].ended(self.tenant, accepted.deliberation_id, left_s + END_GRACE_S)

    async def ended(self, heard: bool) -> State:
        """The state with its end, once that was heard.

        Raises NotReady when the process drains, NoVerdict when the deadline passed and nobody wrote an end, and
        JournalUnavailable.
        """
        if not heard and self.gateway["feed"].draining.is_set():
            raise NotReady("This gateway is stopping; ask again.")
        if not heard:
            late = FactProblem(code="deadline_exceeded", detail="nobody ended it by its deadline", retryable=True)
            raise NoVerdict(late, self.state.deliberation_id)
        for _ in range(LAGS_MAX):
            state = await self.gateway["deliberations"].load(self.tenant, self.state.deliberation_id)
            if state.ended:
                return state
            # A server of the log that lags behind the one that told of the end has yet to store it.
            await asyncio.sleep(LAG_S)
        raise JournalUnavailable("The end was heard of, and cannot be read yet.")

    async def leave(self) -> None:
        """Stop the deliberation if it goes on and its client cannot come back for it."""
        gateway, id = self.gateway, self.state.deliberation_id
        over = gateway["clock"].now() >= self.state.accepted.deadline_at
        if self.returns or over or await gateway["catalog"].ended(self.tenant, id, 0):
            return
        try:
            await gateway["deliberations"].cancel(self.tenant, self.state, "the client of /v1 left")
        except JournalUnavailable as error:
            log.warning("abandoned_not_stopped", deliberation_id=id, detail=str(error))


async def _heard_by_client(request: Request, visit: PendingCompletion) -> bool | None:
    """Whether the end was heard while the client waited; None when it left."""
    async with anyio.create_task_group() as group:

        async def until_gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(until_gone)
        heard = await visit.heard()
        group.cancel_scope.cancel()
        return heard
    return None


async def _answer(request: Request, asked: ChatCompletionRequest, visit: PendingCompletion) -> Response:
    """The whole completion, once it is decided."""
    heard = await _heard_by_client(request, visit)
    if not heard:
        await visit.leave()
    if heard is None:
        return Response(status_code=CLIENT_LEFT)
    found = completion(asked, await visit.ended(heard))
    return Response(dump(found), headers=chat_headers(visit.state.deliberation_id), media_type="application/json")


async def stream(
    asked: ChatCompletionRequest, visit: PendingCompletion, request_id: str
) -> AsyncGenerator[bytes, None]:
    """The chunks as frames: who speaks at once, the text when it is decided, an error where there is none."""
    yield opening_frame(asked, visit.state)
    try:
        ended = await visit.ended(await visit.heard())
        for frame in frames(asked, ended):
            yield frame
    except DeliberationError as error:
        yield error_frames(stream_error(error, request_id))


class ChatStream(EventStreamResponse):
    """A streamed completion: however it closes, its visit ends with it."""

    def __init__(self, asked: ChatCompletionRequest, visit: PendingCompletion, request_id: str) -> None:
        settings = visit.gateway["settings"]
        super().__init__(
            stream(asked, visit, request_id),
            heartbeat_s=settings.heartbeat_s,
            stalled_s=settings.stream_send_timeout_s,
            headers=chat_headers(visit.state.deliberation_id),
        )
        self._visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._visit.leave()


def refusals(*statuses: int) -> Declared:
    """Declared errors of the façade for these statuses; 500 can always happen."""
    declared: Declared = {}
    known = {**STATUSES, **CHAT_STATUSES}
    behind = ("Location", "X-Deliberation-Id")
    extra = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",), 400: behind}
    extra |= dict.fromkeys((409, 502, 504), (*behind, "X-Should-Retry"))
    for status in sorted({*statuses, 500}):
        told = [f"`{code}`: {title}" for code, (mapped, title) in known.items() if mapped == status]
        declared[status] = {
            "description": "; ".join(told),
            "headers": headers(*extra.get(status, ())),
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIError"}}},
        }
    return declared


def _known(gateway: Gateway) -> Known:
    return {"roles": gateway["roles"], "strategies": gateway["strategies"]}


_COMPLETED: dict[str, Any] = {
    "model": ChatCompletion,
    "description": "The verdict; with `stream` in chunks, ended by `[DONE]`, and an error where there is none",
    "headers": headers("Location", "X-Deliberation-Id", "X-Accel-Buffering"),
    "content": {
        "text/event-stream": {
            "schema": {
                "anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("ChatCompletionChunk", "OpenAIError")]
            }
        }
    },
}


@router.post(
    "/chat/completions",
    operation_id="create_chat_completion",
    summary="Deliberate, and answer as a model would",
    response_class=Response,
    responses={200: _COMPLETED, **refusals(400, 404, 408, 409, 410, 413, 415, 429, 502, 503, 504)},
    openapi_extra={"requestBody": body("ChatCompletionRequest"), "parameters": [IDEMPOTENCY_KEY]},
)
async def create_chat_completion(request: Request, gateway: InGateway, tenant: OfTenant) -> Response:
    """Accepted as any deliberation is, and awaited until its end. Leaving stops it, unless a key leads back to it."""
    asked = await body_of(request, ChatCompletionRequest)
    submission = submission_of(request)
    state, _ = await gateway["deliberations"].accept(tenant, deliberation_of(asked, _known(gateway)), submission)
    visit = PendingCompletion(gateway, tenant, state, returns=submission.idempotency_key is not None)
    if asked.stream:
        return ChatStream(asked, visit, request_id_of(request))
    return await _answer(request, asked, visit)


@router.get(
    "/models",
    operation_id="list_models",
    summary="Every strategy with every role, as models",
    response_class=Response,
    responses={200: {"model": ModelList, "description": "All models", "headers": headers()}, **refusals()},
)
async def list_models(gateway: InGateway) -> Response:
    """The names that `POST /v1/chat/completions` takes."""
    names = (f"{strategy}/{role}" for strategy in gateway["strategies"] for role in gateway["roles"])
    models = tuple(ModelResource(id=name, created=0, owned_by=OWNER) for name in names)
    return Response(dump(ModelList(data=models)), media_type="application/json")


@router.get(
    "/models/{model:path}",
    operation_id="get_model",
    summary="One model",
    response_class=Response,
    responses={200: {"model": ModelResource, "description": "The model", "headers": headers()}, **refusals(404)},
)
async def get_model(gateway: InGateway, model: Annotated[str, Path(description="`<strategy>/<ROLE>`")]) -> Response:
    """The slash in the name may be encoded or not."""
    model_parts(model, _known(gateway))
    return Response(dump(ModelResource(id=model, created=0, owned_by=OWNER)), media_type="application/json")
