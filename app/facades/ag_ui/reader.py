"""The input of a run, and the deliberation that it asks for. AG-UI ignores input that it does not know."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from app.api.problems import ValidationFailed, body_fault
from app.api.requests import DeliberationRequest, RequestModel
from app.api.schemas import FieldProblem
from app.facades.openai_requests import (
    NO_TOOLS,
    ConversationTurn,
    Registry,
    Unsupported,
    checked,
    content_schema,
    task_of,
)

# The name of this façade's part of what an acceptance repeats, and the metadata by which a thread's runs are found.
ASKED, THREAD = "ag_ui", "ag_ui.thread"
OPTIONS = "/forwardedProps/deliberation"
_IGNORING = ConfigDict(extra="ignore", alias_generator=to_camel)
_Id = Annotated[str, Field(min_length=1, max_length=512)]
_SAID = [{"id": "message-1", "role": "user", "content": "Merge two sorted lists."}]
_PROPS = {"deliberation": {"strategy": "council", "num_agents": 3}}
_EXAMPLES: list[Any] = [{"threadId": "thread-1", "runId": "run-1", "messages": _SAID, "forwardedProps": _PROPS}]


def _text(content: Any) -> str:  # noqa: ANN401 -- JSON
    """The text of a message; other parts are named, because AG-UI fails no run for a part that agents cannot read."""
    parts: list[Any] = content if isinstance(content, list) else [{"text": content}]
    known = [each for each in parts if isinstance(each, dict)]
    return "\n".join(str(each.get("text") or f"[{each.get('type', 'nothing')} left out]") for each in known)


class AgUiMessage(RequestModel):
    """A message of the thread; agents read the texts of four roles, without those of earlier runs' members."""

    model_config = _IGNORING

    id: _Id
    role: Literal["user", "assistant", "system", "developer", "tool", "activity", "reasoning"]
    content: Annotated[str, BeforeValidator(_text)] = Field(default="", json_schema_extra=content_schema("text"))
    subagent_run_id: str | None = None


class ForwardedProps(RequestModel):
    """The application's own values: two are read."""

    model_config = _IGNORING

    background: bool = Field(default=False, description="The run goes on when its client leaves")
    deliberation: dict[str, Any] = Field(default={}, description="Fields of `POST /deliberations`")


class RunAgentInput(RequestModel):
    """The input of a run. The same `threadId` and `runId` never start a second deliberation."""

    model_config = ConfigDict(**_IGNORING, json_schema_extra={"examples": _EXAMPLES})

    thread_id: _Id
    run_id: _Id
    messages: list[AgUiMessage] = Field(max_length=1_024)
    context: list[dict[str, str]] = Field(default=[], max_length=32, description="Evidence for every agent")
    forwarded_props: ForwardedProps = ForwardedProps()
    state: Any = Field(default=None, description="An object is given back with the field `deliberation`")
    tools: Annotated[Any, Unsupported(NO_TOOLS, [])] = None
    resume: Annotated[Any, Unsupported("No council waits for an answer", [])] = None

    @property
    def said(self) -> list[AgUiMessage]:
        roles = ("user", "assistant", "system", "developer")
        said = (each for each in self.messages if each.role in roles and each.subagent_run_id is None)
        return [each for each in said if each.content.strip()]

    def deliberation(self, registry: Registry) -> DeliberationRequest:
        """The deliberation that is asked for; raises ValidationFailed with pointers into the input."""
        given, faults = self.forwarded_props.deliberation, list[FieldProblem]()
        for name in given.keys() & {"task", "evidence", "webhook"}:
            detail = "Task and evidence come from `messages` and `context`, and a run has no webhook"
            faults.append(body_fault(f"{OPTIONS}/{name}", "conflict", detail, "Leave it out."))
        if not self.said:
            faults.append(body_fault("/messages", "missing", "No message has text", "Add one of a user."))
        if faults:
            raise ValidationFailed(faults)
        texts = filter(None, ("\n\n".join(each.values()).strip() for each in self.context))
        known = [{"id": f"context-{n}", "title": f"Context {n}", "text": text} for n, text in enumerate(texts, 1)]
        turns = [ConversationTurn(each.role, None, each.content) for each in self.said]
        metadata: Any = given.get("metadata", {})
        threaded = {**metadata, THREAD: self.thread_id} if isinstance(metadata, dict) else metadata
        body = {**given, "task": task_of(turns), "evidence": known, "metadata": threaded}
        return checked(body, registry, _in_the_input)


def _in_the_input(fault: FieldProblem) -> FieldProblem:
    place = {"task": "/messages", "evidence": "/context"}.get(fault.pointer.split("/")[1], OPTIONS + fault.pointer)
    return fault.model_copy(update={"pointer": place})
