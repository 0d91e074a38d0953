"""Messages for other services: the end of a deliberation with all that led to it, and each recorded answer.

Texts are bounded, since a message of NATS is: a longer one is cut, with a mark that names where the whole is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Protocol

from pydantic import AwareDatetime, Field

from app.deliberation.calls import FactProblem, Usage
from app.deliberation.contributions import Contribution, ContributionStatus, calls, contributions, form_of
from app.deliberation.errors import InvalidOutput
from app.deliberation.facts import (
    TERMINAL_STATUS,
    CallFinished,
    Cancelled,
    CancelledBy,
    Degraded,
    End,
    Participation,
    TerminalStatus,
    TotalUsage,
    Verdict,
)
from app.deliberation.fold import State
from app.deliberation.outputs import Output, answer_text, parse_output
from app.deliberation.specification import Token, Value

TEXT_CHARS_MAX = 16_384
# Characters of all texts of one announcement: a third of nats-server's default size, in the widest letters.
TEXTS_CHARS_MAX = 80_000


class AnnouncedTool(Value, frozen=True):
    """A member's uses of one tool; the event `tool.used` of each has its arguments and its result."""

    server: str = Field(description="Empty, as `tool`, for names that no tool of the member has")
    tool: str
    uses: int
    failed: int
    bytes: int = Field(description="Of all results")
    duration_ms: int = Field(description="Of all uses together")


class AnnouncedAnswer(Value, frozen=True):
    """A member's final answer."""

    agent_id: Token
    role: str
    model: str | None
    status: ContributionStatus = Field(description="`late`: its stage closed without it; `skipped`: the end came first")
    content: str | None = Field(description="The version that stands in the ranking, else the last; null without any")
    usage: Usage
    duration_ms: int = Field(description="Of all its calls together")
    problem: FactProblem | None = Field(description="Of its last failed call for an answer; null unless it failed")
    tools: tuple[AnnouncedTool, ...] = Field(
        default=(), exclude_if=lambda tools: not tools, description="Its uses of tools, by tool; absent without any"
    )


class AnswerCounts(Value, frozen=True):
    """Members of the council by what became of them."""

    total: int
    succeeded: int
    failed: int


class Announcement(Value, frozen=True):
    """The end of a deliberation, with all that a consumer needs without asking back.

    `type`, `deliberation_id`, `ts`, `verdict`, `problem`, `usage`, `degraded` and `participation` are those of the
    terminal event.
    """

    type: str
    deliberation_id: Token
    task_id: Token = Field(description="The deliberation's id")
    ts: AwareDatetime
    tenant: str
    status: TerminalStatus
    task: str | None = Field(description="Null, as all of the request, where the log is damaged")
    strategy: str | None
    metadata: dict[str, str]
    roles: tuple[str, ...]
    results: tuple[AnnouncedAnswer, ...]
    counts: AnswerCounts
    duration_ms: int | None = Field(description="From acceptance to end")
    verdict: Verdict | None
    problem: FactProblem | None
    usage: TotalUsage
    degraded: Degraded | None
    participation: Participation | None
    cancelled_by: CancelledBy | None = Field(description="Null unless it was cancelled")
    cancel_reason: str | None
    url: str = Field(description="Path of the deliberation at any gateway")


class AgentProposal(Value, frozen=True):
    """An answer with its author."""

    content: str
    author_id: Token
    author_role: str
    model: str | None
    temperature: float | None
    tokens: int


class AgentResponse(Value, frozen=True):
    """One recorded outcome of a call: with a `proposal` on `agent.response.completed`, else on `.failed`."""

    task_id: Token = Field(description="The deliberation's id")
    call_id: Token
    tenant: str
    agent_id: Token
    role: str
    status: Literal["completed", "failed"]
    proposal: AgentProposal | None = None
    error: str | None = None
    error_type: str | None = Field(default=None, description="The problem's code")
    model: str | None
    diversity: bool = Field(description="Whether the agent varies its sampling: all but the council's first do")
    usage: Usage
    duration_ms: int
    timestamp: AwareDatetime


class Neighbours(Protocol):
    """Services outside this one. Methods raise JournalUnavailable when the log does not answer within the time-out."""

    async def announce(self, announced: Announcement) -> None:
        """Publish that a deliberation ended. Once: a second one is dropped."""
        ...

    async def respond(self, response: AgentResponse) -> None:
        """Publish a recorded outcome. Once: a second one is dropped."""
        ...

    async def complete_responses(self, deliberation_id: str, responses: Iterable[AgentResponse]) -> None:
        """Publish those responses that have not been: the process that recorded an outcome may have died since."""
        ...


