"""What `ports.Agents` promises, of each adapter: Ray Serve's handle, workers of a real NATS, a replica beside it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast, get_args

import httpx
import pytest
from ray.exceptions import ActorDiedError

from app.deliberation.calls import Call, StageRequest
from app.deliberation.errors import FactTooLarge
from app.deliberation.facts import CallFinished, Cancelled, Completed, Deleted, StageClosed, decode
from app.deliberation.ports import Agents, AgentsLost
from app.deliberation.roles import AgentRunner, EngineSpec, Role
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS, TASKS_STREAM, StreamSettings
from app.log.streams import apply
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.agent.replicas import keep_up
from serve_deployments.agent.worker import RoleWorker
from serve_deployments.coordinator.local_agents import LocalAgents
from serve_deployments.coordinator.task_queue import WorkerAgents, tasks_of
from serve_deployments.deployments import Handle, RayAgents
from serve_deployments.engine.client import Engines
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import call, request

CALLS = (call(1), call(2))
ENDS: dict[str, Callable[..., Completed | Cancelled | Deleted]] = {
    "ended": Completed,
    "cancelled": Cancelled,
    "deleted": Deleted,
}


@dataclass
class InProcessHandle:
    """A handle on a replica here, as in Ray's default mode: a caller that stops waiting stops nothing."""

    replica: AgentReplica
    dead: bool = False

    @property
    def run_stage(self) -> "InProcessHandle":
        return self

    async def remote(self, payload: bytes) -> None:
        if self.dead:
            raise ActorDiedError
        await asyncio.shield(asyncio.ensure_future(self.replica.run_stage(StageRequest.model_validate_json(payload))))


@dataclass
class UnderTest:
    """An adapter with one replica behind it; `lose` makes the agents unreachable once."""

    agents: Agents
    engine: ScriptedEngine
    journal: JetStreamJournal
    lose: Callable[[], Awaitable[None]]

    async def outcomes(self, deliberation_id: str) -> list[CallFinished]:
        facts = [decode(record.data) for record in await self.journal.facts("default", deliberation_id)]
        return [fact for fact in facts if isinstance(fact, CallFinished)]

    async def recorded(self, deliberation_id: str, count: int) -> list[CallFinished]:
        async with asyncio.timeout(10):
            while len(found := await self.outcomes(deliberation_id)) < count:
                await asyncio.sleep(0.02)
        return found

    async def tasks(self) -> int:
        return (await self.journal.request(f"$JS.API.STREAM.INFO.{TASKS_STREAM}"))["state"]["messages"]


@asynccontextmanager
async def replica_of(server: NatsServer, engine: ScriptedEngine) -> AsyncGenerator[AgentReplica]:
    journal = await JetStreamJournal.connect(server.url, name="replica")
    engines = Engines([EngineSpec(url="http://engine")], transport=httpx.MockTransport(engine))
    yield AgentReplica("DEV", Role(persona="You test."), engines, journal, stream_deltas=True, engine_away_timeout_s=30)
    await journal.close()


@pytest.fixture(params=get_args(AgentRunner))
async def under(request: pytest.FixtureRequest, own_nats_server: NatsServer) -> AsyncGenerator[UnderTest]:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    journal = await JetStreamJournal.connect(own_nats_server.url, name="coordinator")
    await apply(journal, StreamSettings(worker_roles=("DEV",), publications=PUBLICATIONS))
    async with replica_of(own_nats_server, engine) as replica, asyncio.TaskGroup() as group:
        if request.param == "ray":
            handle = InProcessHandle(replica)
            running = group.create_task(replica.keep())

            async def die() -> None:
                handle.dead = True

            yield UnderTest(RayAgents(cast("Handle", handle)), engine, journal, die)
        elif request.param == "local":
            running = group.create_task(keep_up(replica))

            async def lose_log() -> None:
                own_nats_server.kill()
                assert engine.hold is not None
                engine.hold.set()

            yield UnderTest(LocalAgents(replica), engine, journal, lose_log)
        else:
            running = group.create_task(RoleWorker(replica).run())

            async def restart() -> None:
                own_nats_server.kill()
                own_nats_server.start()

            yield UnderTest(WorkerAgents(journal, "DEV"), engine, journal, restart)
        running.cancel()
    await journal.close()


