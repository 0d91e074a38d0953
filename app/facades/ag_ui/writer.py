"""Events of AG-UI 1.0: stages are steps, attempts at calls are subagents' runs, an activity has stages and ranking.

Uses of tools are tool calls of the subagent that makes them.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from app.api.problems import PROBLEM_DOCUMENTS, answer_to
from app.deliberation.actions import arguments_json
from app.deliberation.calls import Usage
from app.deliberation.conversation import turns_of
from app.deliberation.facts import Action, StageOpened
from app.deliberation.fold import State
from app.facades import moments
from app.facades.ag_ui.reader import ASKED, RunAgentInput
from app.facades.moments import Ended, Interrupted, Moment, TextEnded, ToolRan
from app.facades.outcomes import NoVerdict, actions, notes, outcome
from app.facades.summaries import call_text

_Fields = dict[str, Any]
_CUT = "No outcome that counts: the stage closed, the attempt is repeated, or the run or this stream ended."


def _step(opened: StageOpened) -> str:
    return f"{opened.stage} {opened.purpose}"


def _usage(model: str, spent: Usage) -> _Fields:
    sums = {"inputTokens": spent.prompt_tokens, "outputTokens": spent.completion_tokens, "totalTokens": spent.tokens}
    return {"model": model, **sums, "cachedInputTokens": spent.cached_tokens}


class AgUiWriter:
    """Writes a run; a run that a client joins begins with a snapshot of its first `behind` moments."""

    def __init__(self, run_input: RunAgentInput, request_id: str, behind: int = 0) -> None:
        self._input, self._request_id = run_input, request_id
        self._behind, self._joins = behind, behind > 0
        self._run, self._activity = _Fields(), _Fields()
        self._stages: list[_Fields] = []
        self._progress, self._messages = _Fields(), dict[str, _Fields]()
        self._authors: dict[str, dict[str, str]] = {}

    def write(self, moment: Moment) -> Iterator[bytes]:
        events = list(self._events(moment))
        if self._behind:
            self._behind -= 1
            last = events[-1:] if isinstance(moment, Ended | Interrupted) else []
            events = last if self._behind or moment.state is None else [*self._opening(moment.state), *last]
        for event in events:
            yield b"data: " + to_json(event) + b"\n\n"

    def _opening(self, state: State) -> Iterator[_Fields]:
        yield {"type": "RUN_STARTED", **self._run, "protocolVersion": "1.0"}
        if self._joins:
            yield {"type": "MESSAGES_SNAPSHOT", "messages": list(self._messages.values())}
        known = {"id": state.deliberation_id, "href": f"/deliberations/{state.deliberation_id}"}
        yield {"type": "STATE_SNAPSHOT", "snapshot": {**(self._input.state or {}), "deliberation": known}}
        yield {"type": "ACTIVITY_SNAPSHOT", **self._activity, "content": self._progress}
        if state.open_stage is not None and not state.ended:
            yield {"type": "STEP_STARTED", "stepName": _step(state.open_stage.opened)}

    def _progressed(self, state: State, **changed: Any) -> _Fields:  # noqa: ANN401 -- fields
        self._progress = {**self._progress, **changed, "status": state.status}
        names = (*changed, "status")
        patch = [{"op": "replace", "path": f"/{name}", "value": self._progress[name]} for name in names]
        return {"type": "ACTIVITY_DELTA", **self._activity, "patch": patch}

    def _said(self, id: str, text: str, **author: str) -> Iterator[_Fields]:
        if id not in self._messages:
            self._messages[id] = {"id": id, "role": "assistant", "content": "", **author}
            yield {"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant", **author}
        self._messages[id]["content"] += text
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text}

    def _events(self, moment: Moment) -> Iterator[_Fields]:
        match moment:
            case moments.Began(state):
                self._began(state)
                yield from self._opening(state)
            case moments.StageBegan(state, opened):
                yield {"type": "STEP_STARTED", "stepName": _step(opened)}
                stage = {"step": _step(opened), "calls": len(opened.calls), "counted": None, "closed": None}
                self._stages.append(stage)
                yield self._progressed(state, stages=self._stages)
            case moments.TextBegan(state, call, attempt):
                id, name = f"{state.deliberation_id}.{call.planned.call_id}.{attempt}", call.planned.agent_id
                self._authors[call.planned.call_id] = {"name": name, "subagentRunId": id}
                yield {"type": "SUBAGENT_STARTED", **self._authors[call.planned.call_id]}
            case moments.TextGrew(_, call, piece):
                author = self._authors[call.planned.call_id]
                yield from self._said(author["subagentRunId"], piece, **author)
            case ToolRan():
                yield from self._tool_ran(moment)
            case TextEnded():
                yield from self._text_ended(moment)
            case moments.StageEnded(state, opened, closed, cut):
                counted, how = (0, cut) if closed is None else (len(closed.seen), closed.reason)
                self._stages[-1] |= {"counted": counted, "closed": how}
                yield self._progressed(state, stages=self._stages)
                yield {"type": "STEP_FINISHED", "stepName": _step(opened)}
            case moments.Cancelling(state):
                yield self._progressed(state)
            case Ended(state):
                yield from self._ended(state)
            case Interrupted(_, error):
                answered = answer_to(error, PROBLEM_DOCUMENTS, self._request_id)
                yield {"type": "RUN_ERROR", "message": answered.detail, "code": answered.code}

    def _began(self, state: State) -> None:
        id, specified, asked = state.deliberation_id, state.specification, state.accepted.asked.get(ASKED, {})
        self._run = {"threadId": self._input.thread_id, "runId": asked.get("run_id", id)}
        self._activity = {"messageId": f"{id}.progress", "activityType": "deliberation"}
        members = {agent.agent_id: agent.role for agent in specified.agents}
        self._progress = {"strategy": specified.strategy, "members": members, "status": state.status}
        self._progress |= {"stages": [], "ranking": [], "notes": []}
        ids = asked.get("messages", [f"{id}.task"])
        turns = zip(ids, turns_of(specified.task, len(ids)), strict=True)
        self._messages = {id: {"id": id, "role": turn.role, "content": turn.text} for id, turn in turns}

    def _tool_ran(self, moment: ToolRan) -> Iterator[_Fields]:
        """The use as a tool call and its result, each a message of its own, as clients keep them."""
        use = moment.use
        id, run = f"{use.deliberation_id}.{use.call_id}.tool.{use.number}", self._authors.get(use.call_id, {})
        of = {"toolCallId": id} | {name: run[name] for name in ("subagentRunId",) if run}
        said = use.text if use.problem is None else f"{use.problem.code}: {use.problem.detail}"
        result = {"id": f"{id}.result", "role": "tool", "content": said, **of}
        asked = {"id": id, "type": "function", "function": {"name": use.name, "arguments": use.arguments}}
        author = {name: value for name, value in of.items() if name != "toolCallId"}
        self._messages[id] = {"id": id, "role": "assistant", "toolCalls": [asked], **author}
        self._messages[result["id"]] = result
        yield {"type": "TOOL_CALL_START", "toolCallName": use.name, **of}
        yield {"type": "TOOL_CALL_ARGS", "delta": use.arguments, **of}
        yield {"type": "TOOL_CALL_END", **of}
        yield {"type": "TOOL_CALL_RESULT", "messageId": result["id"], "role": "tool", "content": said, **of}

    def _calls(self, id: str, action: Action) -> Iterator[_Fields]:
        """Calls of the front end's tools, whose results come with the messages of the next run."""
        asked = [(call, {"name": call.name, "arguments": arguments_json(call)}) for call in action.calls]
        told = [{"id": call.id, "type": "function", "function": function} for call, function in asked]
        self._messages[id] = {"id": id, "role": "assistant", "toolCalls": told}
        for call, function in asked:
            of = {"toolCallId": call.id}
            yield {"type": "TOOL_CALL_START", "toolCallName": call.name, "parentMessageId": id, **of}
            yield {"type": "TOOL_CALL_ARGS", "delta": function["arguments"], **of}
            yield {"type": "TOOL_CALL_END", **of}

    def _text_ended(self, moment: TextEnded) -> Iterator[_Fields]:
        finished, author = moment.call.finished, self._authors.pop(moment.call.planned.call_id)
        id = author["subagentRunId"]
        if finished is not None and finished.answered:
            text = call_text(moment.call, moment.state.specification.constraints)
            if text.startswith(moment.told) and text != moment.told:
                yield from self._said(id, text.removeprefix(moment.told), **author)
        if id in self._messages:
            yield {"type": "TEXT_MESSAGE_END", "messageId": id}
        if finished is not None and finished.answered:
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": id}
        else:
            problem = None if finished is None else finished.problem
            code, message = ("left_out", _CUT) if problem is None else (problem.code, problem.detail)
            yield {"type": "SUBAGENT_ERROR", "subagentRunId": id, "message": message, "code": code}

    def _ended(self, state: State) -> Iterator[_Fields]:
        verdict, calls = state.end and state.end.verdict, state.finished.values()
        by_model = groupby(
            sorted(calls, key=lambda finished: finished.model or ""), key=lambda finished: finished.model
        )
        usage = [
            _usage(model, Usage.total([finished.usage for finished in spent])) for model, spent in by_model if model
        ]
        ranking = [] if verdict is None else [standing.model_dump(mode="json") for standing in verdict.ranking]
        yield self._progressed(state, ranking=ranking, notes=list(notes(state)))
        if state.status == "cancelled":
            yield {"type": "RUN_FINISHED", **self._run, "outcome": {"type": "cancelled"}, "usage": usage}
            return
        try:
            ended = actions(state)
        except NoVerdict as none:
            yield {"type": "RUN_ERROR", "message": str(none), "code": none.problem.code, "usage": usage}
            return
        for number, action in enumerate(ended):
            id = f"{state.deliberation_id}.verdict.{number}"
            if action.reply is None:
                yield from self._calls(id, action)
                continue
            yield from self._said(id, action.reply)
            yield {"type": "TEXT_MESSAGE_END", "messageId": id}
        finished = {"outcome": {"type": "success"}, "result": outcome(state).model_dump(mode="json"), "usage": usage}
        yield {"type": "RUN_FINISHED", **self._run, **finished}
