"""Routes: OpenAI's Responses, as Open Responses (2026-04-24) specifies them. A response is a deliberation.

Background work and its events last as long as the deliberation's facts. A foreground response is cancelled when its
client leaves, unless the request has an Idempotency-Key.
"""

import re
from collections.abc import Collection
from functools import partial
from typing import Annotated, Literal

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field

from app.api.headers import submission_of
from app.api.problems import ValidationFailed, body_fault, query_fault, request_id_of
from app.api.request_body import body_of
from app.api.requests import COMPLETION_TOKENS_MAX
from app.api.responses import IDEMPOTENCY_KEY, answer, body
from app.api.schemas import dump
from app.deliberation.errors import Gone, InvalidToken, NotFound
from app.deliberation.fold import State
from app.deliberation.specification import checked_token
from app.facades.declaration import streamed
from app.facades.door import CLIENT_LEFT, Council, Door, InDoor, Told
from app.facades.openai_errors import openai_errors, openai_facade
from app.facades.openai_requests import ConversationTurn, answer_headers, bounded, deliberation_of, in_the_request
from app.facades.outcomes import answers, deliberation_headers, is_cut_off
from app.facades.responses.reader import ASKED, CreateResponseRequest, evidence_asked, turn_of, turns_asked
from app.facades.responses.writer import (
    InputItemPage,
    ResponseDeleted,
    ResponseResource,
    ResponseWriter,
    input_page,
    resource_of,
)
from app.routes.dependencies import api_router

PATH = "/responses/{response_id}"

router = api_router("openai", prefix="/v1")

_RESPONSE = streamed("The response; with `stream` its events, ended by `[DONE]`", "X-Adjusted", model=ResponseResource)


async def id_in(response_id: Annotated[str, Path(description="`resp_` and the deliberation's id")]) -> str:
    """The deliberation's id; raises NotFound."""
    try:
        return checked_token(response_id[5:] if response_id.startswith("resp_") else "", "id")
    except InvalidToken as error:
        raise NotFound("No response can have this id: ids match resp_[a-z0-9_-]{1,64}.") from error


IdInPath = Annotated[str, Depends(id_in)]


async def council_of(door: InDoor, id: IdInPath) -> Council:
    return await door.council(id)


OfCouncil = Annotated[Council, Depends(council_of)]


async def _previous(door: Door, response_id: str | None) -> Council | None:
    if response_id is None:
        return None
    try:
        return await door.council(await id_in(response_id))
    except (NotFound, Gone) as error:
        fault = ("/previous_response_id", "previous_response_not_found", str(error), "Send the whole conversation.")
        raise ValidationFailed([body_fault(*fault)]) from error


_ITEM = re.compile("(?:msg|rs|mcp|fc)_([a-z0-9-]{1,64})_.{1,64}", re.DOTALL)


async def _referred(
    door: Door, request: CreateResponseRequest
) -> tuple[dict[str, ConversationTurn | None], Collection[State]]:
    """The messages that the input refers to, by their ids, and their deliberations; raises ValidationFailed."""
    referred: dict[str, ConversationTurn | None] = {}
    states: dict[str, State] = {}
    for place, item in enumerate(request.input):
        if not item.refers or item.id is None or item.id in referred:
            continue
        try:
            known = _ITEM.fullmatch(item.id)
            id = checked_token(known[1] if known else "", "id")
            if id not in states:
                states[id] = (await door.council(id)).state
            referred[item.id] = turn_of(states[id], item.id)
        except (NotFound, Gone, InvalidToken, LookupError, ValueError) as error:
            remedy = "Send the item itself, which clients do with store false, or give previous_response_id."
            detail = "No message of a response that is kept has this id"
            raise ValidationFailed([body_fault(f"/input/{place}/id", "item_not_found", detail, remedy)]) from error
    return referred, states.values()


def _answer(told: Told, sent: dict[str, str] | None = None) -> Response:
    return Response(dump(resource_of(told.moments, told.state)), headers=sent, media_type="application/json")


