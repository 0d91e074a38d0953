"""A call with tools at a real vLLM, with a parser of tool calls and without one.

Random weights call no tool on their own, so the call goes on after a use that the log holds already.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

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
from tests.integration.agent.test_agent_replica import request as stage_of
from tests.integration.tools.mcp_servers import command
from tests.vllm.server import Engine, vllm_server

pytestmark = pytest.mark.vllm
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
    folder, journal = tmp_path_factory.mktemp("shelf"), InMemoryJournal()
    await journal.append("default", ToolUsed(deliberation_id="d1", ts=datetime.now(UTC), **USE))
    engines = Engines([EngineSpec(url=engine.url)])
    tools = RoleTools(mcp=McpServer(name="shelf", command=tuple(command("shelf", folder))), allow=("look_up",))
    role = Role(persona="p", tools=(tools,))
    agent = AgentReplica("DEV", role, engines, journal, stream_deltas=True, engine_away_timeout_s=30)
    call = Call(
        call_id="s1-dev-001",
        agent_id="dev-001",
        role="DEV",
        messages=(ChatMessage(role="system", content="s"), ChatMessage(role="user", content="u")),
        output=Output(kind="answer"),
        temperature=0.7,
        max_tokens=4_096,
        seed=1,
        tools=ToolAllowance(names=("look_up",), uses=2, bytes=65_536),
    )
    await agent.run_stage(stage_of((call,), deadline_s=240))
    await agent.close()
    await engines.close()
    (outcome,) = [fact for each in journal.records if isinstance(fact := decode(each.data), CallFinished)]
    assert outcome.answered, outcome.problem
    assert outcome.usage.tool_uses >= 1 and outcome.usage.calls >= 2 and not outcome.usage_estimated
    assert ("tools" in engines.engines[0].dialects[engine.model].lacking) is not parser
