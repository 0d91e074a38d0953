from datetime import timedelta
from typing import Any

import pytest

from tests.components.access.keyed import PEPPER, accepted, bearer, make_key
from tests.components.routes.served import COORDINATOR, Served, served
from tests.fakes import InMemoryJournal

GATEWAY = {"lists": True}


async def stats(gateway: Served, **query: str) -> dict[str, Any]:
    response = await gateway.client.get("/stats", params=query)
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store"), response.text
    return response.json()


async def test_by_default_the_last_thirty_days_from_the_beginning_of_a_day(gateway: Served) -> None:
    await gateway.play(await gateway.accepted())
    await gateway.copied()
    gateway.clock.advance(timedelta(days=30, hours=23).total_seconds())

    found = await stats(gateway)
    gateway.clock.advance(timedelta(hours=1).total_seconds())

    assert (found["from"], found["to"], found["by"]) == ("2026-01-01T00:00:00Z", "2026-01-31T23:00:00Z", None)
    assert (found["completed"], found["groups"]) == (1, [])
    assert (await stats(gateway))["total"] == 0


async def test_what_runs_counts_in_the_groups_of_its_period(gateway: Served) -> None:
    await gateway.play(await gateway.accepted(strategy="independent"))
    await gateway.accepted(agents=[{"role": "DEV"}, {"role": "QA", "count": 2}])
    await gateway.copied()
    gateway.clock.advance(60)
    await gateway.accepted()

    groups = {
        by: [(each["name"], each["active"], each["completed"]) for each in (await stats(gateway, by=by))["groups"]]
        for by in ("role", "strategy", "day", "tenant", "model")
    }
    earlier = await stats(gateway, to="2026-01-01T00:01:00Z")

    assert groups["role"] == [("DEV", 2, 1), ("QA", 1, 0)]
    assert groups["strategy"] == [("council", 2, 0), ("independent", 0, 1)]
    assert groups["day"] == [("2026-01-01", 2, 1)] and groups["tenant"] == [("default", 2, 1)]
    assert [each[1:] for each in groups["model"]] == [(0, 1)]
    assert (earlier["total"], earlier["active"], earlier["completed"]) == (2, 1, 1)


async def test_a_deleted_deliberation_leaves_the_statistics_at_once(gateway: Served) -> None:
    kept, gone = await gateway.accepted(), await gateway.accepted()
    for id in (kept, gone):
        await gateway.play(id)
    await gateway.copied()
    before = await stats(gateway, by="role")

    await gateway.client.delete(f"/deliberations/{gone}")
    after = await stats(gateway, by="role")

    assert (before["completed"], after["completed"]) == (2, 1)
    tokens = [found["groups"][0]["tokens"]["prompt_tokens"] for found in (before, after)]
    decided = [found["groups"][0]["wins"]["decided"] for found in (before, after)]
    assert tokens[0] == 2 * tokens[1] > 0 and decided == [2, 1]


@pytest.mark.parametrize(
    ("query", "pointer", "remedy"),
    [
        ({"from": "yesterday"}, "from", "2026-01-01T00:00:00Z"),
        ({"to": "1767225600"}, "to", "2026-01-01T00:00:00Z"),
        ({"by": "week"}, "by", "'day', 'strategy'"),
        ({"until": "2026-01-01T00:00:00Z"}, "until", ""),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-02T00:00:00Z"}, "to", "a time after `from`"),
        ({"from": "9999-12-31T23:59:59-14:00"}, "from", "a past time"),
        ({"to": "0001-01-01T00:00:00+14:00"}, "to", "a time after `from`"),
    ],
)
async def test_a_wrong_value_is_refused_with_field_and_remedy(
    gateway: Served, query: dict[str, str], pointer: str, remedy: str
) -> None:
    response = await gateway.client.get("/stats", params=query)

    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert error["pointer"] == pointer and remedy in error["detail"] + error["remedy"]


async def test_only_an_administrator_sees_all_tenants() -> None:
    journal = InMemoryJournal(replies={"control.coordinator": [COORDINATOR]})
    acme, rival = await make_key(journal, "acme", ("read", "submit")), await make_key(journal, "rival")
    async with served(journal=journal, key_pepper=PEPPER, lists=True) as gateway:
        await accepted(gateway, acme)
        await accepted(gateway, rival)
        await accepted(gateway, rival)
        answers = {
            (key, by): await gateway.client.get("/stats", params={"by": by}, headers=bearer(key))
            for key in (acme, rival)
            for by in ("tenant", "role")
        }

    refused = answers[acme, "tenant"]
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
    assert "admin" in refused.json()["detail"] and "rival" not in answers[acme, "role"].text
    assert (answers[acme, "role"].json()["total"], answers[rival, "role"].json()["total"]) == (1, 2)
    groups = answers[rival, "tenant"].json()["groups"]
    assert [(each["name"], each["total"]) for each in groups] == [("acme", 1), ("rival", 2)]