def cut(text: str, deliberation_id: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… [cut after {chars_max} of {len(text)} characters; whole: {_path(deliberation_id)}]"


def announcement(tenant: str, end: End, state: State | None) -> Announcement:
    """Builds the announcement of an end. `state` has the facts before it; it is None if the log is damaged."""
    status, id = TERMINAL_STATUS[end.type], end.deliberation_id
    members = () if state is None else contributions(replace(state, end=end))
    succeeded = sum(member.chosen is not None for member in members)
    # Two more texts share the room: the task and the verdict.
    chars_max = min(TEXT_CHARS_MAX, TEXTS_CHARS_MAX // (2 + succeeded))
    verdict = end.verdict
    if verdict is not None and verdict.content is not None:
        verdict = verdict.model_copy(update={"content": cut(verdict.content, id, chars_max)})
    specification = None if state is None else state.specification
    accepted_at = None if state is None else state.accepted.ts
    return Announcement(
        type=end.type,
        deliberation_id=id,
        task_id=id,
        ts=end.ts,
        tenant=tenant,
        status=status,
        task=specification and cut(specification.task, id, chars_max),
        strategy=specification and specification.strategy,
        metadata={} if specification is None else specification.metadata,
        roles=() if specification is None else tuple(dict.fromkeys(agent.role for agent in specification.agents)),
        results=() if state is None else tuple(_result(member, state, chars_max) for member in members),
        counts=AnswerCounts(total=len(members), succeeded=succeeded, failed=len(members) - succeeded),
        duration_ms=accepted_at and round((end.ts - accepted_at).total_seconds() * 1_000),
        verdict=verdict,
        problem=end.problem,
        usage=end.usage,
        degraded=end.degraded,
        participation=end.participation,
        cancelled_by=end.by if isinstance(end, Cancelled) else None,
        cancel_reason=end.reason if isinstance(end, Cancelled) else None,
        url=_path(id),
    )


def agent_response(
    tenant: str, finished: CallFinished, form: Output, *, temperature: float | None, first_agent: str
) -> AgentResponse:
    """Builds the message of one recorded outcome; `first_agent` is the council's first, which keeps its sampling."""
    common: dict[str, Any] = {
        "task_id": finished.deliberation_id,
        "call_id": finished.call_id,
        "tenant": tenant,
        "agent_id": finished.agent_id,
        "role": finished.role,
        "model": finished.model,
        "diversity": finished.agent_id != first_agent,
        "usage": finished.usage,
        "duration_ms": finished.duration_ms,
        "timestamp": finished.ts,
    }
    if finished.text is None:
        problem = finished.problem
        return AgentResponse(
            **common, status="failed", error=problem and problem.detail, error_type=problem and problem.code
        )
    try:
        content = answer_text(parse_output(form, finished.text))
    except InvalidOutput:
        content = None  # another version of the gateway accepted this text
    proposal = AgentProposal(
        content=cut(finished.text if content is None else content, finished.deliberation_id),
        author_id=finished.agent_id,
        author_role=finished.role,
        model=finished.model,
        temperature=temperature,
        tokens=finished.usage.completion_tokens,
    )
    return AgentResponse(**common, status="completed", proposal=proposal)


def recorded_responses(tenant: str, state: State) -> Iterator[AgentResponse]:
    members = {agent.agent_id: agent for agent in state.specification.agents}
    first_agent = state.specification.agents[0].agent_id
    for call in calls(state):
        member = members.get(call.planned.agent_id)
        if call.finished is not None:
            temperature = None if member is None else member.sampling.temperature
            form = form_of(state.specification.constraints, call.planned)
            yield agent_response(tenant, call.finished, form, temperature=temperature, first_agent=first_agent)


def _path(deliberation_id: str) -> str:
    return f"/deliberations/{deliberation_id}"


def _result(contribution: Contribution, state: State, chars_max: int) -> AnnouncedAnswer:
    chosen = contribution.chosen
    tools = [sums for (agent_id, *_), sums in state.tools.items() if agent_id == contribution.spec.agent_id]
    return AnnouncedAnswer(
        agent_id=contribution.spec.agent_id,
        role=contribution.spec.role,
        model=contribution.model,
        status=contribution.status,
        content=None if chosen is None else cut(chosen.text, state.deliberation_id, chars_max),
        usage=contribution.usage,
        duration_ms=contribution.duration_ms,
        problem=contribution.problem,
        tools=tuple(AnnouncedTool(**sums._asdict()) for sums in tools),
    )