async def test_agents_record_the_outcome_of_every_call(under: UnderTest, fresh_id: str) -> None:
    running = asyncio.create_task(under.agents.run(request(CALLS, deliberation_id=fresh_id)))
    found = await under.recorded(fresh_id, 2)
    assert {each.text for each in found} == {ANSWER} and {each.attempt for each in found} == {1}
    assert len(under.engine.bodies) == 2
    running.cancel()
    await asyncio.wait({running})
    async with asyncio.timeout(10):
        while await under.tasks():
            await asyncio.sleep(0.02)


async def test_a_recorded_call_is_not_made_again(under: UnderTest, fresh_id: str) -> None:
    async with asyncio.timeout(10):
        for calls in (CALLS[:1], CALLS):
            asked = request(calls, deliberation_id=fresh_id, resumed=len(calls) > 1).model_copy(
                update={"stage": len(calls)}
            )
            running = asyncio.create_task(under.agents.run(asked))
            await under.recorded(fresh_id, len(calls))
            running.cancel()
            await asyncio.wait({running})
    assert len(under.engine.bodies) == 2


async def test_cancelling_it_stops_no_call(under: UnderTest, fresh_id: str) -> None:
    under.engine.hold = asyncio.Event()
    running = asyncio.create_task(under.agents.run(request(CALLS, deliberation_id=fresh_id)))
    await until(lambda: len(under.engine.bodies) == 2)
    running.cancel()
    await asyncio.wait({running})
    under.engine.hold.set()
    assert {each.text for each in await under.recorded(fresh_id, 2)} == {ANSWER}


async def test_a_closed_stage_stops_its_calls(under: UnderTest, fresh_id: str) -> None:
    under.engine.hold = asyncio.Event()
    running = asyncio.create_task(under.agents.run(request(CALLS, deliberation_id=fresh_id)))
    await until(lambda: len(under.engine.bodies) == 2)
    closed = StageClosed(
        deliberation_id=fresh_id, ts=datetime.now(UTC), stage=1, purpose="propose", round=0, seen=(), reason="deadline"
    )
    await under.journal.append("default", closed)
    codes = [each.problem and each.problem.code for each in await under.recorded(fresh_id, 2)]
    assert codes == ["call_cancelled", "call_cancelled"]
    running.cancel()
    await asyncio.wait({running})


async def test_it_says_that_agents_are_lost(under: UnderTest, fresh_id: str) -> None:
    under.engine.hold = asyncio.Event()
    if isinstance(under.agents, RayAgents):
        await under.lose()
    running = asyncio.create_task(under.agents.run(request(CALLS, deliberation_id=fresh_id)))
    if not isinstance(under.agents, RayAgents):
        await until(lambda: len(under.engine.bodies) == 2)
        await under.lose()
    with pytest.raises(AgentsLost):
        async with asyncio.timeout(10):
            await running
    under.engine.hold.set()


@pytest.mark.parametrize("under", ["nats"], indirect=True)
async def test_a_task_is_queued_once_while_it_is_stored(under: UnderTest, fresh_id: str) -> None:
    under.engine.hold = asyncio.Event()
    asked = request(CALLS, deliberation_id=fresh_id)
    running = [asyncio.create_task(under.agents.run(asked)) for _ in range(2)]
    await until(lambda: len(under.engine.bodies) == 2)
    assert await under.tasks() == 1
    under.engine.hold.set()
    await under.recorded(fresh_id, 2)
    assert len(under.engine.bodies) == 2
    for each in running:
        each.cancel()
    await asyncio.wait(running)


