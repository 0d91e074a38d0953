import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any, cast

import httpx
from starlette.types import Receive, Scope, Send

from app.api.problems import PROBLEM_JSON
from app.api.schemas import Problem
from app.archive.database.migrate import migrate
from app.archive.database.rows import Written
from app.archive.database.store import Copied, Store
from app.deliberation.calls import Call, Usage
from app.deliberation.decider import Finish, RunStage, decide
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import (
    Accepted,
    CallFinished,
    Fact,
    StageOpened,
    decode,
)
from app.deliberation.fold import State, begin, state_of
from app.deliberation.strategies import STRATEGIES
from app.main import create_app, lifespan_of
from app.routes.dependencies import Gateway
from app.settings import Settings
from tests.conditions import until
from tests.fakes import FakeClock, InMemoryJournal, drive
from tests.problem_text import repetitions
from tests.unit.facts_of import acted

COORDINATOR: dict[str, Any] = {"replica": "c1", "in_flight": 0, "slots": 10, "versions": {}}
AGENT: dict[str, Any] = {"role": "DEV", "replica": "a1", "engines": []}
ANSWERING = {"control.coordinator": [COORDINATOR], "control.role.DEV": [AGENT]}
SENDER: dict[str, Any] = {
    "replica": "webhooks-7",
    "counts": {"succeeded": 3, "failed": 2, "delivered": 3},
    "in_flight": 1,
    "waiting": 4,
    "held": {"webhooks": 0, "attempts": 2},
    "queues": {"webhooks": {"new": 5, "taken": 6}, "attempts": {"new": 7, "taken": 8}},
}

# Shared, because building the routes takes longer than most tests.
ARCHIVE_PATHS = ("/deliberations", "/stats", "/events")
APP = create_app(Settings())


