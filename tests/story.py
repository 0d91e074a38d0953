"""Facts of a deliberation that tests append in place of a coordinator and agents."""

from datetime import UTC, datetime, timedelta
from typing import Any

from app.deliberation.facts import (
    Accepted,
    CallDelta,
    CallFinished,
    CallStarted,
    CallWaiting,
    Completed,
    PlannedCall,
    StageClosed,
    StageOpened,
    ToolStarted,
    ToolUsed,
    UnreachableEngine,
)
from app.deliberation.specification import DEFAULT_RUBRIC, AgentSpec, Constraints, Specification

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """Builds the facts and views of one deliberation with the agents dev-001, dev-002, …"""

    def __init__(self, deliberation_id: str, size: int = 2) -> None:
        self.id = deliberation_id
        self.agents = [f"dev-{number:03d}" for number in range(1, size + 1)]

    def accepted(self, at: datetime = NOW, timeout_s: int = 300, **specified: Any) -> Accepted:
        """Returns an acceptance whose specification has the fields `specified` in place of its own."""
        specification = Specification(
            task="Name a colour.",
            agents=tuple(AgentSpec(agent_id=agent, role="DEV") for agent in self.agents),
            strategy="independent",
            strategy_version=1,
            rounds=0,
            constraints=Constraints(rubric=DEFAULT_RUBRIC, timeout_seconds=300),
            quorum=1,
            seed=1,
        ).model_copy(update=specified)
        deadline = at + timedelta(seconds=timeout_s)
        return Accepted(
            deliberation_id=self.id, ts=at, specification=specification, deadline_at=deadline, body_sha256="0" * 64
        )

    def opened(self, stage: int = 1) -> StageOpened:
        calls = tuple(PlannedCall(call_id=f"s{stage}-{agent}", agent_id=agent, role="DEV") for agent in self.agents)
        return StageOpened(
            deliberation_id=self.id,
            ts=NOW,
            stage=stage,
            purpose="propose",
            round=0,
            calls=calls,
            quorum=1,
            soft_deadline_at=NOW,
            call_deadline_at=NOW,
        )

    def started(self, agent: str, attempt: int = 1, stage: int = 1) -> CallStarted:
        return CallStarted(
            deliberation_id=self.id,
            ts=NOW,
            call_id=f"s{stage}-{agent}",
            agent_id=agent,
            role="DEV",
            model="simulated",
            attempt=attempt,
        )

    def waiting(self, agent: str, at: datetime, since: datetime | None = None) -> CallWaiting:
        """Returns that the call of an agent waits for an engine that cannot be connected to `since` then."""
        engine = UnreachableEngine(url="http://e1:8000", since=since or at, cause="connection refused")
        return CallWaiting(
            deliberation_id=self.id,
            ts=at,
            call_id=f"s1-{agent}",
            agent_id=agent,
            role="DEV",
            engines=(engine,),
            gives_up_at=at,
            detail=f"{engine}; start it",
        )

    def delta(self, agent: str, offset: int, text: str, attempt: int = 1, stage: int = 1) -> CallDelta:
        return CallDelta(
            deliberation_id=self.id,
            ts=NOW,
            call_id=f"s{stage}-{agent}",
            agent_id=agent,
            attempt=attempt,
            offset=offset,
            text=text,
        )

    def tool(
        self, of: type[ToolStarted | ToolUsed], agent: str, number: int = 1, **fields: Any
    ) -> ToolStarted | ToolUsed:
        """Returns the begin or the end of a use of the tool `read_file` by the agent's first call."""
        named = {"server": "workspace", "tool": "read_file", "name": "read_file", "arguments": '{"path": "a.py"}'}
        return of(
            deliberation_id=self.id,
            ts=NOW,
            call_id=f"s1-{agent}",
            agent_id=agent,
            role="DEV",
            stage=1,
            number=number,
            turn=number,
            tool_call_id=f"t{number}",
            **named | fields,
        )

    def finished(self, agent: str, text: str = "{}", attempt: int = 1, stage: int = 1) -> CallFinished:
        return CallFinished(
            deliberation_id=self.id,
            ts=NOW,
            call_id=f"s{stage}-{agent}",
            agent_id=agent,
            role="DEV",
            stage=stage,
            attempt=attempt,
            text=text,
            duration_ms=5,
        )

    def closed(self, stage: int = 1) -> StageClosed:
        seen = tuple(f"s{stage}-{agent}" for agent in self.agents)
        return StageClosed(
            deliberation_id=self.id, ts=NOW, stage=stage, purpose="propose", round=0, seen=seen, reason="all"
        )

    def completed(self) -> Completed:
        return Completed(deliberation_id=self.id, ts=NOW)
