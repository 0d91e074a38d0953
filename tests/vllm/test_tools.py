"""A call with tools at a real vLLM, with a parser of tool calls and without one.

Random weights call no tool on their own, so the call goes on after a use that the log holds already. The weak real
model was never taught to call tools: it names one at times where a grammar binds its reply, and never of its own.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.deliberation.calls import Call, ChatMessage
from app.deliberation.facts import CallFinished, ToolUsed, decode
from app.deliberation.outputs import Output
from app.deliberation.roles import EngineSpec, Role
from app.deliberation.specification import ToolAllowance
from app.deliberation.tools import McpServer, RoleTools
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import request as stage_of
from tests.integration.tools.mcp_servers import command
from tests.vllm.server import Engine, vllm_server

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("patient_replicas")]
CALLS = 8
LOOK_UP_FIRST = (
    'You look words up in the book before you answer, as in {"tool": "look_up", "arguments": {"word": "sea"}}.'
)
USE = {
    "call_id": "s1-dev-001", "agent_id": "dev-001", "role": "DEV", "stage": 1, "number": 1, "turn": 1,
    "server": "shelf", "tool": "look_up", "name": "look_up", "tool_call_id": "t1", "arguments": '{"word": "life"}',
    "text": "life is forty-two",
}  # fmt: skip


@pytest.fixture(scope="module")
def parsing_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with vllm_server(tmp_path_factory.mktemp("vllm") / "tools.log", parser="hermes") as engine:
        yield engine


@pytest.mark.parametrize("parser", [False, True], ids=["without a parser", "with a parser"])
async def test_a_conversation_with_a_tool_is_taken_and_answered_in_form(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, parser: bool
) -> None:
    engine: Engine = request.getfixturevalue("parsing_engine" if parser else "vllm_engine")
    journal = InMemoryJournal()
    await journal.append("default", ToolUsed(deliberation_id="d1", ts=datetime.now(UTC), **USE))
    lacking = await answer(engine, journal, tmp_path_factory.mktemp("shelf"), call(1, "s", "u", max_tokens=4_096))
    (outcome,) = [fact for each in journal.records if isinstance(fact := decode(each.data), CallFinished)]
    assert outcome.answered, outcome.problem
    assert outcome.usage.tool_uses >= 1 and outcome.usage.calls >= 2 and not outcome.usage_estimated
    assert ("tools" in lacking) is not parser


@pytest.mark.weights
async def test_a_weak_real_model_names_a_tool_where_a_grammar_binds_its_reply(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    journal = InMemoryJournal()
    calls = [call(seed, LOOK_UP_FIRST, "# Task\nWhat is life, in the book?") for seed in range(1, CALLS + 1)]
    with vllm_server(tmp_path_factory.mktemp("vllm") / "vllm.log", real=True) as engine:
        lacking = await answer(engine, journal, tmp_path_factory.mktemp("shelf"), *calls)
    facts = [decode(record.data) for record in journal.records]
    ends, uses = ([fact for fact in facts if isinstance(fact, kind)] for kind in (CallFinished, ToolUsed))
    assert len(ends) == CALLS and "tools" in lacking
    assert {use.name for use in uses} == {"look_up"} and all(use.problem is None for use in uses)
    print(f"{len({use.call_id for use in uses})} of {CALLS} calls used a tool")


def call(seed: int, system: str, task: str, *, max_tokens: int = 256) -> Call:
    return Call(
        call_id=f"s1-dev-{seed:03}",
        agent_id=f"dev-{seed:03}",
        role="DEV",
        messages=(ChatMessage(role="system", content=system), ChatMessage(role="user", content=task)),
        output=Output(kind="answer"),
        temperature=0.7,
        max_tokens=max_tokens,
        seed=seed,
        tools=ToolAllowance(names=("look_up",), uses=2, bytes=65_536),
    )


async def answer(engine: Engine, journal: InMemoryJournal, folder: Path, *calls: Call) -> frozenset[str]:
    """Run the calls as a stage of an agent with the tool; returns the fields that the engine lacks."""
    engines = Engines([EngineSpec(url=engine.url)])
    tools = RoleTools(mcp=McpServer(name="shelf", command=tuple(command("shelf", folder))), allow=("look_up",))
    role = Role(persona="p", tools=(tools,))
    agent = AgentReplica("DEV", role, engines, journal, stream_deltas=True, engine_away_timeout_s=30)
    await agent.run_stage(stage_of(calls, deadline_s=240))
    await agent.close()
    await engines.close()
    return engines.engines[0].dialects[engine.model].lacking
