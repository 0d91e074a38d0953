"""Routes: AG-UI 1.0 over HTTP and SSE. A run is a deliberation; unless in the background, it ends with its client."""

import json
from contextlib import suppress
from dataclasses import replace

from fastapi import Request, Response

from app.api.headers import submission_of
from app.api.problems import PROBLEM_DOCUMENTS, request_id_of
from app.api.request_body import body_of
from app.api.responses import body, problems
from app.deliberation.errors import InvalidToken, NotFound
from app.facades.ag_ui.reader import ASKED, THREAD, RunAgentInput
from app.facades.ag_ui.writer import AgUiWriter
from app.facades.declaration import Facade, streamed
from app.facades.door import InDoor
from app.facades.outcomes import deliberation_headers
from app.lifecycle.specify import keyed_id
from app.routes.dependencies import api_router

router = api_router("ag-ui", prefix="/ag-ui")

_EVENTS = streamed("The run's events, as AG-UI 1.0 specifies them")
_RUN = {200: _EVENTS, **problems(408, 409, 410, 413, 415, 422, 429, 503)}
_CONNECT = {200: _EVENTS, **problems(404, 408, 410, 413, 415, 422, 429, 503)}
_INPUT = {"requestBody": body("RunAgentInput")}


def _key(run_input: RunAgentInput) -> str:
    return json.dumps([ASKED, run_input.thread_id, run_input.run_id])  # no key of a client has a space


@router.post("", summary="Deliberate, and answer as a run of AG-UI", responses=_RUN, openapi_extra=_INPUT)
async def run_agent(request: Request, door: InDoor) -> Response:
    """The `runId` is the idempotency key of its thread: with another input it is refused."""
    run_input = await body_of(request, RunAgentInput)
    asked = {"run_id": run_input.run_id, "messages": [message.id for message in run_input.said]}
    submission = replace(submission_of(request, {ASKED: asked}), idempotency_key=_key(run_input))
    asked_for = run_input.deliberation(door.registry)
    council = await door.accept(asked_for, submission, files=run_input.files, places=run_input.in_the_input)
    council = replace(council, kept=run_input.forwarded_props.background)
    sent = deliberation_headers(council.state.deliberation_id)
    return council.stream(AgUiWriter(run_input, request_id_of(request)), sent, texts=True)


@router.post("/connect", summary="Join a run of AG-UI, or read it again", responses=_CONNECT, openapi_extra=_INPUT)
async def connect_agent(request: Request, door: InDoor) -> Response:
    """The run or deliberation with the id `runId`, else the thread's newest run: an active one, or of the archive."""
    run_input = await body_of(request, RunAgentInput)
    for id in (keyed_id(door.tenant, _key(run_input)), run_input.run_id):
        with suppress(NotFound, InvalidToken):
            council = await door.council(id)
            break
    else:
        council = await door.newest({THREAD: run_input.thread_id})
    writer = AgUiWriter(run_input, request_id_of(request), behind=len((await council.told()).moments))
    return council.stream(writer, deliberation_headers(council.state.deliberation_id), texts=True, viewer=True)


AG_UI = Facade(router, "ag-ui", "Façade for AG-UI's clients", "/ag-ui", PROBLEM_DOCUMENTS, problems, (RunAgentInput,))
