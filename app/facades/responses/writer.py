"""Responses and their events, from the moments of a deliberation.

A stage is a reasoning item, and what its members contributed are parts of its summary. The verdict is the message. The
events come from facts alone, in the order of the log, so that their numbers are the same for every reader and for ever.
As an extension a response has the field `deliberation`, and its usage has the bill of each member and each stage.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal

from pydantic import Field

from app.api.problems import ErrorAnswer, answer_to
from app.api.schemas import Resource
from app.deliberation.calls import FactProblem, UsageCost
from app.deliberation.facts import AgentUsage, StageUsage
from app.deliberation.fold import State, usage
from app.facades.moments import Began, Ended, Interrupted, Moment, StageBegan, StageEnded, TextEnded
from app.facades.openai_errors import DONE, OPENAI_ERRORS
from app.facades.openai_requests import ConversationTurn
from app.facades.outcomes import DeliberationOutcome, NoVerdict, answers, model_name, notes, outcome
from app.facades.responses.reader import ASKED, INSTRUCTIONS, conversation_in
from app.facades.summaries import summary

PIECE_CHARS = 256
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
_STATUSES: dict[str, ResponseStatus] = {
    "pending": "queued", "in_progress": "in_progress", "cancelling": "in_progress", "completed": "completed",
    "failed": "failed", "timeout": "failed", "cancelled": "cancelled",
}  # fmt: skip


class SummaryText(Resource):
    """A part of a reasoning item's summary: the stage, a member's work, or the stage's close."""

    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningItem(Resource):
    """A stage of the deliberation."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    status: ItemStatus
    summary: tuple[SummaryText, ...] = ()


class UrlCitation(Resource):
    """A note on the verdict: a member's dissent, or a degradation."""

    type: Literal["url_citation"] = "url_citation"
    url: str = Field(description="Path of the deliberation")
    title: str
    start_index: int
    end_index: int


class OutputText(Resource):
    """The verdict's text."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: tuple[UrlCitation, ...] = ()
    logprobs: tuple[dict[str, Any], ...] = ()


class InputText(Resource):
    """A text of the input."""

    type: Literal["input_text"] = "input_text"
    text: str


class MessageItem(Resource):
    """A message: the verdict's answer, or with `independent` one agent's; or one of the input."""

    type: Literal["message"] = "message"
    id: str
    status: ItemStatus
    role: Literal["assistant", "user", "system", "developer"] = "assistant"
    content: tuple[OutputText | InputText, ...] = ()


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


class ResponseProblem(Resource):
    """The reason of a missing answer, or of an interrupted stream."""

    type: Literal["server_error"] = "server_error"
    code: str
    message: str
    param: None = None


class ResponseResource(Resource):
    """A deliberation as a response."""

    id: str = Field(description="`resp_` and the deliberation's id")
    object: Literal["response"] = "response"
    created_at: int = Field(description="Unix time of the acceptance")
    completed_at: int | None = Field(description="Unix time of the end, if it has a verdict")
    status: ResponseStatus
    error: ResponseProblem | None
    incomplete_details: None = None
    model: str
    instructions: str | None
    previous_response_id: str | None = None
    output: tuple[ReasoningItem | MessageItem, ...]
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
    tool_choice: Literal["auto"] = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: None = None
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
    data: tuple[MessageItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseEvent(Resource):
    """An event of a response: fields that its type does not have are absent."""

    model_config = {"frozen": True, "json_schema_serialization_defaults_required": False}

    type: str
    sequence_number: int = Field(description="From 0; give the last one as `starting_after`")
    response: ResponseResource | None = None
    output_index: int | None = None
    item: ReasoningItem | MessageItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    summary_index: int | None = None
    annotation_index: int | None = None
    part: SummaryText | OutputText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: tuple[dict[str, Any], ...] | None = None
    annotation: UrlCitation | None = None
    error: ResponseProblem | None = None


def _asked(state: State) -> dict[str, Any]:
    """The request's fields in the form of an answer: every field is present."""
    given = state.accepted.asked.get(ASKED, {})
    text, reasoning = given.get("text", {}), given.get("reasoning", {})
    form = {"type": "text", **text.get("format", {})}
    if form["type"] == "json_schema":
        form = {"description": None, "strict": False, **form}
    return {**given, "text": {**text, "format": form}, "reasoning": {"effort": None, "summary": None, **reasoning}}


