"""The input of a run, and the deliberation that it asks for. AG-UI ignores input that it does not know."""

from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel

from app.api.problems import ValidationFailed, body_fault
from app.api.requests import DeliberationRequest, RequestModel
from app.api.schemas import FieldProblem
from app.facades import openai_requests as openai

# The name of this façade's part of what an acceptance repeats, and the metadata by which a thread's runs are found.
ASKED, THREAD = "ag_ui", "ag_ui.thread"
OPTIONS = "/forwardedProps/deliberation"
_Id = Annotated[str, Field(min_length=1, max_length=512)]
_SAID = [{"id": "message-1", "role": "user", "content": "Merge two sorted lists."}]
_PROPS = {"deliberation": {"strategy": "council", "num_agents": 3}}
_EXAMPLES: list[Any] = [{"threadId": "thread-1", "runId": "run-1", "messages": _SAID, "forwardedProps": _PROPS}]


def _text(content: Any) -> str:  # noqa: ANN401 -- JSON
    """The text of a message; other parts are named, because AG-UI fails no run for a part that agents cannot read."""
    parts = cast("list[Any]", content) if isinstance(content, list) else [{"text": content}]
    known: list[dict[str, Any]] = [each for each in parts if isinstance(each, dict)]
    return "\n".join(str(each.get("text") or f"[{each.get('type', 'nothing')} left out]") for each in known)


class AgUiModel(RequestModel, extra="ignore", alias_generator=to_camel): ...


class AgUiMessage(AgUiModel):
    """A message of the thread; agents read the texts of four roles, without those of earlier runs' members."""

    id: _Id
    role: Literal["user", "assistant", "system", "developer", "tool", "activity", "reasoning"]
    content: Annotated[str, BeforeValidator(_text)] = Field(default="", json_schema_extra=openai.content_schema("text"))
    subagent_run_id: str | None = None


class ForwardedProps(AgUiModel):
    """The application's own values: two are read."""

    background: bool = Field(default=False, description="The run goes on when its client leaves")
    deliberation: dict[str, Any] = Field(default={}, description="Fields of `POST /deliberations`")


class RunAgentInput(AgUiModel, json_schema_extra={"examples": _EXAMPLES}):
    """The input of a run. The same `threadId` and `runId` never start a second deliberation."""

    thread_id: _Id
    run_id: _Id
    messages: list[AgUiMessage] = Field(max_length=1_024)
    context: list[dict[str, str]] = Field(default=[], max_length=32, description="Evidence for every agent")
    forwarded_props: ForwardedProps = ForwardedProps()
    state: dict[str, Any] | None = Field(default=None, description="Given back with the field `deliberation`")
    tools: Annotated[openai.NoItems, openai.Unsupported(openai.NO_TOOLS)] = None
    resume: Annotated[openai.NoItems, openai.Unsupported("No council waits for an answer")] = None

    @property
    def said(self) -> list[AgUiMessage]:
        roles = ("user", "assistant", "system", "developer")
        return [m for m in self.messages if m.role in roles and m.subagent_run_id is None and m.content.strip()]

    def deliberation(self, registry: openai.Registry) -> DeliberationRequest:
        """The deliberation that is asked for; raises ValidationFailed with pointers into the input."""
        given, reason = self.forwarded_props.deliberation, "It comes from `messages` or `context`, or is not supported"
        taken = given.keys() & {"task", "evidence", "webhook"}
        faults = [body_fault(f"{OPTIONS}/{name}", "conflict", reason, "Leave it out.") for name in taken]
        if not self.said:
            faults.append(body_fault("/messages", "missing", "No message has text", "Add one of a user."))
        if faults:
            raise ValidationFailed(faults)
        texts = filter(None, ("\n\n".join(each.values()).strip() for each in self.context))
        known = [{"id": f"context-{n}", "title": f"Context {n}", "text": text} for n, text in enumerate(texts, 1)]
        task = openai.task_of([openai.ConversationTurn(each.role, None, each.content) for each in self.said])
        metadata: Any = given.get("metadata", {})
        if isinstance(metadata, dict):
            metadata = cast("dict[str, Any]", metadata) | {THREAD: self.thread_id}
        return openai.checked({**given, "task": task, "evidence": known, "metadata": metadata}, registry, _in_the_input)


def _in_the_input(fault: FieldProblem) -> FieldProblem:
    place = {"task": "/messages", "evidence": "/context"}.get(fault.pointer.split("/")[1], OPTIONS + fault.pointer)
    return fault.model_copy(update={"pointer": place})
