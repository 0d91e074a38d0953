"""Responses and their events, from the moments of a deliberation.

A stage is a reasoning item, and what its members contributed are parts of its summary. A use of a tool is an item
`mcp_call`. The verdict is the message. The events come from facts alone, in the order of the log, so that their numbers
are the same for every reader and for ever.
As an extension a response has the field `deliberation`, and its usage has the bill of each member and each stage.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import Field
from pydantic_core import to_json

from app.api.problems import ErrorAnswer, answer_to
from app.api.schemas import Resource
from app.deliberation.actions import arguments_json
from app.deliberation.calls import FactProblem, UsageCost
from app.deliberation.conversation import ConversationTurn, calls_said
from app.deliberation.facts import ActionCall, AgentUsage, StageUsage
from app.deliberation.fold import State, usage
from app.facades.moments import Began, Ended, Interrupted, Moment, StageBegan, StageEnded, TextEnded, ToolRan
from app.facades.openai_errors import DONE, OPENAI_ERRORS
from app.facades.openai_requests import ChoiceMode
from app.facades.outcomes import DeliberationOutcome, NoVerdict, actions, is_cut_off, model_name, notes, outcome
from app.facades.responses.reader import ASKED, conversation_in
from app.facades.summaries import stage_begun, stage_ended, summary

# An item, a part of one, or an event, with its fields in the order of Open Responses, which describes them.
ResponseObject = dict[str, Any]
PIECE_CHARS = 256
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_STATUSES: dict[str, ResponseStatus] = {
    "pending": "queued", "in_progress": "in_progress", "cancelling": "in_progress", "completed": "completed",
    "failed": "failed", "timeout": "failed", "cancelled": "cancelled",
}  # fmt: skip


class ResponseUsage(Resource):
    """Tokens of all calls of all agents, as the engines reported them."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int] = Field(
        description="The reasoning is all calls but the one that wrote the verdict"
    )
    total_tokens: int
    calls: int
    cost: UsageCost | None = Field(description="What they cost; null where no engine has prices")
    by_stage: tuple[StageUsage, ...]
    by_agent: tuple[AgentUsage, ...]


class ResponseResource(Resource):
    """A deliberation as a response."""

    id: str = Field(description="`resp_` and the deliberation's id")
    object: Literal["response"] = "response"
    created_at: int = Field(description="Unix time of the acceptance")
    completed_at: int | None = Field(description="Unix time of the end, if it has a verdict")
    status: ResponseStatus
    error: ResponseObject | None = Field(description="The reason of a missing answer")
    incomplete_details: dict[str, str] | None = Field(
        default=None, description="`reason` is `max_output_tokens` where that limit left no answer"
    )
    model: str
    instructions: str | None
    previous_response_id: str | None = None
    output: tuple[ResponseObject, ...] = Field(
        description="A `reasoning` item for each stage, an `mcp_call` for each use of the council's own tools, then "
        "the `message`, or a `function_call` for each call of the client's"
    )
    usage: ResponseUsage | None = Field(description="Null before the end")
    metadata: dict[str, str]
    temperature: float
    top_p: float
    max_output_tokens: int | None = None
    text: dict[str, Any]
    reasoning: dict[str, Any]
    truncation: Literal["auto", "disabled"] = "disabled"
    background: bool = False
    store: bool = True
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["default"] = "default"
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ChoiceMode | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    presence_penalty: int = 0
    frequency_penalty: int = 0
    top_logprobs: int = 0
    deliberation: DeliberationOutcome | None = Field(description="Null without a verdict")


