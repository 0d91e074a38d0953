import asyncio
from collections.abc import Sequence
from typing import Literal

import pytest

from app.deliberation.announcements import AgentResponse
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import CallFinished, Deleted, Fact
from app.deliberation.ports import Appended, Record
from app.deliberation.roles import EngineSpec
from serve_deployments.agent.agent import AgentReplica
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import PRICES, STOPS, call, outcomes, replica, request, views


def priced(journal: InMemoryJournal) -> tuple[ScriptedEngine, AgentReplica]:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    agent = replica(engine, journal)
    agent.engines.engines[0].spec = EngineSpec(url="http://engine0", prices=PRICES)
    return engine, agent


class Slow(InMemoryJournal):
    def __init__(self, held: Literal["append", "respond"]) -> None:
        super().__init__()
        self.held = held
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def _hold(self) -> None:
        self.reached.set()
        await self.released.wait()

    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        appended = await super().append(tenant, fact)
        if self.held == "append" and isinstance(fact, CallFinished):
            await self._hold()
        return appended

    async def respond(self, response: AgentResponse) -> None:
        if self.held == "respond":
            await self._hold()
        await super().respond(response)


async def stopped_while(held: Literal["append", "respond"]) -> None:
    journal = Slow(held)
    _, agent = priced(journal)
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await journal.reached.wait()
    await journal.append("default", STOPS["cancel"])
    await asyncio.sleep(0)
    journal.released.set()
    (outcome,) = await running
    described = await agent.describe()
    assert outcome.text == ANSWER and len(views(journal, CallFinished)) == 1
    assert (described["counts"]["answered"], described["counts"]["cut"], described["costs"]) == (1, 0, {"USD": 13})
    assert list(journal.responses) == ["d1.s1-dev-001"]


async def test_a_call_that_is_stopped_while_its_outcome_is_recorded_counts_once() -> None:
    await stopped_while("append")


async def test_a_call_that_is_stopped_while_its_outcome_is_announced_counts_once() -> None:
    await stopped_while("respond")


async def test_an_outcome_counts_where_it_was_recorded() -> None:
    journal = InMemoryJournal()
    _, first = priced(journal)
    _, second = priced(journal)
    await first.run_stage(request((call(),)))
    journal.responses.clear()
    await second.run_stage(request((call(),)))
    described = await second.describe()
    assert (described["counts"]["answered"], described["costs"], journal.responses) == (0, {}, {})


async def test_an_outcome_that_cannot_be_recorded_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = InMemoryJournal()
    _, agent = priced(journal)

    async def append(tenant: str, fact: Fact | Deleted) -> Appended:
        raise JournalUnavailable("away")

    monkeypatch.setattr(journal, "append", append)
    with pytest.raises(JournalUnavailable):
        await agent.run_stage(request((call(),)))
    assert (await agent.describe())["counts"]["answered"] == 0


async def test_a_call_that_ends_while_the_log_is_read_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = InMemoryJournal()
    engine, agent = priced(journal)
    engine.hold = hold = asyncio.Event()
    first = asyncio.create_task(outcomes(agent, request((call(),))))
    await until(lambda: len(engine.bodies) == 1)

    async def last(patterns: Sequence[str]) -> list[Record]:
        found = await InMemoryJournal.last(journal, patterns)
        if any(pattern.endswith(".finished") for pattern in patterns):
            # The call records its outcome while this reply is on its way.
            hold.set()
            await first
        return found

    monkeypatch.setattr(journal, "last", last)
    again = await outcomes(agent, request((call(),), resumed=True))
    assert again == await first and len(engine.bodies) == 1


async def test_two_requests_that_read_the_log_at_once_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = InMemoryJournal()
    engine, agent = priced(journal)

    async def last(patterns: Sequence[str]) -> list[Record]:
        await asyncio.sleep(0)
        return await InMemoryJournal.last(journal, patterns)

    monkeypatch.setattr(journal, "last", last)
    both = [outcomes(agent, request((call(),), resumed=True)) for _ in range(2)]
    first, second = await asyncio.gather(*both)
    assert first == second and len(engine.bodies) == 1
