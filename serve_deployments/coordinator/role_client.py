"""How a coordinator has roles make calls: a streaming handle call for each, again when a replica dies."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import structlog
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.deliberation.calls import Call
from app.deliberation.engine import RunStage
from app.deliberation.ports import Record
from serve_deployments.agent.call import StageRequest
from serve_deployments.coordinator.work import Work, fact_of

RETRY_WAIT_S = (0.2, 0.5, 1.0, 2.0)

Handle = DeploymentHandle[Any]

log = structlog.get_logger(__name__)


class RoleClient:
    """The handles of the roles by name."""

    def __init__(self, agents: Mapping[str, Handle]) -> None:
        self._handles = {role: handle.options(stream=True) for role, handle in agents.items()}

    @property
    def names(self) -> list[str]:
        """The roles, in order of their names."""
        return sorted(self._handles)

    async def ask(self, work: Work, run: RunStage, role: str, calls: Iterable[Call]) -> None:
        """Have one role's replicas make the calls, again when one dies; outcomes go to the work's inbox."""
        lacking = {call.call_id: call for call in calls}
        waits = iter(RETRY_WAIT_S)
        while lacking and not work.stopping:
            request = StageRequest(
                tenant=work.tenant,
                deliberation_id=work.deliberation_id,
                stage=run.opened.stage,
                calls=tuple(lacking.values()),
                asked_at=datetime.now(UTC),
                deadline_at=run.deadline_at,
                resumed=work.resumed,
                accepted_sequence=work.delivery.record.sequence,
            )
            try:
                payload = request.__pydantic_serializer__.to_json(request)
                stream = cast("AsyncIterator[tuple[int, bytes]]", self._handles[role].run_stage.remote(payload))
                async for sequence, data in stream:
                    record = Record(f"deliberations.{work.tenant}.{work.deliberation_id}.call", sequence, data)
                    fact = fact_of(record)
                    lacking.pop(getattr(fact, "call_id", ""), None)
                    work.inbox.put_nowait(record)
                failure = "ended early"
            except (RayError, RayServeException) as error:
                failure = repr(error)[:300]
            except asyncio.CancelledError as error:
                # Ray tells so of a call that it cancelled itself; only our own cancellation ends this task.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                failure = repr(error)
            if lacking:
                # A replica died or refused, or a fact stopped the calls: what stands is read back, and if the stage is
                # still open, only the rest is made again.
                log.warning("role_call_failed", role=role, deliberation_id=work.deliberation_id, error=failure)
                work.resumed = True
                work.inbox.put_nowait(None)
                await asyncio.sleep(next(waits, RETRY_WAIT_S[-1]))
