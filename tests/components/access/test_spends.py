import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.main import main
from tests.components.access.keyed import PEPPER, accepted, bearer, make_key, play
from tests.components.admission.spends import spend
from tests.components.routes.served import AGENT, ANSWERING, Served, served
from tests.fakes import InMemoryJournal

PRICES = {"currency": "USD", "prompt": 1, "completion": 1}
ROLES: dict[str, Any] = {
    "engines": {"e": {"url": "http://e", "prices": PRICES}},
    "roles": {name: {"persona": "p", "engines": ["e"]} for name in ("DEV", "QA")},
}
CHAT = {"model": "council/DEV", "messages": [{"role": "user", "content": "Name a colour."}]}
PLAN = {
    "story_id": "s", "plan_id": "p", "approved_by": "po", "timestamp": "2026-01-01T00:00:00Z", "roles": ["DEV"]
}  # fmt: skip
# The clock of the gateways stands at midnight.
DAY_S = 86_400


@pytest.fixture
def roles_file(tmp_path: Path) -> Path:
    file = tmp_path / "roles.yaml"
    file.write_text(yaml.safe_dump(ROLES))
    return file


def new_journal() -> InMemoryJournal:
    return InMemoryJournal(replies={**ANSWERING, "control.role.QA": [{**AGENT, "role": "QA"}]})


@asynccontextmanager
async def bounded(roles_file: Path, journal: InMemoryJournal, **settings: Any) -> AsyncGenerator[Served]:
    given = {"spend_per_day": "5", "spends_per_day": "globex=20", "key_pepper": PEPPER, **settings}
    async with served(journal=journal, roles_file=roles_file, **given) as gateway:
        yield gateway


async def post(gateway: Served, key: str, **body: Any) -> httpx.Response:
    return await gateway.client.post("/deliberations", json={"task": "Name a colour.", **body}, headers=bearer(key))


async def test_all_ways_in_refuse_until_midnight_and_other_tenants_go_on(roles_file: Path) -> None:
    journal = new_journal()
    acme, globex = await make_key(journal, "acme"), await make_key(journal, "globex")
    async with bounded(roles_file, journal) as gateway:
        running = [("acme", await accepted(gateway, acme, {"Idempotency-Key": "k"}))]
        await spend(journal, "d1", "4.999999")
        running.append(("acme", await accepted(gateway, acme)))
        await spend(journal, "d2", "0.020001")
        await spend(journal, "d3", "6", tenant="globex")

        refused = await post(gateway, acme)
        plan = await gateway.client.post("/plans", json=PLAN, headers=bearer(acme))
        chat = await gateway.client.post("/v1/chat/completions", json=CHAT, headers=bearer(acme))
        running.append(("globex", await accepted(gateway, globex)))
        assert await accepted(gateway, acme, {"Idempotency-Key": "k"}), "a replay spends nothing"
        for tenant, id in running:
            await play(gateway, tenant, id)
        gateway.clock.advance(DAY_S)
        await accepted(gateway, acme)

    for answer in (refused, plan):
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (
            429, "spend_exhausted", "86400",
        ), answer.text  # fmt: skip
        assert answer.json()["detail"] == "This tenant has spent 5.02 USD of 5 USD today in UTC."
        (fault,) = answer.json()["errors"]
        assert "after 2026-01-02T00:00Z" in fault["remedy"] and "SPEND_PER_DAY" in fault["remedy"]
    error = chat.json()["error"]
    assert (chat.status_code, error["code"], error["type"]) == (429, "insufficient_quota", "rate_limit_error")
    assert chat.headers["x-should-retry"] == "false" and "5.02 USD of 5 USD" in error["message"]


async def test_what_runs_counts_with_its_ceiling(roles_file: Path) -> None:
    journal = new_journal()
    key = await make_key(journal, "acme")
    async with bounded(roles_file, journal) as gateway, bounded(roles_file, journal) as other:
        running = await accepted(gateway, key, budget={"max_cost": 3})
        dearer = await post(other, key, budget={"max_cost": 2.000001})
        await accepted(other, key)
        await accepted(other, key, budget={"max_cost": 2})
        full = await post(gateway, key)
        await spend(journal, running, "0.5")
        await play(gateway, "acme", running)
        await accepted(gateway, key)

    assert (dearer.status_code, dearer.headers["retry-after"]) == (429, "30")
    (fault,) = dearer.json()["errors"]
    assert fault["pointer"] == "/budget/max_cost" and "a max_cost of at most 2 USD" in fault["remedy"]
    assert full.json()["detail"] == "This tenant has spent 0 USD of 5 USD today in UTC, and what runs may cost 5 USD."


async def test_requests_at_once_share_what_is_left(roles_file: Path) -> None:
    journal = new_journal()
    key = await make_key(journal, "acme")
    async with bounded(roles_file, journal) as gateway:
        answers = await asyncio.gather(*(post(gateway, key, budget={"max_cost": 1}) for _ in range(20)))

    assert sorted(answer.status_code for answer in answers) == [202] * 5 + [429] * 15


async def test_the_spend_is_shown_to_the_tenant_and_to_operators(roles_file: Path) -> None:
    journal = new_journal()
    key, rival = await make_key(journal, "acme"), await make_key(journal, "globex")
    await spend(journal, "d1", "1.25")
    async with bounded(roles_file, journal, lists=True) as gateway:
        await accepted(gateway, key, budget={"max_cost": 2})
        assert "spends" in (await gateway.client.get("/readyz")).json()["checks"]
        shown = (await gateway.client.get("/stats", headers=bearer(key))).json()["spend"]
        others = (await gateway.client.get("/stats", headers=bearer(rival))).json()["spend"]
        metrics = (await gateway.client.get("/metrics", headers=bearer(key))).text

    resets = {"currency": "USD", "resets_at": "2026-01-02T00:00:00Z"}
    assert shown == {"spent": 1.25, "reserved": 2.0, "limit": 5.0, **resets}
    assert others == {"spent": 0.0, "reserved": 0.0, "limit": 20.0, **resets}
    assert 'tenant_spend{currency="USD",tenant="acme"} 1.25' in metrics
    assert 'tenant_spend_limit{currency="USD",tenant="acme"} 5.0' in metrics


async def test_a_refusal_asks_no_context_service(roles_file: Path) -> None:
    journal, asked = new_journal(), list[bytes]()

    def answer(question: bytes) -> bytes:
        asked.append(question)
        return b'{"context_text": "known"}'

    journal.services["context.get"] = answer
    key = await make_key(journal, "acme")
    await spend(journal, "d1", "5")
    async with bounded(roles_file, journal, context=True) as gateway:
        refused = await post(gateway, key, metadata={"story_id": "s"})

    assert refused.status_code == 429 and asked == []


async def test_one_tenant_alone_may_have_a_limit(roles_file: Path) -> None:
    async with served(roles_file=roles_file, spends_per_day="default=0") as gateway:
        assert (await gateway.post({"task": "t"})).json()["detail"] == (
            "This tenant has spent 0 USD of 0 USD today in UTC."
        )


def test_a_limit_without_prices_ends_the_start_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPEND_PER_DAY", "5")

    with pytest.raises(SystemExit) as ended:
        main()

    printed = capsys.readouterr().err
    assert ended.value.code == 2 and printed.count("\n") == 1
    assert "SPEND_PER_DAY: role" in printed and "Declare `prices`" in printed
