"""The price of a request is answered before it runs, and nothing of it is written."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import client
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.routes.served import Served, served
from tests.fakes import InMemoryJournal

ROLES = """
engines:
  paid: {url: http://gpu, prices: {currency: EUR, prompt: 1, completion: 4}}
roles:
  DEV: {persona: You develop., engines: [paid]}
"""
BODY: dict[str, Any] = {"task": "Name a colour.", "num_agents": 3, "seed": 7}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Served]:
    (tmp_path / "roles.yaml").write_text(ROLES)
    async with served(lists=True, lagging=True, roles_file=tmp_path / "roles.yaml") as serving:
        yield serving


async def quoted(gateway: Served, **changes: object) -> httpx.Response:
    return await gateway.client.post("/deliberations/quote", json={**BODY, **changes})


async def test_a_quote_has_calls_tokens_and_cost_by_stage_and_writes_nothing(gateway: Served) -> None:
    before = list(gateway.journal.records)
    response = await quoted(gateway)
    assert response.status_code == 200, response.text
    found = response.json()
    assert [(stage["purpose"], stage["at_most"]["calls"]) for stage in found["stages"]] == [
        ("propose", 3), ("critique", 3), ("revise", 3), ("score", 3),
    ]  # fmt: skip
    for figures in ("at_most", "expected"):
        for name in ("calls", "prompt_tokens", "completion_tokens"):
            assert found[figures][name] == sum(stage[figures][name] for stage in found["stages"]) > 0
        assert found[figures]["cost"]["currency"] == "EUR"
    assert 0 < found["expected"]["cost"]["amount"] < found["at_most"]["cost"]["amount"]
    assert found["budget"] is None and found["history"] == {"deliberations": 0, "calls": 0, "by_role": {}}
    assert gateway.journal.records == before and not gateway.gateway["deliberations"].outcomes


async def test_the_means_of_the_archive_are_expected(gateway: Served) -> None:
    """A council that the stand-in plays makes all of its twelve calls."""
    assumed = (await quoted(gateway)).json()["expected"]
    for _ in range(2):
        await gateway.play(await gateway.accepted(**BODY))
    await gateway.copied()
    found = (await quoted(gateway)).json()
    by_role = found["history"]["by_role"]
    assert (found["history"]["deliberations"], found["history"]["calls"], by_role["DEV"]["calls"]) == (2, 24, 24)
    assert found["expected"]["calls"] == found["at_most"]["calls"] == 12 > assumed["calls"]
    assert found["expected"]["completion_tokens"] == by_role["DEV"]["completion_tokens"] // 2
    other = (await quoted(gateway, num_agents=4)).json()["history"]
    assert other == {"deliberations": 0, "calls": 0, "by_role": by_role}


@pytest.mark.parametrize(
    ("budget", "covers", "told"),
    [
        ({"max_calls": 12}, "at_most", None),
        ({"max_calls": 11}, "expected", "budget.max_calls is 11"),
        ({"max_calls": 4}, "first_stage", "budget.max_calls is 4"),
        ({"max_tokens": 1_000}, "nothing", "the first stage needs 3 calls"),
        ({"max_cost": 0.000001}, "nothing", "budget.max_cost is"),
    ],
)
async def test_a_quote_says_how_far_the_budget_goes(
    gateway: Served, budget: dict[str, float], covers: str, told: str | None
) -> None:
    outlook = (await quoted(gateway, budget=budget)).json()["budget"]
    assert outlook["covers"] == covers
    assert (told is None and outlook["detail"] is None) or told in outlook["detail"]


@pytest.mark.parametrize(
    "fault", [{"rounds": 6}, {"role": "NOBODY"}, {"follows": ["d-none"]}, {"parameters": {"x": 1}}]
)
async def test_a_quote_refuses_what_an_acceptance_refuses(gateway: Served, fault: dict[str, Any]) -> None:
    refused, other = await quoted(gateway, **fault), await gateway.post({**BODY, **fault})
    assert refused.status_code == other.status_code == 422
    assert refused.json()["errors"] == other.json()["errors"]


async def test_the_client_has_the_quote_and_its_refusal(gateway: Served) -> None:
    found = await client.quote(gateway.client, BODY)
    assert found.at_most.calls == 12 and found.strategy == "council"
    with pytest.raises(httpx.HTTPStatusError):
        await client.quote(gateway.client, {})


async def test_a_key_that_may_not_read_gets_no_history() -> None:
    journal = InMemoryJournal()
    key = await make_key(journal, "acme", ("submit",))
    async with served(journal=journal, key_pepper=PEPPER, lists=True) as gateway:
        response = await gateway.client.post("/deliberations/quote", json=BODY, headers=bearer(key))
        assert response.status_code == 200 and response.json()["history"] is None
        assert "ratelimit" in response.headers


async def test_quotes_of_one_tenant_keep_no_other_tenant_waiting() -> None:
    journal = InMemoryJournal()
    busy, other = await make_key(journal, "busy"), await make_key(journal, "other")
    async with served(journal=journal, key_pepper=PEPPER, lists=True) as gateway:

        def price(key: str) -> asyncio.Task[httpx.Response]:
            return asyncio.ensure_future(
                gateway.client.post(
                    "/deliberations/quote", json={**BODY, "num_agents": 12, "rounds": 3}, headers=bearer(key)
                )
            )

        many = [price(busy) for _ in range(12)]
        await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        assert (await price(other)).status_code == 200
        assert sum(task.done() for task in many) < len(many) / 2
        assert {answer.status_code for answer in await asyncio.gather(*many)} == {200}