@dataclass
class Served:
    client: httpx.AsyncClient
    journal: InMemoryJournal
    clock: FakeClock
    gateway: Gateway

    async def post(self, body: object, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post("/deliberations", json=body, headers=named)

    async def accepted(self, **body: object) -> str:
        response = await self.post({"task": "Name a colour.", **body})
        assert response.status_code == 202, response.text
        return response.json()["id"]

    async def append(self, fact: Fact) -> None:
        await self.journal.append("default", fact)

    async def copied(self) -> None:
        archive = self.gateway["deliberations"].archive
        assert archive is not None
        await copy_log(self.journal, archive, self.clock.now())

    async def play(self, deliberation_id: str, *, until_stage: int | None = None) -> None:
        records = await self.journal.facts("default", deliberation_id)
        accepted = decode(records[0].data)
        assert isinstance(accepted, Accepted)
        for fact in played(accepted, now=self.clock.now, until_stage=until_stage):
            await self.append(fact)


async def copy_log(journal: InMemoryJournal, archive: Store, now: datetime) -> None:
    state = await journal.state()
    stored = [record.tokens for record in journal.records if record.tokens[0] == "deliberations"]
    for key in dict.fromkeys((tenant, id) for _, tenant, id, *_ in stored):
        records = await journal.facts(*key)
        gone = any(record.tokens[-1] == "deleted" for record in records)
        found = None if gone else state_of(records)
        if gone or found is not None:
            await archive.write(state.epoch, [Written(*key, at=now, state=found, records=records)])
    await archive.log_number(state.epoch)
    await archive.put([], copied=Copied(state.epoch, state.last_sequence, now))


def copying(client: httpx.AsyncClient, journal: InMemoryJournal, archive: Store, clock: FakeClock) -> None:
    async def copy(request: httpx.Request) -> None:
        if request.method == "GET" and request.url.path in ARCHIVE_PATHS:
            with suppress(JournalUnavailable):
                await copy_log(journal, archive, clock.now())

    client.event_hooks["request"].append(copy)


@asynccontextmanager
async def answering(state: Gateway) -> AsyncGenerator[httpx.AsyncClient, None]:
    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await APP({**scope, "state": dict(cast(Any, state))}, receive, send)

    async def says_once(response: httpx.Response) -> None:
        if response.headers.get("content-type") == PROBLEM_JSON:
            assert repetitions(Problem.model_validate_json(await response.aread())) == [], response.text

    transport = httpx.ASGITransport(app=with_state, raise_app_exceptions=False)
    hooks = {"response": [says_once]}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", event_hooks=hooks) as client:
        yield client


@asynccontextmanager
async def served(
    *,
    journal: InMemoryJournal | None = None,
    caught_up: bool = True,
    lists: bool = False,
    lagging: bool = False,
    **settings: Any,
) -> AsyncGenerator[Served, None]:
    """A running gateway, by default after it has read its log and keys, with a coordinator and an agent that answer.

    With `lists` it has an archive in a SQLite file of its own. The log is copied into it before each request that reads
    the archive, unless it is `lagging`.
    """
    journal = journal or InMemoryJournal(replies=dict(ANSWERING))
    clock = FakeClock()
    with TemporaryDirectory() as directory:
        if lists:
            settings["database_url"] = f"sqlite:///{directory}/archive.db"
            await migrate(settings["database_url"])
        async with lifespan_of(Settings(**settings), journal, clock, startup_wait_s=0.0)(APP) as gateway:
            if caught_up:
                following = (gateway["catalog"], gateway["access"].keyring, gateway["deliberations"].spends)
                await until(lambda: all(each is None or each.caught_up for each in following))
            async with answering(gateway) as client:
                archive = gateway["deliberations"].archive
                if archive is not None and lists and not lagging:
                    copying(client, journal, archive, clock)
                yield Served(client, journal, clock, gateway)


def written(call: Call) -> str:
    match call.output.kind:
        case "answer":
            answer: Any = {"reasoning": "r", "answer": f"draft {call.call_id}", "confidence": 50}
        case "critique":
            issue = {"severity": "major", "where": "w", "claim": "c", "evidence": "e", "fix": "f"}
            answer = {"issues": [issue], "verdict": "revise"}
        case "revision":
            responses = [{"issue": 1, "decision": "accept", "reason": "right"}]
            answer = {"responses": responses, "answer": f"revision {call.call_id}", "confidence": 60}
        case "score":
            answer = {
                label: {"criteria": [{"id": each, "rationale": "r", "score": score} for each in call.output.criteria]}
                for score, label in enumerate(call.output.labels, start=1)
            }
        case "pair":
            answer = {"notes_a": "a", "notes_b": "b", "winner": "A", "margin": 1}
        case "choice":
            answer = {"reasoning": "r", "choice": call.output.labels[0]}
    if call.output.is_action:
        answer |= {"answer": acted(call, f"reply {call.call_id}")}
    return json.dumps(answer)


def finished(deliberation_id: str, call: Call, stage: int, now: datetime, text: str) -> CallFinished:
    return CallFinished(
        deliberation_id=deliberation_id,
        ts=now,
        call_id=call.call_id,
        agent_id=call.agent_id,
        role=call.role,
        stage=stage,
        attempt=1,
        text=text,
        finish_reason="stop",
        model="simulated",
        usage=Usage(prompt_tokens=10, completion_tokens=len(text), calls=1),
        duration_ms=7,
    )


def played(
    accepted: Accepted,
    *,
    now: Callable[[], datetime],
    until_stage: int | None = None,
    write: Callable[[Call], str] = written,
    order: Callable[[tuple[Call, ...]], list[Call]] = list,
) -> list[Fact]:
    def run(_: State, stage: RunStage) -> list[CallFinished]:
        id = accepted.deliberation_id
        return [finished(id, call, stage.opened.stage, now(), write(call)) for call in order(stage.calls)]

    facts: list[Fact] = []
    for event in drive(begin(accepted, 1), STRATEGIES[accepted.specification.strategy], now, run):
        assert isinstance(event, Fact)
        facts.append(event)
        if isinstance(event, StageOpened) and event.stage == until_stage:
            break
    return facts


async def decided(gateway: Served, id: str) -> None:
    """The end that a coordinator writes now."""
    state = await gateway.gateway["deliberations"].load("default", id)
    decision = decide(state, gateway.clock.now(), STRATEGIES[state.specification.strategy])
    assert isinstance(decision, Finish)
    await gateway.append(decision.fact)
