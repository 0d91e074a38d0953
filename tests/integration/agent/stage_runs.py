"""One stage on a replica in this process: its calls, its request, its outcomes and its views."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx

from app.deliberation.calls import Call, ChatMessage, StageRequest
from app.deliberation.facts import (
    CallFinished,
    CancelRequested,
    StageClosed,
    decode,
)
from app.deliberation.outputs import Output
from app.deliberation.roles import EnginePrices, EngineSpec, Role
from app.log.stream_settings import PUBLICATIONS
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ScriptedEngine

PRICES = EnginePrices(currency="USD", prompt=Decimal("0.5"), completion=Decimal("1.5"))
PERSONA = "You are a persona for tests."


def call(number: int = 1, output: Output | None = None) -> Call:
    return Call(
        call_id=f"s1-dev-{number:03d}",
        agent_id=f"dev-{number:03d}",
        role="DEV",
        messages=(ChatMessage(role="system", content="s"), ChatMessage(role="user", content=f"u{number}")),
        output=output or Output(kind="answer"),
        temperature=0.5,
        max_tokens=64,
        seed=11,
    )


def request(
    calls: tuple[Call, ...],
    *,
    resumed: bool = False,
    deadline_s: float = 30,
    asked_s_ago: float = 0,
    deliberation_id: str = "d1",
    priority: int = 0,
) -> StageRequest:
    return StageRequest(
        tenant="default",
        deliberation_id=deliberation_id,
        priority=priority,
        stage=1,
        calls=calls,
        asked_at=datetime.now(UTC) - timedelta(seconds=asked_s_ago),
        deadline_at=datetime.now(UTC) + timedelta(seconds=deadline_s),
        resumed=resumed,
    )


def replica(engine: ScriptedEngine, journal: InMemoryJournal, engines: int = 1, *, deltas: bool = True) -> AgentReplica:
    urls = [f"http://engine{number}" for number in range(engines)]
    client = Engines([EngineSpec(url=url) for url in urls], transport=httpx.MockTransport(engine))
    options: dict[str, Any] = {"stream_deltas": deltas, "publications": PUBLICATIONS, "engine_away_timeout_s": 30}
    return AgentReplica("DEV", Role(persona=PERSONA), client, journal, **options)


async def outcomes(agent: AgentReplica, asked: StageRequest) -> list[CallFinished]:
    await agent.run_stage(asked)
    call_ids = {call.call_id for call in asked.calls}
    facts = [decode(record.data) for record in await agent.journal.facts(asked.tenant, asked.deliberation_id)]
    finished = [fact for fact in facts if isinstance(fact, CallFinished) and fact.call_id in call_ids]
    assert len(finished) == len(call_ids)
    return finished


def views(journal: InMemoryJournal, kind: type) -> list[Any]:
    return [event for record in journal.records if isinstance(event := decode(record.data), kind)]


STOPS = {
    "cancel": CancelRequested(deliberation_id="d1", ts=datetime.now(UTC)),
    "stage closed": StageClosed(
        deliberation_id="d1", ts=datetime.now(UTC), stage=1, purpose="propose", round=0, seen=(), reason="deadline"
    ),
}


class AnsweringJournal(InMemoryJournal):
    async def answer(self, subject: str, describe: object) -> None:
        self.replies.setdefault(subject, [])
