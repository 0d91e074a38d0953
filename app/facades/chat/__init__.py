"""Routes: OpenAI's chat completions, each answered by a deliberation.

A model names a strategy and a role, as `council/DEV`. The request is accepted like any deliberation, and the answer
waits for its end. If the client disconnects before, the deliberation is cancelled, unless the request has an
Idempotency-Key, with which the client can ask for it again.
"""

from functools import partial
from typing import Annotated

from fastapi import Path, Request, Response

from app.api.headers import submission_of
from app.api.problems import request_id_of
from app.api.request_body import body_of
from app.api.requests import AGENTS_MAX, COMPLETION_TOKENS_MAX, SEED_MAX
from app.api.responses import IDEMPOTENCY_KEY, answer, body
from app.api.schemas import dump
from app.facades.chat.reader import ChatCompletionRequest, asked
from app.facades.chat.writer import ChatCompletion, ChatWriter, ModelList, ModelResource, completion
from app.facades.declaration import streamed
from app.facades.door import CLIENT_LEFT, InDoor
from app.facades.openai_errors import openai_errors, openai_facade
from app.facades.openai_requests import answer_headers, bounded, in_the_request, model_names, model_parts
from app.routes.dependencies import api_router

LIMITS = dict.fromkeys(("max_tokens", "max_completion_tokens"), COMPLETION_TOKENS_MAX)
BOUNDS = {"n": AGENTS_MAX, "seed": SEED_MAX, **LIMITS}

router = api_router("openai", prefix="/v1")

_COMPLETED = streamed(
    "The verdict; with `stream` its chunks or an error, ended by `[DONE]`",
    "X-Adjusted",
    model=ChatCompletion,
    kind="object",
)


@router.post(
    "/chat/completions",
    summary="Deliberate, and answer as a chat completion",
    responses={200: _COMPLETED, **openai_errors(400, 404, 408, 409, 410, 413, 415, 429, 502, 503, 504)},
    openapi_extra={"requestBody": body("ChatCompletionRequest"), "parameters": [IDEMPOTENCY_KEY]},
)
async def create_chat_completion(request: Request, door: InDoor) -> Response:
    """Submit a deliberation and wait for its end. A disconnect cancels it unless the request has an Idempotency-Key."""
    chat, changes = bounded(await body_of(request, ChatCompletionRequest), BOUNDS)
    places = partial(in_the_request, ChatCompletionRequest)
    council = await door.accept(asked(chat, door.registry), submission_of(request), files=chat.files, places=places)
    sent = answer_headers(council.state.deliberation_id, changes, chat.answer_schema)
    if chat.stream:
        writer = ChatWriter(chat, request_id_of(request))
        return council.stream(writer, sent, heartbeat=writer.waiting(council.state))
    told = await council.end(request)
    if told is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(dump(completion(chat, told.state)), headers=sent, media_type="application/json")


@router.get(
    "/models",
    summary="List all models: every strategy with every role",
    responses={200: answer("All models", model=ModelList), **openai_errors()},
)
async def list_models(door: InDoor) -> Response:
    """The models that `POST /v1/chat/completions` accepts."""
    models = tuple(ModelResource(id=name) for name in model_names(door.registry))
    return Response(dump(ModelList(data=models)), media_type="application/json")


@router.get(
    "/models/{model:path}",
    summary="Get one model",
    responses={200: answer("The model", model=ModelResource), **openai_errors(404)},
)
async def get_model(
    door: InDoor, model: Annotated[str, Path(description="`<strategy>/<ROLE>` or one of both")]
) -> Response:
    """The slash in the name may be percent-encoded; the answer has the whole name."""
    name = "/".join(model_parts(model, door.registry))
    return Response(dump(ModelResource(id=name)), media_type="application/json")


CHAT = openai_facade(router, ChatCompletionRequest)