class ResponseDeleted(Resource):
    """The receipt of a deletion."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItemPage(Resource):
    """Items of a response's input."""

    object: Literal["list"] = "list"
    data: tuple[ResponseObject, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


def _asked(state: State) -> dict[str, Any]:
    """The request's fields in the form of an answer: every field is present."""
    repeated = state.accepted.asked.get(ASKED, {})
    text, reasoning = repeated.get("text", {}), repeated.get("reasoning", {})
    form = {"type": "text", **text.get("format", {})}
    if form["type"] == "json_schema":
        form = {"description": None, "strict": False, **form}
    return {**repeated, "text": {**text, "format": form}, "reasoning": {"effort": None, "summary": None, **reasoning}}


def _is_incomplete(state: State) -> bool:
    return bool(_asked(state).get("max_output_tokens")) and is_cut_off(state)


def _usage(state: State) -> ResponseUsage:
    spent, verdict = usage(state), None if state.end is None else state.end.verdict
    final = None if verdict is None or verdict.call_id is None else state.finished.get(verdict.call_id)
    answered = 0 if final is None else final.usage.completion_tokens
    sums = {
        "input_tokens": spent.prompt_tokens,
        "input_tokens_details": {"cached_tokens": spent.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": spent.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": spent.completion_tokens - answered},
        "total_tokens": spent.tokens,
    }
    return ResponseUsage.model_validate({**dict(spent), **sums})


def _summary(text: str) -> ResponseObject:
    return {"type": "summary_text", "text": text}


def _output(text: str, *notes: ResponseObject) -> ResponseObject:
    return {"type": "output_text", "text": text, "annotations": notes, "logprobs": []}


def _message(id: str, status: str, role: str, *content: ResponseObject) -> ResponseObject:
    return {"type": "message", "id": id, "status": status, "role": role, "content": content}


class ResponseWriter:
    """Folds moments into numbered events and the output so far, and writes the events with numbers above `after`.

    Every item is added, filled and done by facts; an interrupted reading adds nothing that the next one would repeat.
    An interruption closes the stream with an error that has the last event's number. The response goes on, and the
    next reader continues after that number.
    """

    def __init__(self, request_id: str = "", after: int = -1) -> None:
        self._request_id, self._after = request_id, after
        self._number, self._detailed = -1, False
        self._output: list[ResponseObject] = []
        # The item of the open stage, or the message.
        self._open = 0

    def write(self, moment: Moment) -> Iterator[bytes]:
        for event in self.events(moment):
            if event["sequence_number"] > self._after:
                yield _frame(event)
        if isinstance(moment, Interrupted):
            error = _problem(answer_to(moment.error, OPENAI_ERRORS, self._request_id))
            yield _frame({"type": "error", "sequence_number": max(self._number, 0), "error": error})
        if isinstance(moment, Ended | Interrupted):
            yield DONE

    def resource(self, state: State) -> ResponseResource:
        end, specified = state.end, state.specification
        status, sampling = _STATUSES[state.status], specified.agents[0].sampling
        incomplete = _is_incomplete(state)
        return ResponseResource.model_validate(
            {
                "id": f"resp_{state.deliberation_id}",
                "created_at": int(state.accepted.ts.timestamp()),
                "completed_at": int(end.ts.timestamp()) if end is not None and status == "completed" else None,
                "status": "incomplete" if incomplete else status,
                "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
                "error": None if incomplete or end is None or end.problem is None else _problem(end.problem),
                "model": model_name(state),
                "instructions": conversation_in(state)[0],
                "output": tuple(self._output),
                "usage": None if end is None else _usage(state),
                "metadata": specified.metadata,
                "temperature": sampling.temperature,
                "top_p": 1 if sampling.top_p is None else sampling.top_p,
                "deliberation": None if end is None or end.verdict is None else outcome(state),
                **_asked(state),
            }
        )

    def events(self, moment: Moment) -> Iterator[ResponseObject]:
        match moment:
            case Began(state):
                self._detailed = _asked(state)["reasoning"]["summary"] in ("auto", "detailed")
                yield self._event("response.created", response=self.resource(state))
                yield self._event("response.queued", response=self.resource(state))
            case StageBegan(state, opened):
                if opened.stage == 1:
                    yield self._event("response.in_progress", response=self.resource(state))
                id = f"rs_{state.deliberation_id}_{opened.stage}"
                yield self._added({"type": "reasoning", "id": id, "status": "in_progress", "summary": ()})
                yield from self._part(stage_begun(opened))
            case ToolRan():
                yield from self._tool_ran(moment)
            case TextEnded(state, call, cut=None) if self._detailed:
                yield from self._part(summary(call, state.specification.constraints))
            case StageEnded(_, opened, closed, cut) if cut != "interruption":
                yield from self._part(stage_ended(opened, closed))
                yield self._done(status="completed" if closed is not None else "incomplete")
            case Ended(state):
                yield from self._ended(state)
            case _:
                return

    def _event(self, kind: str, **fields: Any) -> ResponseObject:  # noqa: ANN401 -- fields
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _added(self, item: ResponseObject) -> ResponseObject:
        self._output.append(item)
        self._open = len(self._output) - 1
        return self._event("response.output_item.added", output_index=self._open, item=item)

    def _done(self, **changed: Any) -> ResponseObject:  # noqa: ANN401 -- fields
        item = self._output[self._open] = self._output[self._open] | changed
        return self._event("response.output_item.done", output_index=self._open, item=item)

    def _tool_ran(self, moment: ToolRan) -> Iterator[ResponseObject]:
        """The use as an item beside the open stage's."""
        use, stage = moment.use, self._open
        id = f"mcp_{use.deliberation_id}_{use.call_id}_{use.number}"
        failed = use.text or "failed" if use.failed else None
        said = failed if use.problem is None else f"{use.problem.code}: {use.problem.detail}"
        item = {"type": "mcp_call", "id": id, "server_label": use.server, "name": use.name}
        yield self._added({**item, "arguments": "", "output": None, "error": None, "status": "in_progress"})
        place = {"output_index": self._open, "item_id": id}
        yield self._event("response.mcp_call.in_progress", **place)
        yield self._event("response.mcp_call_arguments.delta", **place, delta=use.arguments)
        yield self._event("response.mcp_call_arguments.done", **place, arguments=use.arguments)
        status = "completed" if said is None else "failed"
        yield self._event(f"response.mcp_call.{status}", **place)
        error = None if said is None else {"type": "mcp_tool_execution_error", "content": said}
        output = use.text if said is None else None
        yield self._done(arguments=use.arguments, output=output, error=error, status=status)
        self._open = stage

    def _part(self, text: str) -> Iterator[ResponseObject]:
        item, part = self._output[self._open], _summary(text)
        place = {"output_index": self._open, "item_id": item["id"], "summary_index": len(item["summary"])}
        self._output[self._open] = item | {"summary": (*item["summary"], part)}
        yield self._event("response.reasoning_summary_part.added", **place, part=_summary(""))
        yield self._event("response.reasoning_summary_text.delta", **place, delta=text)
        yield self._event("response.reasoning_summary_text.done", **place, text=text)
        yield self._event("response.reasoning_summary_part.done", **place, part=part)

    def _ended(self, state: State) -> Iterator[ResponseObject]:
        if _is_incomplete(state):
            yield self._event("response.incomplete", response=self.resource(state))
            return
        try:
            ended = actions(state)
        except NoVerdict as none:
            # Clients know no event of a cancelled response; `response` has its true status.
            if state.end is not None and state.end.problem is None:
                yield self._event("error", error=_problem(none.problem))
            yield self._event("response.failed", response=self.resource(state))
            return
        for index, action in enumerate(ended):
            if action.reply is not None:
                yield from self._answer(state, f"msg_{state.deliberation_id}_{index}", action.reply)
            for number, call in enumerate(action.calls):
                yield from self._call(f"fc_{state.deliberation_id}_{index}_{number}", call)
        yield self._event("response.completed", response=self.resource(state))

    def _call(self, id: str, call: ActionCall) -> Iterator[ResponseObject]:
        item = {"type": "function_call", "id": id, "call_id": call.id, "name": call.name}
        yield self._added({**item, "arguments": "", "status": "in_progress"})
        place, arguments = {"output_index": self._open, "item_id": id}, arguments_json(call)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, name=call.name, arguments=arguments)
        yield self._done(arguments=arguments, status="completed")

    def _answer(self, state: State, id: str, text: str) -> Iterator[ResponseObject]:
        yield self._added(_message(id, "in_progress", "assistant"))
        place = {"output_index": self._open, "item_id": id, "content_index": 0}
        yield self._event("response.content_part.added", **place, part=_output(""))
        for begin in range(0, len(text), PIECE_CHARS):
            piece = text[begin : begin + PIECE_CHARS]
            yield self._event("response.output_text.delta", **place, delta=piece, logprobs=())
        yield self._event("response.output_text.done", **place, text=text, logprobs=())
        cited = {"type": "url_citation", "url": f"/deliberations/{state.deliberation_id}"}
        annotations = [{**cited, "title": note, "start_index": 0, "end_index": len(text)} for note in notes(state)]
        for number, note in enumerate(annotations):
            added = {"annotation_index": number, "annotation": note}
            yield self._event("response.output_text.annotation.added", **place, **added)
        part = _output(text, *annotations)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._done(status="completed", content=(part,))


