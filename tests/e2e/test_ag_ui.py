import json
import os
import signal
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.components.facades.ag_ui_client import OFFICIAL, Events, client_of
from tests.components.facades.ag_ui_inputs import props, run_input
from tests.e2e.conftest import SLOW, TASK, Stack

pytestmark = pytest.mark.e2e

SAID: Any = [{"id": "m1", "role": "user", "content": TASK}]


async def events(stack: Stack, path: str, body: dict[str, Any], until: str = "", found: Events | None = None) -> Events:
    """The events, until the first one of a type if it is given: then the client leaves."""
    found = [] if found is None else found
    async with stack.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                OFFICIAL.validate_python(found[-1])
                if found[-1]["type"] == until:
                    break
    return found


def id_of(found: Events) -> str:
    return next(event["snapshot"]["deliberation"]["id"] for event in found if event["type"] == "STATE_SNAPSHOT")


async def test_one_seed_gives_the_verdict_and_the_bill_of_rest(stack: Stack) -> None:
    rest = await stack.until(await stack.submit(seed=11), status="completed")
    found = await events(stack, "/ag-ui", run_input(run="seeded", messages=SAID, props=props(seed=11)))
    assert client_of(found).messages[f"{id_of(found)}.verdict.0"]["content"] == rest["verdict"]["content"]
    (spent,) = found[-1]["usage"]
    billed = (spent["inputTokens"], spent["outputTokens"])
    assert billed == (rest["usage"]["prompt_tokens"], rest["usage"]["completion_tokens"])


async def test_a_client_that_leaves_cancels_the_run(stack: Stack) -> None:
    await stack.script(**{**SLOW, "duration_ms": 15_000})
    found = await events(stack, "/ag-ui", run_input(run="left", messages=SAID), until="TEXT_MESSAGE_CONTENT")
    read = await stack.until(id_of(found), status="cancelled")
    assert read["cancellation"]["by"] == "disconnect"
    again = await events(stack, "/ag-ui/connect", run_input(run="left"))
    assert client_of(again).open == set() and again[-1]["outcome"] == {"type": "cancelled"}


async def test_a_run_is_joined_mid_text_after_the_gateways_sigkill(stack: Stack) -> None:
    await stack.script(**{**SLOW, "duration_ms": 2_000})
    body, found, pid = run_input(run="killed", messages=SAID, props=props(background=True)), Events(), None
    with suppress(httpx.TransportError):
        await events(stack, "/ag-ui", body, "TEXT_MESSAGE_CONTENT", found)
        pid = stack.child("gateway")["pid"]
        os.kill(pid, signal.SIGKILL)
    await stack.until_ready()
    assert pid is not None and stack.child("gateway")["pid"] != pid
    joined = await events(stack, "/ag-ui/connect", run_input(run="killed"))
    client, read = client_of(joined), await stack.read(id_of(found))
    assert [event["type"] for event in joined[:2]] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert joined[-1]["outcome"] == {"type": "success"} and client.open == set()
    assert client.messages[f"{read['id']}.verdict.0"]["content"] == read["verdict"]["content"]
    ends = [record for record in await stack.journal.facts("default", read["id"]) if record.tokens[-1] == "end"]
    assert len(ends) == 1
