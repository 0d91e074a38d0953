"""Sends calls to a role's replicas: one handle call per role and stage, repeated when it fails."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.deliberation.calls import Call
from app.deliberation.engine import RunStage
from serve_deployments.agent.stage_request import StageRequest
from serve_deployments.coordinator.work import Life, Work

RETRY_WAIT_S = (0.2, 0.5, 1.0, 2.0)
# How long outcomes may take from the log to the coordinator once their replica has recorded them.
HEARD_WITHIN_S = 1.0

Handle = DeploymentHandle[Any]

log = structlog.get_logger(__name__)


class RoleClient:
    """The handles of the roles by name; `names` are sorted."""

    def __init__(self, agents: Mapping[str, Handle]) -> None:
        self.names = sorted(agents)
        self._handles = agents

    async def run(self, work: Work, stage: RunStage, role: str, calls: Sequence[Call]) -> None:
        """Have one role run the calls, again when its replica dies, until the work has heard every outcome.

        The reply says only that the outcomes are in the log, where the coordinator hears them.
        """
        waits = iter(RETRY_WAIT_S)
        while work.life is not Life.STOPPING and (lacking := _lacking(work, calls)):
            request = StageRequest(
                tenant=work.tenant,
                deliberation_id=work.deliberation_id,
                stage=stage.opened.stage,
                calls=lacking,
                asked_at=datetime.now(UTC),
                deadline_at=stage.deadline_at,
                resumed=work.resumed,
                accepted_sequence=work.item.record.sequence,
            )
            try:
                response = self._handles[role].run_stage.remote(request.__pydantic_serializer__.to_json(request))
                # Shielded: when the outcomes are heard first, Ray need not cancel a request that is about to return.
                # Facts stop the calls of a stage that closes without them.
                await asyncio.shield(response)
                failure = "outcomes were not heard"
                await asyncio.sleep(HEARD_WITHIN_S)
            except (RayError, RayServeException) as error:
                failure = repr(error)[:300]
            except asyncio.CancelledError as error:
                # Ray raises it for a call that it cancelled itself; only our own cancellation ends this task.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                failure = repr(error)
            if _lacking(work, calls):
                # A replica died or refused, or the connection to the log was lost. The coordinator reads the log;
                # while the stage is open, only the lacking calls are run again.
                log.warning("role_call_failed", role=role, deliberation_id=work.deliberation_id, error=failure)
                work.resumed = True
                work.inbox.put_nowait(None)
                await asyncio.sleep(next(waits, RETRY_WAIT_S[-1]))


def _lacking(work: Work, calls: Sequence[Call]) -> tuple[Call, ...]:
    """The calls without a known outcome."""
    return tuple(call for call in calls if call.call_id not in work.state.finished)