def turns_in(state: State) -> tuple[str | None, Sequence[ConversationTurn]]:
    """The instructions and the messages that the task was written from."""
    turns = conversation_in(state)
    given = next((turn.text for turn in turns if turn[:2] == INSTRUCTIONS), None)
    return given, [turn for turn in turns if turn[:2] != INSTRUCTIONS]


def _usage(state: State) -> ResponseUsage:
    spent, verdict = usage(state), None if state.end is None else state.end.verdict
    final = None if verdict is None or verdict.call_id is None else state.finished.get(verdict.call_id)
    answered = 0 if final is None else final.usage.completion_tokens
    return ResponseUsage(
        input_tokens=spent.prompt_tokens,
        input_tokens_details={"cached_tokens": spent.cached_tokens, "cache_write_tokens": 0},
        output_tokens=spent.completion_tokens,
        output_tokens_details={"reasoning_tokens": spent.completion_tokens - answered},
        total_tokens=spent.tokens,
        calls=spent.calls,
        cost=spent.cost,
        by_stage=spent.by_stage,
        by_agent=spent.by_agent,
    )


class ResponseWriter:
    """Folds moments into numbered events and the output so far, and writes the events with numbers above `after`.

    Every item is added, filled and done by facts; an interrupted reading adds nothing that the next one would repeat.
    An interruption closes the stream with an error that has the last event's number. The response goes on, and the
    next reader continues after that number.
    """

    def __init__(self, request_id: str = "", after: int = -1) -> None:
        self._request_id, self._after = request_id, after
        self._number, self._detailed = -1, False
        self._output: list[ReasoningItem | MessageItem] = []

    def write(self, moment: Moment) -> Iterator[bytes]:
        for event in self.events(moment):
            if event.sequence_number > self._after:
                yield _frame(event)
        if isinstance(moment, Interrupted):
            error = _problem(answer_to(moment.error, OPENAI_ERRORS, self._request_id))
            yield _frame(ResponseEvent(type="error", sequence_number=max(self._number, 0), error=error))
        if isinstance(moment, Ended | Interrupted):
            yield DONE

    def resource(self, state: State) -> ResponseResource:
        end, specified = state.end, state.specification
        status, sampling = _STATUSES[state.status], specified.agents[0].sampling
        return ResponseResource.model_validate(
            {
                "id": f"resp_{state.deliberation_id}",
                "created_at": int(state.accepted.ts.timestamp()),
                "completed_at": int(end.ts.timestamp()) if end is not None and status == "completed" else None,
                "status": status,
                "error": None if end is None or end.problem is None else _problem(end.problem),
                "model": model_name(state),
                "instructions": turns_in(state)[0],
                "output": tuple(self._output),
                "usage": None if end is None else _usage(state),
                "metadata": specified.metadata,
                "temperature": sampling.temperature,
                "top_p": 1 if sampling.top_p is None else sampling.top_p,
                "deliberation": None if end is None or end.verdict is None else outcome(state),
                **_asked(state),
            }
        )

    def events(self, moment: Moment) -> Iterator[ResponseEvent]:
        match moment:
            case Began(state):
                self._detailed = _asked(state)["reasoning"]["summary"] in ("auto", "detailed")
                yield self._event("response.created", response=self.resource(state))
                yield self._event("response.queued", response=self.resource(state))
            case StageBegan(state, opened):
                if opened.stage == 1:
                    yield self._event("response.in_progress", response=self.resource(state))
                item = ReasoningItem(id=f"rs_{state.deliberation_id}_{opened.stage}", status="in_progress")
                self._output.append(item)
                yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
                members = ", ".join(dict.fromkeys(call.agent_id for call in opened.calls))
                stage = opened.purpose + (f", round {opened.round}" if opened.round else "")
                yield from self._part(f"**{stage}**\n\nAsked: {members}.")
            case TextEnded(state, call, cut=None) if self._detailed:
                yield from self._part(summary(call, state.specification.constraints))
            case StageEnded(_, opened, closed, cut) if cut != "interruption":
                counted = len(closed.seen) if closed is not None else 0
                how = f"closed: {closed.reason}" if closed is not None else "the deliberation ended first"
                yield from self._part(f"{counted} of {len(opened.calls)} outcomes counted ({how}).")
                yield self._done({"status": "completed" if closed is not None else "incomplete"})
            case Ended(state):
                yield from self._ended(state)
            case _:
                return

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:  # noqa: ANN401 -- fields
        self._number += 1
        return ResponseEvent(type=kind, sequence_number=self._number, **fields)

    def _done(self, update: dict[str, Any]) -> ResponseEvent:
        item = self._output[-1] = self._output[-1].model_copy(update=update)
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _part(self, text: str) -> Iterator[ResponseEvent]:
        item = self._output[-1]
        assert isinstance(item, ReasoningItem), "a stage's item is open"
        part = SummaryText(text=text)
        place = {"item_id": item.id, "output_index": len(self._output) - 1, "summary_index": len(item.summary)}
        self._output[-1] = item.model_copy(update={"summary": (*item.summary, part)})
        yield self._event("response.reasoning_summary_part.added", **place, part=SummaryText(text=""))
        yield self._event("response.reasoning_summary_text.delta", **place, delta=text)
        yield self._event("response.reasoning_summary_text.done", **place, text=text)
        yield self._event("response.reasoning_summary_part.done", **place, part=part)

    def _ended(self, state: State) -> Iterator[ResponseEvent]:
        try:
            texts = answers(state)
        except NoVerdict as none:
            # Clients know no event of a cancelled response; `response` has its true status.
            if state.end is not None and state.end.problem is None:
                yield self._event("error", error=_problem(none.problem))
            yield self._event("response.failed", response=self.resource(state))
            return
        for index, text in enumerate(texts):
            yield from self._message(state, f"msg_{state.deliberation_id}_{index}", text)
        yield self._event("response.completed", response=self.resource(state))

    def _message(self, state: State, id: str, text: str) -> Iterator[ResponseEvent]:
        item = MessageItem(id=id, status="in_progress")
        self._output.append(item)
        index = len(self._output) - 1
        place = {"item_id": id, "output_index": index, "content_index": 0}
        yield self._event("response.output_item.added", output_index=index, item=item)
        yield self._event("response.content_part.added", **place, part=OutputText(text=""))
        for begin in range(0, len(text), PIECE_CHARS):
            piece = text[begin : begin + PIECE_CHARS]
            yield self._event("response.output_text.delta", **place, delta=piece, logprobs=())
        yield self._event("response.output_text.done", **place, text=text, logprobs=())
        url, end = f"/deliberations/{state.deliberation_id}", len(text)
        cited = tuple(UrlCitation(url=url, title=note, start_index=0, end_index=end) for note in notes(state))
        for number, note in enumerate(cited):
            added = {"annotation_index": number, "annotation": note}
            yield self._event("response.output_text.annotation.added", **place, **added)
        part = OutputText(text=text, annotations=cited)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._done({"status": "completed", "content": (part,)})


