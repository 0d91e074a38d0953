"""Uses of tools in the terminal: a line as they come, and a line in the transcript."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.cli.render.lines import event_line
from app.deliberation.calls import FactProblem
from app.deliberation.facts import ToolStarted, ToolUsed
from tests.components.cli.real_gateway import RealGateway, invoke
from tests.components.routes.served import Served
from tests.story import NOW

AWAY = FactProblem(code="server_away", detail="connection refused", retryable=False)


def use(of: type[ToolStarted | ToolUsed] = ToolUsed, number: int = 1, **fields: Any) -> ToolStarted | ToolUsed:
    about = {"call_id": "s1-dev-001", "agent_id": "dev-001", "role": "DEV", "stage": 1, "number": number, "turn": 1}
    named = {"server": "books", "tool": "look_up", "name": "look_up", "tool_call_id": "t1"}
    return of(**{"deliberation_id": "d", "ts": NOW, "arguments": '{"word": "\\u001b[2J*"}', **about, **named, **fields})


@pytest.fixture(scope="module")
def gateway() -> Iterator[RealGateway]:
    with RealGateway() as running:
        yield running


def test_each_use_is_one_line_with_server_time_and_size_or_failure() -> None:
    assert event_line(use(ToolStarted), NOW) == "   0.0 s    dev-001 begins look_up of books"
    done = use(text="forty-two\nlines", bytes=15, duration_ms=1_200)
    assert event_line(done, NOW) == "   0.0 s    dev-001 used look_up of books in 1.2 s: 15 bytes"
    failed = use(failed=True, problem=AWAY, duration_ms=300)
    assert (
        event_line(failed, NOW) == "   0.0 s    dev-001 used look_up of books in 0.3 s: server_away: connection refused"
    )
    assert "it failed, 3 bytes" in (event_line(use(text="no!", failed=True, bytes=3), NOW) or "")


def test_the_transcript_lists_the_uses_of_a_call_before_its_answer(gateway: RealGateway) -> None:
    async def played(served: Served) -> str:
        id = await served.accepted(num_agents=2, seed=7)
        await served.play(id, until_stage=1)
        await served.append(use(deliberation_id=id, text="forty-two", bytes=9, duration_ms=100))
        await served.append(use(number=2, deliberation_id=id, failed=True, problem=AWAY))
        await served.play(id)
        return id

    shown = invoke(gateway, "show", gateway.do(played), "--transcript").stdout
    call = shown.partition("### dev-001 · s1-dev-001")[2].partition("###")[0]
    first, second = [line for line in call.splitlines() if line.startswith("- look")]
    assert first.startswith("- look\\_up of books in 0.1 s: 9 bytes; arguments ") and "\x1b" not in first
    assert "server\\_away: connection refused" in second
    assert call.index("Tools:") < call.index("Answer:")