def resource_of(moments: Iterable[Moment], state: State) -> ResponseResource:
    """The response after these moments, from the first one on; `state` has its bill."""
    writer = ResponseWriter()
    for moment in moments:
        list(writer.events(moment))
    return writer.resource(state)


def _problem(problem: FactProblem | ErrorAnswer) -> ResponseObject:
    return {"type": "server_error", "code": problem.code, "message": problem.detail, "param": None}


def _frame(event: ResponseObject) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + to_json(event) + b"\n\n"


def input_page(state: State, *, limit: int, newest_first: bool, after: str | None) -> InputItemPage:
    """Items of the input, an earlier response's first; `after` is the id of the item before the page."""
    items = [_input_item(state, number, turn) for number, turn in enumerate(conversation_in(state)[1])]
    items = items[::-1] if newest_first else items
    rest = items[next((place for place, item in enumerate(items, 1) if item["id"] == after), 0) :]
    ids = [item["id"] for item in rest[:limit]] or [None]
    return InputItemPage(data=tuple(rest[:limit]), first_id=ids[0], last_id=ids[-1], has_more=len(rest) > limit)


def _input_item(state: State, number: int, turn: ConversationTurn) -> ResponseObject:
    id = f"msg_{state.deliberation_id}_input_{number}"
    if turn.role == "tool":
        return {"type": "function_call_output", "id": id, "call_id": turn.name, "output": turn.text}
    said, calls = calls_said(turn.text) if turn.role == "assistant" else (turn.text, [])
    if len(calls) == 1 and not said:
        (call,) = calls
        told = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        return {"type": "function_call", "id": id, **told, "status": "completed"}
    content = _output(turn.text) if turn.role == "assistant" else {"type": "input_text", "text": turn.text}
    return _message(id, "completed", turn.role, content)
