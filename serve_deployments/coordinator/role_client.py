"""Sends calls to a role's agents: one request per role and stage, repeated for calls that lack an outcome."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import structlog

from app.deliberation.calls import Call, StageRequest, priority_number
from app.deliberation.decider import RunStage
from app.deliberation.ports import Agents, AgentsLost
from serve_deployments.coordinator.work import Work, WorkState

RETRY_WAIT_S = (0.2, 0.5, 1.0, 2.0)
# How long outcomes may take from the log to the coordinator once their agents have recorded them.
HEARD_WITHIN_S = 1.0

log = structlog.get_logger(__name__)


class RoleClient:
    def __init__(self, agents: Mapping[str, Agents]) -> None:
        self.names = sorted(agents)
        self._agents = agents

    async def run(self, work: Work, stage: RunStage, role: str, calls: Sequence[Call]) -> None:
        """Have one role run the calls, again when its agents are lost, until the work has heard every outcome."""
        waits = iter(RETRY_WAIT_S)
        while work.phase is not WorkState.STOPPING and (lacking := _lacking(work, calls)):
            request = StageRequest(
                tenant=work.tenant,
                deliberation_id=work.deliberation_id,
                stage=stage.opened.stage,
                calls=lacking,
                asked_at=datetime.now(UTC),
                deadline_at=stage.deadline_at,
                resumed=work.resumed,
                first_agent=work.state.specification.agents[0].agent_id,
                accepted_sequence=work.item.record.sequence,
                priority=priority_number(work.state.specification.priority, work.state.accepted.ts),
                stage_calls=tuple(call for call in stage.stage_calls if call.role == role),
            )
            try:
                await self._agents[role].run(request)
                failure = "outcomes were not heard"
                await asyncio.sleep(HEARD_WITHIN_S)
            except AgentsLost as error:
                failure = str(error)
            if _lacking(work, calls):
                # Agents died or refused, or the connection to the log was lost. The coordinator reads the log;
                # while the stage is open, only the lacking calls are run again.
                log.warning("role_call_failed", role=role, deliberation_id=work.deliberation_id, error=failure)
                work.resumed = True
                work.inbox.put_nowait(None)
                await asyncio.sleep(next(waits, RETRY_WAIT_S[-1]))


def _lacking(work: Work, calls: Sequence[Call]) -> tuple[Call, ...]:
    return tuple(call for call in calls if call.call_id not in work.state.finished)