def resource_of(moments: Iterable[Moment], state: State) -> ResponseResource:
    """The response after these moments, from the first one on; `state` has its bill."""
    writer = ResponseWriter()
    for _ in chain.from_iterable(map(writer.events, moments)):
        pass
    return writer.resource(state)


def _problem(problem: FactProblem | ErrorAnswer) -> ResponseProblem:
    return ResponseProblem(code=problem.code, message=problem.detail)


def _frame(event: ResponseEvent) -> bytes:
    absent = ResponseEvent.model_fields.keys() - event.model_fields_set
    data = event.__pydantic_serializer__.to_json(event, exclude=absent)
    return f"event: {event.type}\ndata: ".encode() + data + b"\n\n"


def input_page(state: State, *, limit: int, newest_first: bool, after: str | None) -> InputItemPage:
    """Items of the input, an earlier response's first; `after` is the id of the item before the page."""
    items = [_input_item(state, number, turn) for number, turn in enumerate(turns_in(state)[1])]
    items = items[::-1] if newest_first else items
    begin = next((place + 1 for place, item in enumerate(items) if item.id == after), 0)
    page = items[begin : begin + limit]
    return InputItemPage(
        data=tuple(page),
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=begin + limit < len(items),
    )


def _input_item(state: State, number: int, turn: ConversationTurn) -> MessageItem:
    content = OutputText(text=turn.text) if turn.role == "assistant" else InputText(text=turn.text)
    id = f"msg_{state.deliberation_id}_input_{number}"
    return MessageItem(id=id, status="completed", role=turn.role, content=(content,))  # pyright: ignore[reportArgumentType] -- a conversation's role
