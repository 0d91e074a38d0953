"""Members with names and personas of their own, through the doors of other protocols."""

import asyncio
from typing import Any

from tests.components.facades.ag_ui_inputs import props, run_input
from tests.components.facades.chatting import accepted_in
from tests.components.routes.served import Served
from tests.conditions import until

COUNCIL = [{"name": "sceptic", "persona": "You look for the flaw that makes the plan fail."}, {"role": "QA"}]


async def recorded(gateway: Served, path: str, body: dict[str, Any], **headers: str) -> list[tuple[str, str | None]]:
    """The members of the deliberation that a request starts."""
    asking = asyncio.create_task(gateway.client.post(path, json=body, headers=headers))
    await until(lambda: len(accepted_in(gateway)) == 1 or asking.done())
    (fact,) = accepted_in(gateway)
    await gateway.play(fact.deliberation_id)
    assert (await asking).status_code == 200
    return [(agent.agent_id, agent.persona) for agent in fact.specification.agents]


EXPECTED = [("sceptic", COUNCIL[0]["persona"]), ("qa-001", None)]


async def test_an_a2a_message_names_members(gateway: Served) -> None:
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Name a colour."}]}
    params = {"message": message, "metadata": {"agents": COUNCIL}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    assert await recorded(gateway, "/a2a", body, **{"A2A-Version": "1.0"}) == EXPECTED


async def test_an_ag_ui_run_names_members(gateway: Served) -> None:
    assert await recorded(gateway, "/ag-ui", run_input(props=props(agents=COUNCIL))) == EXPECTED


async def test_a_chat_completion_names_members(gateway: Served) -> None:
    body = {"model": "council", "messages": [{"role": "user", "content": "Name a colour."}]}
    assert await recorded(gateway, "/v1/chat/completions", body | {"deliberation": {"agents": COUNCIL}}) == EXPECTED


async def test_a_response_names_members(gateway: Served) -> None:
    body = {"model": "council", "input": "Name a colour.", "deliberation": {"agents": COUNCIL}}
    assert await recorded(gateway, "/v1/responses", body) == EXPECTED
