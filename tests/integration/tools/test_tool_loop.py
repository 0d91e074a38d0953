"""Calls that use tools: real servers of the Model Context Protocol, the simulator as engine, and a real log."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from app.deliberation.calls import StageRequest
from app.deliberation.errors import CallCancelled
from app.deliberation.facts import CallFinished, CancelRequested, ToolStarted, ToolUsed, decode
from app.deliberation.roles import EngineSpec, Role
from app.deliberation.tools import McpServer, RoleTools, ToolLimits
from app.log.journal import JetStreamJournal
from app.observability import conventions as names
from app.observability.replica_status import AgentStatus
from app.observability.trace_context import DeliberationTrace
from app.observability.traces import Tracer
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from serve_deployments.tools.servers import ToolServer
from tests.conditions import until
from tests.conftest import free_port
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import request
from tests.integration.tools.mcp_servers import command, serving, uses
from tests.integration.tools.tool_calls import Engine, Use, call, facts_of
from tests.otlp import KeptSpans

pytestmark = pytest.mark.usefixtures("patient_replicas")

LOOK_UP: Use = ("look_up", {"word": "life"})
WRITE: Use = ("write", {"text": "once"})


def tools_of(server: McpServer, **limits: Any) -> RoleTools:
    return RoleTools(mcp=server, allow=("look_up", "write"), per_call=ToolLimits(**limits))


def stdio(folder: Path, kind: str = "shelf", name: str = "shelf") -> McpServer:
    return McpServer(name=name, command=tuple(command(kind, folder)))


@asynccontextmanager
async def agent_of(
    journal: JetStreamJournal, engine: Engine | ScriptedEngine, *tools: RoleTools, tracer: Tracer | None = None
) -> AsyncGenerator[AgentReplica]:
    engines = Engines([EngineSpec(url="http://engine0")], transport=httpx.MockTransport(engine))
    role = Role(persona="p", tools=tools)
    agent = AgentReplica("DEV", role, engines, journal, stream_deltas=True, engine_away_timeout_s=30, tracer=tracer)
    try:
        yield agent
    finally:
        await agent.close()


async def finished(agent: AgentReplica, asked: StageRequest) -> CallFinished:
    await agent.run_stage(asked)
    (found,) = await facts_of(agent.journal, CallFinished, asked.deliberation_id)
    return found


@pytest.mark.parametrize("over_http", [False, True])
async def test_a_model_uses_tools_and_its_answer_cites_what_they_returned(
    journal: JetStreamJournal, tmp_path: Path, over_http: bool
) -> None:
    async def asked(server: McpServer) -> tuple[CallFinished, Engine]:
        engine = Engine(LOOK_UP, WRITE)
        async with agent_of(journal, engine, tools_of(server)) as agent:
            return await finished(agent, request((call(),))), engine

    if over_http:
        async with serving("shelf", tmp_path, free_port()) as url:
            outcome, engine = await asked(McpServer(name="shelf", url=url))
    else:
        outcome, engine = await asked(stdio(tmp_path))
    assert outcome.problem is None and "life is forty-two" in (outcome.text or "")
    assert uses(tmp_path) == ["look_up life", "write once"]
    first, second = await facts_of(journal, ToolUsed)
    assert (first.number, first.turn, first.server, first.tool, first.text) == (
        1,
        1,
        "shelf",
        "look_up",
        "life is forty-two",
    )
    assert json.loads(first.arguments) == {"word": "life"} and not first.failed and first.bytes == 17
    assert (second.number, second.turn, second.text) == (2, 2, "once is written")
    (started,) = await facts_of(journal, ToolStarted)
    assert (started.number, started.tool) == (2, "write"), "only what must not be repeated is begun in the log"
    assert outcome.usage.tool_uses == 2 and outcome.usage.calls == len(engine.bodies) == 4
    offered = [("tools" in body, "response_format" in body) for body in engine.bodies]
    assert offered == [(True, False)] * 3 + [(False, True)], "a text that is not in form is asked for in its form"
    roles = [message["role"] for message in engine.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert "<<<peer-text" in engine.bodies[-1]["messages"][3]["content"]


@pytest.mark.parametrize("content", [False, True])
async def test_each_use_is_a_span_below_that_of_its_call_and_is_counted(
    journal: JetStreamJournal, tmp_path: Path, content: bool
) -> None:
    trace, spans = DeliberationTrace.of("d1", None), KeptSpans(captures_content=content)
    engine = Engine(LOOK_UP, ("read_minds", {}), ("look_up", {"word": 1}))
    async with agent_of(journal, engine, tools_of(stdio(tmp_path)), tracer=spans) as agent:
        await finished(agent, request((call(),)).model_copy(update={"traceparent": trace.stage(1).traceparent}))
        counts = AgentStatus.model_validate(await agent.describe()).tool_uses["shelf"]
    uses = [each for each in spans.spans if each.attributes[names.OPERATION_NAME] == "execute_tool"]
    assert [(each.name, each.error) for each in uses] == [
        ("execute_tool look_up", None),
        ("execute_tool", "refused"),
        ("execute_tool look_up", "tool_error"),
    ]
    recorded = await facts_of(journal, ToolUsed)
    assert [each.attributes["gen_ai.tool.call.id"] for each in uses] == [each.tool_call_id for each in recorded]
    assert [each.attributes["gen_ai.tool.name"] for each in uses] == ["look_up", None, "look_up"]
    assert {each.parent_id for each in uses} == {trace.agent("s1-dev-001").span_id}
    assert len({each.ref.span_id for each in uses}) == 3 and {each.ref.trace_id for each in uses} == {trace.trace_id}
    texts = [each.attributes.get("gen_ai.tool.call.result") for each in uses]
    assert texts == ([each.text for each in recorded] if content else [None] * 3)
    assert counts.outcomes | {"succeeded": 1, "failed": 1} == counts.outcomes and sum(counts.outcomes.values()) == 2
    assert sum(counts.seconds.counts) == 2


async def test_an_answer_in_form_beside_tools_is_taken_and_paid_once(journal: JetStreamJournal, tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _, number: streamed(ANSWER) if number == 1 else httpx.Response(500))
    async with agent_of(journal, engine, tools_of(stdio(tmp_path))) as agent:
        outcome = await finished(agent, request((call(),)))
    assert outcome.text == ANSWER and outcome.usage.calls == len(engine.bodies) == 1 and "tools" in engine.bodies[0]


async def test_calls_without_tools_are_sent_as_ever(journal: JetStreamJournal, tmp_path: Path) -> None:
    engine = Engine(LOOK_UP)
    async with agent_of(journal, engine, tools_of(stdio(tmp_path))) as agent:
        outcome = await finished(agent, request((call(uses=0),)))
    (body,) = engine.bodies
    assert "tools" not in body and "response_format" in body and "# Tools" not in json.dumps(body)
    assert outcome.usage.tool_uses == 0 and uses(tmp_path) == [] and not await facts_of(journal, ToolUsed)


async def test_uses_end_at_the_calls_bound_and_the_answer_is_asked_for_in_its_form(
    journal: JetStreamJournal, tmp_path: Path
) -> None:
    engine = Engine(*[LOOK_UP] * 9)
    async with agent_of(journal, engine, tools_of(stdio(tmp_path))) as agent:
        outcome = await finished(agent, request((call(uses=2),)))
    assert outcome.answered and outcome.usage.tool_uses == len(uses(tmp_path)) == 2
    assert [("tools" in body, "response_format" in body) for body in engine.bodies] == [
        (True, False),
        (True, False),
        (False, True),
    ]


async def test_an_engine_without_tools_names_them_in_an_object(journal: JetStreamJournal, tmp_path: Path) -> None:
    engine = Engine(LOOK_UP, lacks=("tools",))
    async with agent_of(journal, engine, tools_of(stdio(tmp_path))) as agent:
        outcome = await finished(agent, request((call(),)))
    assert outcome.answered and "life is forty-two" in (outcome.text or "") and uses(tmp_path) == ["look_up life"]
    assert [message["role"] for message in engine.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert ["tools" in body for body in engine.bodies] == [True, False, False, False], "it refuses tools once"


@pytest.mark.parametrize(
    ("use", "code"),
    [(("burn", {}), "refused"), (("look_up", {"word": {"a": 1}}), None)],
    ids=["unknown tool", "arguments that the tool refuses"],
)
async def test_a_wrong_use_is_recorded_and_told(
    journal: JetStreamJournal, tmp_path: Path, use: Use, code: str | None
) -> None:
    async with agent_of(journal, Engine(use), tools_of(stdio(tmp_path))) as agent:
        outcome = await finished(agent, request((call(),)))
    (used,) = await facts_of(journal, ToolUsed)
    assert outcome.answered and used.failed and (used.problem and used.problem.code) == code
    assert uses(tmp_path) == []


async def test_values_of_secret_keys_reach_the_tool_and_no_fact(journal: JetStreamJournal, tmp_path: Path) -> None:
    hidden = ("write", {"text": "t", "api_key": "hunter22"})
    async with agent_of(journal, Engine(hidden), tools_of(stdio(tmp_path))) as agent:
        await finished(agent, request((call(),)))
    (used,) = await facts_of(journal, ToolUsed)
    assert json.loads(used.arguments) == {"text": "t", "api_key": "[secret]"}
    assert not any(b"hunter22" in record.data for record in await journal.facts("default", "d1"))


# --- servers that are away or evil -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("hangs", "timeout"),
        ("drips", "timeout"),
        ("crashes", "server_away"),
        ("floods", "too_large"),
        ("lies", "refused"),
        ("forges", None),
    ],
)
async def test_an_evil_server_fails_its_own_use_alone(
    journal: JetStreamJournal, tmp_path: Path, kind: str, code: str | None
) -> None:
    engine = Engine(LOOK_UP)
    # The others end by themselves, however long a slow machine takes to start their processes.
    limits = ToolLimits(seconds=2) if code == "timeout" else ToolLimits()
    evil = RoleTools(mcp=stdio(tmp_path, kind), allow=("look_up",), per_call=limits)
    async with agent_of(journal, engine, evil) as agent:
        outcome = await finished(agent, request((call(),), deliberation_id=f"d-{kind}"))
    (used,) = await facts_of(journal, ToolUsed, f"d-{kind}")
    assert outcome.answered and (used.problem and used.problem.code) == code and used.failed == (code is not None)
    told = engine.bodies[-1]["messages"][3]["content"]
    begin, *inside, end = told.split("\n")[1:]
    assert begin.startswith("<<<peer-text ") and end == begin.replace("<<<peer-text", "<<<end-of-peer-text")
    assert not any(line.startswith("<<<") for line in inside), "a forged fence is no fence"


@pytest.mark.parametrize("kind", ["floods", "floods-json"])
async def test_a_flood_over_http_ends_at_its_bound(journal: JetStreamJournal, tmp_path: Path, kind: str) -> None:
    async with serving(kind, tmp_path, free_port()) as url:
        async with agent_of(journal, Engine(LOOK_UP), tools_of(McpServer(name="shelf", url=url))) as agent:
            outcome = await finished(agent, request((call(),)))
    (used,) = await facts_of(journal, ToolUsed)
    assert outcome.answered and used.failed and used.problem.code == "too_large" and used.text == ""


async def test_a_command_that_prints_without_end_is_known_to_be_away() -> None:
    endless = (sys.executable, "-c", "import os\nwhile True: os.write(1, bytes(65_536))")
    server = ToolServer(McpServer(name="shelf", command=endless))
    server.open()
    await until(lambda: server.away_since is not None, timeout_s=20)
    await server.close()
    assert "sent more than" in server.why


async def test_a_hanging_server_keeps_no_other_call_of_its_replica_waiting(
    journal: JetStreamJournal, tmp_path: Path
) -> None:
    hangs = RoleTools(mcp=stdio(tmp_path, "hangs"), allow=("look_up",))
    async with agent_of(journal, Engine(LOOK_UP), hangs) as agent:
        stuck = asyncio.get_running_loop().create_task(agent.run_stage(request((call(),), deliberation_id="stuck")))
        await until(lambda: uses(tmp_path) != [])
        outcome = await finished(agent, request((call(2, uses=0),), deliberation_id="beside"))
        assert outcome.answered and not stuck.done()
        await agent.journal.append("default", CancelRequested(deliberation_id="stuck", ts=datetime.now(UTC)))
        await stuck
    (cut,) = await facts_of(journal, CallFinished, "stuck")
    assert cut.problem.code == CallCancelled.code and not await facts_of(journal, ToolUsed, "stuck")


async def test_tenants_take_turns_at_a_slow_server_and_another_server_keeps_nobody_waiting(
    journal: JetStreamJournal, tmp_path: Path
) -> None:
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    slow.mkdir()
    quick.mkdir()
    (slow / "hold").touch()
    one_at_once = McpServer(name="slow", command=tuple(command("shelf", slow)), concurrency=1)
    tools = (
        RoleTools(mcp=one_at_once, allow=("write",)),
        RoleTools(mcp=stdio(quick, name="quick"), allow=("look_up",)),
    )

    def asked(tenant: str, number: int, **named: Any) -> StageRequest:
        given = request((call(number),), deliberation_id=f"{tenant}{number}", **named)
        return given.model_copy(update={"tenant": tenant})

    async def used(tenant: str, number: int) -> ToolUsed:
        records = await journal.facts(tenant, f"{tenant}{number}")
        (use,) = [fact for record in records if isinstance(fact := decode(record.data), ToolUsed)]
        return use

    loop = asyncio.get_running_loop()
    async with agent_of(journal, Engine(WRITE), *tools) as agent:
        busy = [loop.create_task(agent.run_stage(asked("a", number, deadline_s=120))) for number in (1, 2, 3)]
        await until(lambda: uses(slow) == ["write once"])
        async with agent_of(journal, Engine(LOOK_UP), *tools) as beside:
            # One replica's connections and places, with another script of the engine.
            beside.toolboxes = agent.toolboxes
            await beside.run_stage(asked("b", 1))
            assert (await used("b", 1)).server == "quick" and uses(quick) == ["look_up life"]
        await agent.run_stage(asked("c", 1, deadline_s=2))
        late = await used("c", 1)
        assert late.problem is not None and "busy" in late.problem.detail and late.problem.code == "timeout"
        other = loop.create_task(agent.run_stage(asked("b", 2)))
        slots = agent._tools._declared[0][2]  # pyright: ignore[reportPrivateUsage]
        await until(lambda: set(slots._waiting) == {"a", "b"})  # pyright: ignore[reportPrivateUsage]
        (slow / "hold").unlink()
        await asyncio.gather(*busy, other)
    ends = {id: (await used(id[0], int(id[1]))).ts for id in ("a1", "a2", "a3", "b2")}
    order = sorted(ends, key=lambda id: ends[id])
    assert order[0][0] == "a" and order[1] == "b2", "the second tenant's use is next"
    waited = [await used("a", number) for number in (1, 2, 3)]
    assert [each.problem for each in waited] == [None] * 3 and len(uses(slow)) == 4, "a wait costs none its time"


async def test_the_secret_of_a_header_is_in_no_fact_even_if_the_server_returns_it(
    journal: JetStreamJournal, tmp_path: Path
) -> None:
    secret = tmp_path / "headers"
    secret.write_text("Authorization: Bearer s3cret-of-the-server\n")
    async with serving("echoes", tmp_path, free_port()) as url:
        server = McpServer(name="shelf", url=url, headers_file=str(secret))
        async with agent_of(journal, Engine(LOOK_UP), tools_of(server)) as agent:
            await finished(agent, request((call(),)))
    (used,) = await facts_of(journal, ToolUsed)
    assert used.text == "[secret]"


async def test_a_council_goes_on_without_a_server_that_is_away_and_says_so(journal: JetStreamJournal) -> None:
    away = tools_of(McpServer(name="gone", url=f"http://127.0.0.1:{free_port()}/mcp"))
    engine = Engine(LOOK_UP)
    async with agent_of(journal, engine, away) as agent:
        outcome = await finished(agent, request((call(),)))
        (described,) = (await agent.describe())["tools"]
    assert outcome.answered and outcome.tools_away == ("gone",) and outcome.usage.tool_uses == 0
    assert described["away_since"] is not None and described["why"]
    (body,) = engine.bodies
    assert "tools" not in body and "response_format" in body


# --- replicas that die -----------------------------------------------------------------------------------------------


async def killed_in(agent: AgentReplica, asked: StageRequest, moment: Callable[[], bool]) -> None:
    """Run a stage until a moment, at which the replica ends as if it were killed: it records nothing more."""
    running = asyncio.get_running_loop().create_task(agent.run_stage(asked))
    await until(moment)
    for _, task in list(agent._all_running()):  # pyright: ignore[reportPrivateUsage]
        task.cancel()
    await asyncio.wait({running})


async def test_a_recorded_use_is_made_once_and_a_begun_one_that_must_not_be_repeated_never_again(
    journal: JetStreamJournal, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    asked = request((call(),))
    async with agent_of(journal, Engine(LOOK_UP, WRITE), tools_of(stdio(tmp_path))) as agent:
        await killed_in(agent, asked, lambda: len(uses(tmp_path)) == 2)
    assert [use.tool for use in await facts_of(journal, ToolUsed)] == ["look_up"]
    (tmp_path / "hold").unlink()
    successor = Engine(LOOK_UP, WRITE)
    async with agent_of(journal, successor, tools_of(stdio(tmp_path))) as agent:
        outcome = await finished(agent, asked.model_copy(update={"resumed": True}))
    assert uses(tmp_path) == ["look_up life", "write once"], "neither was executed again"
    first, second = await facts_of(journal, ToolUsed)
    assert first.text == "life is forty-two" and not first.failed
    assert second.failed and second.problem.code == "unknown_outcome"
    assert outcome.answered and outcome.usage.tool_uses == 2
    told = [message["content"] for message in successor.bodies[0]["messages"] if message["role"] == "tool"]
    assert len(told) == 2 and "life is forty-two" in told[0] and "unknown_outcome" in told[1]


async def test_two_replicas_that_run_one_call_execute_what_must_not_be_repeated_once(
    journal: JetStreamJournal, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    asked = request((call(),))
    tools = tools_of(stdio(tmp_path))
    async with agent_of(journal, Engine(WRITE), tools) as one, agent_of(journal, Engine(WRITE), tools) as other:
        held = asyncio.get_running_loop().create_task(one.run_stage(asked))
        await until(lambda: uses(tmp_path) == ["write once"])
        await other.run_stage(asked.model_copy(update={"resumed": True}))
        assert uses(tmp_path) == ["write once"], "the other one did not begin it again"
        (tmp_path / "hold").unlink()
        await held
    (used,) = await facts_of(journal, ToolUsed)
    assert used.problem.code == "unknown_outcome" and len(await facts_of(journal, CallFinished)) == 1


def test_an_agent_loads_no_code_of_tools_before_it_uses_one() -> None:
    program = "import sys, serve_deployments.agent.worker; print([each for each in sys.modules if each == 'mcp'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_server_closes_although_its_connection_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0

    @asynccontextmanager
    async def connection(*_: object) -> AsyncGenerator[SimpleNamespace]:
        nonlocal opened
        opened += 1
        try:
            yield SimpleNamespace(ended=asyncio.Event(), tools=())
        except asyncio.CancelledError:
            raise ExceptionGroup("while closing", [OSError("reset")]) from None

    monkeypatch.setattr("serve_deployments.tools.mcp_client.connection", connection)
    server = ToolServer(McpServer(name="shelf", url="http://127.0.0.1:9/mcp"))
    server.open()
    await until(lambda: opened == 1)
    async with asyncio.timeout(5):
        await server.close()
    assert opened == 1, "it does not connect again"