@router.post(
    "/responses",
    summary="Deliberate, and answer as a response",
    responses={200: _RESPONSE, **openai_errors(400, 404, 408, 409, 410, 413, 415, 429, 502, 503, 504)},
    openapi_extra={"requestBody": body("CreateResponseRequest"), "parameters": [IDEMPOTENCY_KEY]},
)
async def create_response(request: Request, door: InDoor) -> Response:
    """Submit a deliberation and wait for its end; with `background` answer at once."""
    wanted = await body_of(request, CreateResponseRequest)
    asked_for, changes = bounded(wanted, {"max_output_tokens": COMPLETION_TOKENS_MAX})
    previous = await _previous(door, wanted.previous_response_id)
    referred, earlier = await _referred(door, wanted)
    turns = turns_asked(wanted, previous and previous.state, referred)
    evidence = evidence_asked(wanted, turns, [*([] if previous is None else [previous.state]), *earlier])
    background = wanted.background is True
    submission = submission_of(request, {ASKED: wanted.repeated})
    limit, places = asked_for.max_output_tokens, partial(in_the_request, CreateResponseRequest)
    asked = deliberation_of(asked_for, door.registry, turns, evidence=evidence, max_tokens=limit)
    council = await door.accept(asked, submission, kept=background, files=wanted.files, places=places)
    sent = answer_headers(council.state.deliberation_id, changes, wanted.answer_schema)
    if wanted.stream:
        return council.stream(ResponseWriter(request_id_of(request)), sent)
    if background:
        return _answer(await council.told(), sent)
    told = await council.end(request)
    if told is None:
        return Response(status_code=CLIENT_LEFT)
    if not (wanted.max_output_tokens and is_cut_off(told.state)):
        answers(told.state)  # raises NoVerdict: without a stream a failure is an error
    return _answer(told, sent)


class ResponseQuery(BaseModel, frozen=True, extra="forbid"):
    stream: bool = Field(False, description="Answer with the events of the response")
    starting_after: int = Field(-1, ge=-1, description="Only events with a higher number; with `stream`")


@router.get(PATH, summary="Read or watch a response", responses={200: _RESPONSE, **openai_errors(400, 404, 410, 503)})
async def get_response(request: Request, council: OfCouncil, query: Annotated[ResponseQuery, Query()]) -> Response:
    """With `stream` its events from the beginning, or above `starting_after`; leaving cancels nothing."""
    if query.stream:
        writer = ResponseWriter(request_id_of(request), query.starting_after)
        return council.stream(writer, deliberation_headers(council.state.deliberation_id), viewer=True)
    if "starting_after" in query.model_fields_set:
        fault = query_fault("starting_after", "invalid_value", "It needs a stream", "Add stream=true.")
        raise ValidationFailed([fault])
    return _answer(await council.told())


@router.post("/responses/compact", include_in_schema=False)
@router.post("/responses/input_tokens", include_in_schema=False)
async def refuse_operation() -> Response:
    """The operations of OpenAI's that no council has; their paths are no ids of responses."""
    raise NotFound("The gateway compacts no conversation and counts no tokens ahead. Send it to POST /v1/responses.")


@router.post(
    f"{PATH}/cancel",
    summary="Cancel a response",
    responses={200: answer("The response", model=ResponseResource), **openai_errors(404, 410, 503)},
)
async def cancel_response(council: OfCouncil) -> Response:
    """Idempotent. The answer waits some seconds for the end, and an ended response stays as it is."""
    await council.cancel(None)
    return _answer(await council.told())


@router.delete(
    PATH,
    summary="Delete a response that has ended",
    responses={200: answer("Its facts are removed", model=ResponseDeleted), **openai_errors(404, 409, 410, 503)},
)
async def delete_response(door: InDoor, id: IdInPath) -> Response:
    """Idempotent. A tombstone remains until retention: reads answer 410."""
    await door.delete(id)
    return Response(dump(ResponseDeleted(id=f"resp_{id}")), media_type="application/json")


class InputItemsQuery(BaseModel, frozen=True, extra="forbid"):
    limit: int = Field(20, ge=1, le=100, description="Items on a page")
    order: Literal["asc", "desc"] = Field("desc", description="`asc`: the first message first")
    after: str | None = Field(None, max_length=128, description="The id of the item before the page")


@router.get(
    f"{PATH}/input_items",
    summary="List a response's input",
    responses={200: answer("A page of messages", model=InputItemPage), **openai_errors(400, 404, 410, 503)},
)
async def list_input_items(council: OfCouncil, query: Annotated[InputItemsQuery, Query()]) -> Response:
    """The messages that the task was written from, those of earlier responses first."""
    page = input_page(council.state, limit=query.limit, newest_first=query.order == "desc", after=query.after)
    return Response(dump(page), media_type="application/json")


RESPONSES = openai_facade(router, CreateResponseRequest)
