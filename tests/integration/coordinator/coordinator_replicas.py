"""Coordinators in this process over a real journal, and a role that answers their calls."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from app.deliberation.calls import Call, StageRequest, Usage
from app.deliberation.facts import (
    Accepted,
    CallFinished,
    Fact,
    decode,
)
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS
from app.observability.traces import Tracer
from serve_deployments.coordinator.coordinator import CoordinatorReplica
from serve_deployments.deployments import Handle, RayAgents
from tests.conditions import until_empty
from tests.story import Story


def accepted(deliberation_id: str, timeout_s: int = 120) -> Accepted:
    strategy = {"strategy": "single", "strategy_version": STRATEGIES["single"].version}
    return Story(deliberation_id, 1).accepted(datetime.now(UTC), timeout_s, **strategy)


@dataclass
class Role:
    journal: JetStreamJournal
    answers: Callable[[StageRequest], Awaitable[bool]]
    asked: list[str] = field(default_factory=list[str])

    @property
    def run_stage(self) -> "Role":
        return self

    async def remote(self, payload: bytes) -> None:
        request = StageRequest.model_validate_json(payload)
        self.asked.append(request.deliberation_id)
        if not await self.answers(request):
            await asyncio.Event().wait()
        for call in request.calls:
            await self.journal.append(request.tenant, answered(request, call))


def answered(request: StageRequest, call: Call) -> CallFinished:
    return CallFinished(
        deliberation_id=request.deliberation_id,
        ts=datetime.now(UTC),
        call_id=call.call_id,
        agent_id=call.agent_id,
        role=call.role,
        stage=request.stage,
        attempt=1,
        text=json.dumps({"reasoning": "because", "answer": "blue", "confidence": 50}),
        usage=Usage(calls=1),
        duration_ms=1,
    )


@dataclass
class Replica:
    journal: JetStreamJournal
    serving: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        url: str,
        role: Role,
        journals: type[JetStreamJournal] = JetStreamJournal,
        tracer: Tracer | None = None,
        clusters: Sequence[str] = (),
    ) -> "Replica":
        journal = await journals.connect(url)
        ready = asyncio.Event()
        agents = {"DEV": RayAgents(cast("Handle", role))}
        replica = CoordinatorReplica(journal, agents, 10, PUBLICATIONS, tracer=tracer, clusters=clusters)
        serving = asyncio.create_task(replica.serve(ready))
        await ready.wait()
        return cls(journal, serving)

    async def stop(self) -> None:
        self.serving.cancel()
        await asyncio.wait({self.serving})
        await self.journal.close()

    async def die(self) -> None:
        await self.journal.close()
        self.serving.cancel()
        await asyncio.wait({self.serving})


async def facts_of(journal: JetStreamJournal, deliberation_id: str) -> list[Fact]:
    records = await journal.facts("default", deliberation_id)
    return [cast("Fact", decode(record.data)) for record in records]


async def always(_: object) -> bool:
    return True


async def until_done(journal: JetStreamJournal, timeout_s: float = 30) -> None:
    await until_empty(journal, "DELIBERATIONS", "coordinator", timeout_s)


async def waiting(journal: JetStreamJournal) -> tuple[int, int]:
    state = await journal.request("$JS.API.CONSUMER.INFO.DELIBERATIONS.coordinator")
    return state["num_pending"], state["num_ack_pending"]
