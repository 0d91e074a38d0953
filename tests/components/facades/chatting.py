import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from app.deliberation.facts import Accepted, CancelRequested, decode
from app.deliberation.strategies import STRATEGIES
from app.process_settings import read_roles
from tests.components.routes.served import Served
from tests.conditions import until

BODY: dict[str, Any] = {"model": "council/DEV", "messages": [{"role": "user", "content": "Name a colour."}]}
PATH = "/v1/chat/completions"


def accepted_in(gateway: Served) -> list[Accepted]:
    facts = [decode(record.data) for record in gateway.journal.records if record.subject.endswith(".accepted")]
    return [fact for fact in facts if isinstance(fact, Accepted)]


def cancelled_in(gateway: Served) -> list[str | None]:
    facts = [decode(record.data) for record in gateway.journal.records if record.subject.endswith(".cancel")]
    return [fact.reason for fact in facts if isinstance(fact, CancelRequested)]


async def play(gateway: Served, deliberation_id: str) -> None:
    await gateway.play(deliberation_id)


End = Callable[[Served, str], Awaitable[None]]


async def complete(
    gateway: Served, end: End = play, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    before = len(accepted_in(gateway))
    waiting = asyncio.create_task(gateway.client.post(PATH, json=BODY | body, headers=headers))
    await until(lambda: len(accepted_in(gateway)) > before)
    await end(gateway, accepted_in(gateway)[-1].deliberation_id)
    return await waiting


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    (error,) = response.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def frames_of(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


KNOWN = {"roles": read_roles(None), "strategies": STRATEGIES}
