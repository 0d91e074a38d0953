import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.access.authorization import ACCESS
from app.access.key_writer import KeyWriter
from app.access.keys import Pepper, Scope
from app.lifecycle.specify import deliberation_id
from tests.components.access.keyed import PEPPER, accepted, bearer, make_key, play
from tests.components.openapi.documented import filled, operations
from tests.components.routes.served import COORDINATOR, Served, served
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import NOW

CANARY = "canary-of-acme"
UNKNOWN = "z" * 26
# Headers that differ between any two answers and reveal nothing.
PASSING = {"x-request-id", "ratelimit", "date"}


@dataclass
class Two:
    gateway: Served
    acme: str
    rival: str
    operator: str
    ended: str
    running: str

    async def ask(self, method: str, path: str, key: str, **headers: str) -> httpx.Response:
        sent = bearer(key, **headers)
        body = "{}" if method in ("POST", "PUT", "PATCH") else None
        return await self.gateway.client.request(
            method, path, content=body, headers={**sent, "Content-Type": "application/json"}
        )


@pytest.fixture
async def two() -> AsyncGenerator[Two, None]:
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR]})
    read_and_submit: tuple[Scope, ...] = ("read", "submit")
    acme, rival = (
        await make_key(journal, "acme", read_and_submit),
        await make_key(journal, "rival", read_and_submit),
    )
    operator = await make_key(journal, "rival", ("admin",))
    async with served(journal=journal, key_pepper=PEPPER, lists=True) as gateway:
        gateway.gateway["key_writer"] = KeyWriter(journal, Pepper(PEPPER))
        body = {"task": f"Name a colour, {CANARY}.", "metadata": {"owner": CANARY}}
        ended = await accepted(gateway, acme, **body)
        await play(gateway, "acme", ended)
        running = await accepted(gateway, acme, **body)
        await play(gateway, "acme", running, until_stage=1)
        yield Two(gateway, acme, rival, operator, ended, running)


NEED_A_KEY = [each for each in operations() if ACCESS[each[0]] is not None]
WITH_ID = [each for each in NEED_A_KEY if "{deliberation_id}" in each[2] or "{response_id}" in each[2]]
with_id = pytest.mark.parametrize(("name", "method", "path"), WITH_ID)
without_id = pytest.mark.parametrize(("name", "method", "path"), [each for each in NEED_A_KEY if each not in WITH_ID])


def at(path: str, deliberation: str = "") -> str:
    ids = {"deliberation_id": deliberation, "response_id": f"resp_{deliberation}"}
    return filled(path, **ids, role="DEV", model="council/DEV")


def visible(response: httpx.Response, deliberation: str) -> tuple[int, dict[str, str], str]:
    headers = {name: value for name, value in response.headers.items() if name not in PASSING}
    text = response.text.replace(deliberation, "ID").replace(response.headers["x-request-id"], "REQUEST")
    return response.status_code, headers, text


def test_the_walk_covers_every_operation() -> None:
    walked = {name for name, _, _ in NEED_A_KEY}
    assert {"get_deliberation", "cancel_deliberation", "read_deliberation_events", "list_deliberations"} <= walked
    # test_mcp.py and test_a2a.py in tests/components/facades walk through the messages of MCP and A2A. A refusal shows
    # nothing.
    others = {"call_mcp", "call_a2a", "refuse_operation"}
    assert walked | others == {name for name, needed in ACCESS.items() if needed is not None}


@with_id
@pytest.mark.parametrize(
    "headers",
    [{}, {"Accept": "application/json"}, {"Prefer": "wait=5"}, {"If_None_Match": "*"}, {"Last_Event_ID": "memory-1"}],
    ids=lambda headers: next(iter(headers), "plain"),
)
async def test_a_foreign_deliberation_answers_as_an_unknown_one(
    two: Two, name: str, method: str, path: str, headers: dict[str, str]
) -> None:
    unknown = await two.ask(method, at(path, UNKNOWN), two.rival, **headers)
    for foreign in (two.ended, two.running):
        theirs = await two.ask(method, at(path, foreign), two.rival, **headers)
        assert theirs.status_code == 404, name
        assert visible(theirs, foreign) == visible(unknown, UNKNOWN)
        assert CANARY not in theirs.text and "acme" not in theirs.text
        own = await two.ask(method, at(path, two.ended), two.acme, **headers)
        # The delivery id of the walk does not exist.
        walked = own.status_code < 400 or own.status_code in (406, 409) or "{delivery_id}" in path
        assert walked, "the walk asks what its owner may ask"
    assert not [r for r in two.gateway.journal.records if r.subject.endswith(".cancel") and two.running in r.subject]