@pytest.mark.parametrize("under", ["nats"], indirect=True)
@pytest.mark.parametrize("late", ["ended", "cancelled", "deleted", "too late"])
async def test_a_task_that_nobody_waits_for_makes_no_call(under: UnderTest, fresh_id: str, late: str) -> None:
    if late in ENDS:
        await under.journal.append("default", ENDS[late](deliberation_id=fresh_id, ts=datetime.now(UTC)))
    asked = request(CALLS, deliberation_id=fresh_id, asked_s_ago=5, deadline_s=30 if late in ENDS else -1)
    running = asyncio.create_task(under.agents.run(asked))
    found = await under.journal.request(f"$JS.API.CONSUMER.INFO.{TASKS_STREAM}.worker-DEV")
    async with asyncio.timeout(10):
        while found["delivered"]["stream_seq"] == 0 or await under.tasks():
            await asyncio.sleep(0.02)
            found = await under.journal.request(f"$JS.API.CONSUMER.INFO.{TASKS_STREAM}.worker-DEV")
    running.cancel()
    await asyncio.wait({running})
    assert under.engine.bodies == [] and await under.outcomes(fresh_id) == []


def sized(number: int, characters: int) -> Call:
    message = call(number).messages[0].model_copy(update={"content": "x" * characters})
    return call(number).model_copy(update={"messages": (message,)})


def test_a_request_that_is_too_large_for_a_message_becomes_several_tasks() -> None:
    calls = tuple(sized(number, 1_000) for number in range(1, 6))
    tasks = dict(tasks_of(request(calls), 3_000))
    parts = [StageRequest.model_validate_json(data).calls for data in tasks.values()]
    assert sum(parts, ()) == calls and all(len(data) <= 3_000 for data in tasks.values()) and len(tasks) > 1
    (whole,) = tasks_of(request(calls), 100_000)
    assert whole[0] == "1"


def test_a_part_keeps_its_name_when_some_of_its_calls_have_outcomes() -> None:
    calls = tuple(sized(number, 1_000) for number in range(1, 6))
    first = request(calls).model_copy(update={"stage_calls": calls})
    whole = {name: StageRequest.model_validate_json(data).calls for name, data in tasks_of(first, 5_000)}
    assert len(whole) == 2, "of three calls and of two"
    for lacking in (calls[1:], calls[:1], calls[4:], (calls[0], calls[4])):
        again = first.model_copy(update={"calls": lacking, "resumed": True})
        parts = {name: StageRequest.model_validate_json(data).calls for name, data in tasks_of(again, 5_000)}
        assert sum(parts.values(), ()) == lacking
        assert all(part == tuple(call for call in whole[name] if call in lacking) for name, part in parts.items())


@pytest.mark.parametrize("under", ["nats"], indirect=True)
async def test_parts_in_progress_are_not_queued_again(under: UnderTest, fresh_id: str) -> None:
    under.engine.hold = asyncio.Event()
    calls = tuple(sized(number, 400_000) for number in range(1, 4))
    whole = request(calls, deliberation_id=fresh_id).model_copy(update={"stage_calls": calls})
    running = [asyncio.create_task(under.agents.run(whole))]
    await until(lambda: len(under.engine.bodies) == 3)
    assert await under.tasks() == 2
    lacking = whole.model_copy(update={"calls": calls[2:], "resumed": True})
    running.append(asyncio.create_task(under.agents.run(lacking)))
    await asyncio.sleep(0.3)
    assert await under.tasks() == 2
    under.engine.hold.set()
    await under.recorded(fresh_id, 3)
    assert len(under.engine.bodies) == 3
    for each in running:
        each.cancel()
    await asyncio.wait(running)


def test_a_call_that_is_too_large_for_a_message_is_named() -> None:
    with pytest.raises(FactTooLarge, match="s1-dev-001"):
        list(tasks_of(request((sized(1, 5_000),)), 3_000))
