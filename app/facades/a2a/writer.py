"""Tasks, their events and errors as A2A 1.0 writes them: a task is a deliberation, and its verdict an artifact."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from app.api.problems import PROBLEM_DOCUMENTS, STATUSES, ErrorAnswer, ErrorFormat, answer_to, request_id_of
from app.api.requests import DeliberationRequest
from app.api.schemas import FieldProblem
from app.api.webhook_payloads import TASK_CONTEXT, TASK_STATES
from app.deliberation.errors import DeliberationError
from app.deliberation.facts import StageClosed
from app.deliberation.fold import State, usage
from app.facades.a2a.reader import PLACES, UNREADABLE_PARTS
from app.facades.moments import Began, Cancelling, Ended, Interrupted, Moment, StageBegan, StageEnded
from app.facades.openai_errors import param
from app.facades.outcomes import NoVerdict, answers, notes, outcome

A2AObject = dict[str, Any]
# The name of this façade's part of what an acceptance repeats.
ASKED = "a2a"
PATH = "/a2a"
# JSON-RPC's codes of the errors that are answered with status 200. All others keep their HTTP status.
RPC_CODES: dict[str, int] = {
    **{"invalid_json": -32700, "method_unknown": -32601, "no_verdict": -32603, "task_not_cancelable": -32002},
    **{"unsupported_operation": -32004, "version_not_supported": -32009},
    **dict.fromkeys(("not_found", "gone", "invalid_id"), -32001),
    **dict.fromkeys(("invalid_request", "invalid_cursor", "idempotency_conflict"), -32602),
}
_CODES_WITH_STATUS = {"internal_error": -32603, "unsupported_media_type": -32005}
_REASONS = {-32001: "TASK_NOT_FOUND", -32005: "CONTENT_TYPE_NOT_SUPPORTED"}
_INFO = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "a2a-protocol.org"}


class TaskRefused(DeliberationError):
    """An error that A2A names, by a code of its own."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code  # pyright: ignore[reportAttributeAccessIssue] -- one class for four codes


def _message(state: State, id: str, role: str, *texts: str) -> A2AObject:
    return {"messageId": id, "role": role, "parts": [{"text": text} for text in texts], **_place(state)}


def _place(state: State) -> A2AObject:
    id = state.deliberation_id
    return {"taskId": id, "contextId": state.specification.metadata.get(TASK_CONTEXT, id)}


def _said(state: State) -> Iterator[str]:
    """The latest stage; after the end its cause, the dissent and the degradation."""
    if state.end is not None:
        cause = state.cancel.reason if state.cancel is not None and state.status == "cancelled" else None
        yield from filter(None, (state.end.problem and state.end.problem.detail, cause))
        yield from notes(state)
    elif state.stages:
        opened, closed = state.stages[-1].opened, state.stages[-1].closed
        counted = "" if closed is None else f"{len(closed.seen)} of "
        yield f"Stage {opened.stage}, {opened.purpose}, round {opened.round}: {counted}{len(opened.calls)} calls"


def _told(state: State) -> A2AObject:
    """The status, and after the end the bill and the outcome."""
    stage, said = state.stages[-1] if state.stages else None, [*_said(state)]
    latest = state.end or (state.accepted if stage is None else stage.closed or stage.opened)
    status: A2AObject = {"state": TASK_STATES[state.status], "timestamp": latest.ts}
    if said:
        status["message"] = _message(state, f"{state.deliberation_id}-{state.revision}", "ROLE_AGENT", *said)
    if state.end is None:
        return {"status": status}
    verdict = outcome(state) if state.end.verdict is not None else None
    return {"status": status, "metadata": {"usage": usage(state), "deliberation": verdict}}


def _artifacts(state: State) -> list[A2AObject]:
    kind = "text/plain" if state.specification.constraints.answer_schema is None else "application/json"
    try:
        texts = enumerate(answers(state) if state.ended else ())
    except NoVerdict:
        return []
    return [{"artifactId": f"verdict-{n}", "parts": [{"text": text, "mediaType": kind}]} for n, text in texts]


def task_of(state: State, history_length: int | None = None) -> A2AObject:
    id = state.deliberation_id
    message_id = state.accepted.asked.get(ASKED, {}).get("messageId", f"{id}-0")
    history = [] if history_length == 0 else [_message(state, message_id, "ROLE_USER", state.specification.task)]
    task = {"id": id, "contextId": _place(state)["contextId"], "artifacts": _artifacts(state), "history": history}
    return task | _told(state)


def answer(request: Request, **told: object) -> bytes:
    """A response of JSON-RPC, with a `result` or an `error`."""
    return to_json({"jsonrpc": "2.0", "id": request.scope.get("rpc_id"), **told})


def _parameter(fault: FieldProblem) -> str:
    """The fault's place in `params`, as `message.parts[0].text`."""
    name, _, rest = fault.pointer.removeprefix("/metadata").removeprefix("/").partition("/")
    if name in PLACES or name in DeliberationRequest.model_fields or fault.pointer.startswith("/metadata/"):
        return ".".join(filter(None, (PLACES.get(name) or f"metadata.{name}", param(rest))))
    return param(fault.pointer) or ""


def rpc_error(request: Request, answered: ErrorAnswer) -> A2AObject:
    read, code = "rpc_read" in request.scope, (RPC_CODES | _CODES_WITH_STATUS).get(answered.code, -32000)
    said = [
        (_parameter(fault) if read else fault.pointer, f"{fault.detail.rstrip('.')}. {fault.remedy}")
        for fault in answered.errors
    ]
    if code == -32602:
        unreadable = any(fault.code in UNREADABLE_PARTS for fault in answered.errors)
        code = -32005 if unreadable else -32602 if read else -32600
    info = {**_INFO, "reason": _REASONS.get(code, answered.code.upper()), "metadata": dict(said)}
    return {"code": code, "message": " ".join(map(": ".join, said)) or answered.detail, "data": [info]}


def _render(request: Request, answered: ErrorAnswer) -> Response:
    if request.url.path != PATH:
        # No method of JSON-RPC: a client that looks for a document must see that there is none.
        return PROBLEM_DOCUMENTS.render(request, answered)
    status = 200 if answered.code in RPC_CODES else STATUSES[answered.code][0]
    headers = {"Cache-Control": "no-store", **answered.headers}
    return Response(answer(request, error=rpc_error(request, answered)), status, headers, "application/json")


A2A_ERRORS = ErrorFormat(lambda e: e.code if e.code in RPC_CODES or e.code in STATUSES else None, _render)


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """Writes the task as `known`, then the updates that follow it."""

    request: Request
    known: State

    def write(self, moment: Moment) -> Iterator[bytes]:
        yield from (b"data: %b\n\n" % answer(self.request, **reply) for reply in self._answers(moment))

    def _answers(self, moment: Moment) -> Iterator[A2AObject]:
        match moment:
            case Interrupted(error=error):
                answered = answer_to(error, A2A_ERRORS, request_id_of(self.request))
                yield {"error": rpc_error(self.request, answered)}
            case Began():
                yield {"result": {"task": task_of(self.known)}}
            case StageBegan(state) | StageEnded(state, closed=StageClosed()) | Cancelling(state) | Ended(state):
                if state.last_sequence > self.known.last_sequence:
                    for artifact in _artifacts(state):
                        yield {"result": {"artifactUpdate": {**_place(state), "artifact": artifact, "lastChunk": True}}}
                    yield {"result": {"statusUpdate": {**_place(state), **_told(state)}}}
            case _:
                return