@with_id
async def test_foreign_and_unknown_ids_cause_the_same_log_requests(
    two: Two, monkeypatch: pytest.MonkeyPatch, name: str, method: str, path: str
) -> None:
    """Equal requests to the log with equal answers take the same time, so timing reveals nothing either."""
    asked: list[str] = []
    facts, last, write = InMemoryJournal.facts, InMemoryJournal.last, InMemoryJournal.write

    async def counted_facts(self: InMemoryJournal, tenant: str, id: str) -> Any:
        found = await facts(self, tenant, id)
        asked.append(f"facts of {tenant}: {len(found)}")
        return found

    async def counted_last(self: InMemoryJournal, patterns: Any) -> Any:
        found = await last(self, patterns)
        asked.append(f"last of {len(patterns)}: {len(found)}")
        return found

    async def counted_write(self: InMemoryJournal, subject: str, data: bytes) -> Any:
        asked.append(f"write {subject}")
        return await write(self, subject, data)

    monkeypatch.setattr(InMemoryJournal, "facts", counted_facts)
    monkeypatch.setattr(InMemoryJournal, "last", counted_last)
    monkeypatch.setattr(InMemoryJournal, "write", counted_write)
    steps: list[list[str]] = []
    for deliberation in (UNKNOWN, two.ended, two.running):
        asked.clear()
        await two.ask(method, at(path, deliberation), two.rival)
        steps.append(list(asked))
    assert steps[0] and steps[0] == steps[1] == steps[2], name
    assert "acme" not in str(steps)


@without_id
async def test_operations_without_an_id_never_show_foreign_deliberations(
    two: Two, name: str, method: str, path: str
) -> None:
    # A page, since the stream of a whole tenant has no end.
    headers = {"Accept": "application/json"} if name == "read_events" else {}
    response = await two.ask(method, at(path), two.rival, **headers)
    answer = response.text + str(response.headers)
    for theirs in (CANARY, two.ended, two.running, "acme"):
        assert theirs not in answer, name
    if ACCESS[name] == ("admin",):
        assert response.status_code == 403
        response = await two.ask(method, at(path), two.operator)
        assert response.status_code == {"create_key": 422, "revoke_key": 404}.get(name, 200), name
        for theirs in (CANARY, two.ended, two.running, "acme"):
            assert theirs not in response.text, "an operator's figures count tenants together, and name none"


async def test_lists_and_statistics_cover_one_tenant(two: Two) -> None:
    own = await accepted(two.gateway, two.rival)
    await two.gateway.copied()
    for query in ("", "?status=completed", f"?metadata.owner={CANARY}", "?limit=200", "?role=DEV"):
        items = (await two.ask("GET", f"/deliberations{query}", two.rival)).json()["items"]
        assert {item["id"] for item in items} <= {own}
        assert len((await two.ask("GET", f"/deliberations{query}", two.acme)).json()["items"]) >= 1
    stats = (await two.ask("GET", "/stats", two.rival)).json()
    assert (stats["total"], stats["active"], stats["completed"]) == (1, 1, 0)
    assert stats["tokens"]["prompt_tokens"] == 0
    assert (await two.ask("GET", "/stats", two.acme)).json()["total"] == 2


async def test_an_idempotency_key_is_scoped_to_its_tenant(two: Two) -> None:
    first = await accepted(two.gateway, two.acme, {"Idempotency-Key": "order-1"})
    second = await accepted(two.gateway, two.rival, {"Idempotency-Key": "order-1"})
    assert first == deliberation_id("acme", "order-1", NOW) != second == deliberation_id("rival", "order-1", NOW)
    other = await two.gateway.client.post(
        "/deliberations", json={"task": "Another."}, headers=bearer(two.rival, Idempotency_Key="order-1")
    )
    assert other.status_code == 409, "a conflict is with one's own"
    assert (await two.ask("GET", f"/deliberations/{first}", two.rival)).status_code == 404
    assert (await two.ask("GET", f"/deliberations/{second}", two.acme)).status_code == 404


async def test_a_long_poll_for_a_foreign_deliberation_does_not_wait(two: Two) -> None:
    async with asyncio.timeout(2):
        for path in (f"/deliberations/{two.running}", f"/deliberations/{UNKNOWN}"):
            assert (await two.ask("GET", path, two.rival, Prefer="wait=60")).status_code == 404
            assert (await two.ask("POST", f"{path}/cancel", two.rival, Prefer="wait=60")).status_code == 404


async def test_the_openai_facade_shows_only_the_callers_tenant(two: Two) -> None:
    body = {"model": "single/DEV", "messages": [{"role": "user", "content": "Name a colour."}]}
    asking = asyncio.create_task(
        two.gateway.client.post("/v1/chat/completions", json=body, headers=bearer(two.rival, Idempotency_Key="k"))
    )
    own = deliberation_id("rival", "k", NOW)
    await until(lambda: any(own in record.subject for record in two.gateway.journal.records))
    await play(two.gateway, "rival", own)
    answered = await asking
    assert answered.status_code == 200
    assert answered.headers["x-deliberation-id"] == own
    assert (await two.ask("GET", answered.headers["location"], two.acme)).status_code == 404


async def test_every_subject_contains_the_callers_tenant(two: Two) -> None:
    await accepted(two.gateway, two.rival, task="What of X-Tenant?", metadata={"tenant": "acme"})
    headers = bearer(two.rival) | {"X-Tenant": "acme", "X-Tenant-Id": "acme", "Tenant": "acme"}
    response = await two.gateway.client.post("/deliberations", json={"task": "t"}, headers=headers)
    assert response.status_code == 202
    refused = await two.gateway.client.post(
        "/deliberations", json={"task": "t", "tenant": "acme"}, headers=bearer(two.rival)
    )
    assert refused.status_code == 422
    subjects = [record.tokens for record in two.gateway.journal.records if record.tokens[0] == "deliberations"]
    assert Counter(tokens[1] for tokens in subjects if tokens[-1] == "accepted") == {"acme": 2, "rival": 2}
    await two.gateway.copied()
    assert json.loads((await two.ask("GET", "/stats", two.acme)).text)["total"] == 2
