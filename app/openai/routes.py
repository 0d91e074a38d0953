"""Routes: OpenAI's chat completions, each answered by a deliberation.

A model names a strategy and a role, as `council/DEV`. The request is accepted like any deliberation, and the answer
waits for its end. If the client disconnects before, the deliberation is cancelled, unless the request has an
Idempotency-Key, with which the client can ask for it again.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import structlog
from fastapi import Path, Request, Response
from starlette.types import Receive, Scope, Send

from app.api.headers import submission_of
from app.api.problems import STATUSES, NotReady, request_id_of
from app.api.request_body import body_of
from app.api.responses import IDEMPOTENCY_KEY, Declared, answer, body, declared_errors, headers
from app.api.schemas import dump
from app.deliberation.calls import FactProblem
from app.deliberation.errors import DeliberationError, JournalUnavailable
from app.deliberation.fold import State
from app.openai.completions import completion, error_frames, frames, opening_frame, waiting_frame
from app.openai.mapping import Registry, deliberation_of, model_names, model_parts, schema_changes, within_bounds
from app.openai.problems import CHAT_STATUSES, NoVerdict, chat_headers, stream_error
from app.openai.requests import ChatCompletionRequest
from app.openai.schemas import ChatCompletion, ModelList, ModelResource
from app.routes.dependencies import Gateway, InGateway, OfTenant, api_router
from app.streaming.event_stream import EventStreamResponse

OWNER = "deliberation-gateway"
CLIENT_LEFT = 499
# A coordinator ends overdue deliberations at their deadline; the end reaches this process a little later.
END_GRACE_S = 10.0
LAG_S = 0.1
LAGS_MAX = 20

router = api_router("openai", prefix="/v1")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingCompletion:
    """A client that waits for the accepted deliberation `state`; `resumable` if its request has an Idempotency-Key."""

    gateway: Gateway
    tenant: str
    state: State
    resumable: bool
    changes: Sequence[str] = ()

    @property
    def headers(self) -> dict[str, str]:
        changes = {"X-Adjusted": ", ".join(self.changes)} if self.changes else {}
        return chat_headers(self.state.deliberation_id) | changes

    async def wait(self) -> bool:
        """Whether the deliberation ends until shortly after its deadline; a process that drains ends the wait early."""
        gateway, accepted = self.gateway, self.state.accepted
        left_s = max(0.0, (accepted.deadline_at - gateway["clock"].now()).total_seconds())
        return await gateway["deliberations"].ended(self.tenant, accepted.deliberation_id, left_s + END_GRACE_S)

    async def final_state(self, ended: bool) -> State:
        """The state with its end, after `wait`; raises NotReady while draining, NoVerdict and JournalUnavailable."""
        if not ended and self.gateway["feed"].draining.is_set():
            raise NotReady("This gateway is stopping; ask again.")
        if not ended:
            late = FactProblem(code="deadline_exceeded", detail="no end was recorded by its deadline", retryable=True)
            raise NoVerdict(late, self.state.deliberation_id)
        for _ in range(LAGS_MAX):
            state = await self.gateway["deliberations"].load(self.tenant, self.state.deliberation_id)
            if state.ended:
                return state
            # A replica of the log may lag behind the one that published the end.
            await asyncio.sleep(LAG_S)
        raise JournalUnavailable("The deliberation has ended, but its end cannot be read yet.")

    async def cancel_if_abandoned(self) -> None:
        gateway, id = self.gateway, self.state.deliberation_id
        overdue = gateway["clock"].now() >= self.state.accepted.deadline_at
        if self.resumable or overdue:
            return
        try:
            if await gateway["deliberations"].ended(self.tenant, id, 0):
                return
            await gateway["deliberations"].cancel(self.tenant, self.state, "the client of /v1 left", "disconnect")
        except JournalUnavailable as error:
            log.warning("chat_cancel_failed", deliberation_id=id, detail=str(error))


async def _wait_while_connected(request: Request, pending: PendingCompletion) -> bool | None:
    """Whether the deliberation has ended; None if the client disconnected first. Raises JournalUnavailable."""
    away: JournalUnavailable | None = None
    async with anyio.create_task_group() as group:

        async def until_disconnect() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(until_disconnect)
        try:
            return await pending.wait()
        except JournalUnavailable as error:
            # Raised within the group it would come out as a group of errors, which has no status.
            away = error
        finally:
            group.cancel_scope.cancel()
    if away is not None:
        raise away
    return None


async def _answer(request: Request, chat: ChatCompletionRequest, pending: PendingCompletion) -> Response:
    ended = await _wait_while_connected(request, pending)
    if not ended:
        await pending.cancel_if_abandoned()
    if ended is None:
        return Response(status_code=CLIENT_LEFT)
    found = completion(chat, await pending.final_state(ended))
    return Response(dump(found), headers=pending.headers, media_type="application/json")


async def stream(
    chat: ChatCompletionRequest, pending: PendingCompletion, request_id: str
) -> AsyncGenerator[bytes, None]:
    yield opening_frame(chat, pending.state)
    try:
        state = await pending.final_state(await pending.wait())
        for frame in frames(chat, state):
            yield frame
    except DeliberationError as error:
        yield error_frames(stream_error(error, request_id))


class ChatStream(EventStreamResponse):
    """A streamed completion; when it closes, an abandoned deliberation is cancelled."""

    def __init__(self, chat: ChatCompletionRequest, pending: PendingCompletion, request_id: str) -> None:
        settings = pending.gateway["settings"]
        super().__init__(
            stream(chat, pending, request_id),
            heartbeat_s=settings.heartbeat_s,
            stalled_s=settings.stream_send_timeout_s,
            headers=pending.headers,
            heartbeat=waiting_frame(chat, pending.state),
        )
        self._pending = pending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._pending.cancel_if_abandoned()


def openai_errors(*statuses: int) -> Declared:
    def content(_: Iterable[str]) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIError"}}}

    names = ("Location", "X-Deliberation-Id")
    further = {400: names, **dict.fromkeys((409, 502, 504), (*names, "X-Should-Retry"))}
    return declared_errors(statuses, {**STATUSES, **CHAT_STATUSES}, content, further)


def _registry(gateway: Gateway) -> Registry:
    return {"roles": gateway["roles"], "strategies": gateway["strategies"]}


_COMPLETED: dict[str, Any] = {
    "model": ChatCompletion,
    "description": "The verdict; with `stream` its chunks or an error, ended by `[DONE]`",
    "headers": headers("Location", "X-Deliberation-Id", "X-Adjusted", "X-Accel-Buffering"),
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
    summary="Deliberate, and answer as a chat completion",
    responses={200: _COMPLETED, **openai_errors(400, 404, 408, 409, 410, 413, 415, 429, 502, 503, 504)},
    openapi_extra={"requestBody": body("ChatCompletionRequest"), "parameters": [IDEMPOTENCY_KEY]},
)
async def create_chat_completion(request: Request, gateway: InGateway, tenant: OfTenant) -> Response:
    """Submit a deliberation and wait for its end. A disconnect cancels it unless the request has an Idempotency-Key."""
    chat, changes = within_bounds(await body_of(request, ChatCompletionRequest))
    submission = submission_of(request)
    state, _ = await gateway["deliberations"].accept(tenant, deliberation_of(chat, _registry(gateway)), submission)
    resumable = submission.idempotency_key is not None
    pending = PendingCompletion(gateway, tenant, state, resumable, [*changes, *schema_changes(chat)])
    if chat.stream:
        return ChatStream(chat, pending, request_id_of(request))
    return await _answer(request, chat, pending)


@router.get(
    "/models",
    summary="List all models: every strategy with every role",
    responses={200: answer("All models", model=ModelList), **openai_errors()},
)
async def list_models(gateway: InGateway) -> Response:
    """The models that `POST /v1/chat/completions` accepts."""
    models = tuple(ModelResource(id=name, created=0, owned_by=OWNER) for name in model_names(_registry(gateway)))
    return Response(dump(ModelList(data=models)), media_type="application/json")


@router.get(
    "/models/{model:path}",
    summary="Get one model",
    responses={200: answer("The model", model=ModelResource), **openai_errors(404)},
)
async def get_model(
    gateway: InGateway, model: Annotated[str, Path(description="`<strategy>/<ROLE>` or one of both")]
) -> Response:
    """The slash in the name may be percent-encoded; the answer has the whole name."""
    name = "/".join(model_parts(model, _registry(gateway)))
    return Response(dump(ModelResource(id=name, created=0, owned_by=OWNER)), media_type="application/json")
