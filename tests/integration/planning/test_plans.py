"""Approved plans start one deliberation per role, once, whatever is killed and whatever else is announced."""

import asyncio
import json
import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from app.admission.spends import spend_subject
from app.archive.database.migrate import migrate
from app.deliberation.facts import Completed, TotalUsage
from app.log.journal import JetStreamJournal
from app.planning.plans import role_deliberation_id
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.planning.conftest import (
    TRANSITIONED,
    acceptances,
    announce,
    gateway_process,
    moved,
    plan_event,
    rejections,
    taking,
    until_taken,
)

FOUR = ["ARCHITECT", "DEV", "QA", "DEVOPS"]
# `PLANS=200 pytest tests/integration/planning -k kills` plays the full number.
PLANS, KILLS, GATEWAYS = int(os.environ.get("PLANS", "20")), 10, 3


async def test_a_plan_starts_one_deliberation_per_role_with_its_metadata(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    asked = plan_event(roles=["qa", "DEV", "QA"], complexity="Complex", type="feature", sprint=7, labels=["a", "b"])
    async with taking(own_nats_server.url) as consumer:
        await announce(journal, asked)
        await until_taken(journal)

    found = await acceptances(journal)
    assert [fact.deliberation_id for fact in found] == [
        role_deliberation_id("default", "plan-001", role) for role in ("QA", "DEV")
    ]
    assert [{agent.role for agent in fact.specification.agents} for fact in found] == [{"QA"}, {"DEV"}]
    for fact in found:
        assert fact.specification.task == "A login\n\nUsers log in by a link that is sent to them."
        assert fact.specification.metadata == {
            "story_id": "story-1",
            "plan_id": "plan-001",
            "approved_by": "po@example.com",
            "approved_at": "2026-01-01T00:00:00Z",
            "plan_roles": "QA,DEV",
            "type": "feature",
            "complexity": "complex",
            "sprint": "7",
            "labels": '["a","b"]',
        }
    assert consumer.counts == {"started": 1}


@pytest.mark.parametrize(
    ("complexity", "roles"), [(None, ["DEV", "QA"]), ("basic", ["DEV", "QA"]), ("medium", ["DATA"]), ("complex", FOUR)]
)
async def test_the_complexity_chooses_the_roles_of_a_plan_without_roles(
    journal: JetStreamJournal, own_nats_server: NatsServer, complexity: str | None, roles: list[str]
) -> None:
    async with taking(own_nats_server.url, plan_roles_medium="DATA"):
        await announce(journal, plan_event(roles=None, complexity=complexity, title=None, description=None))
        await until_taken(journal)

    found = await acceptances(journal)
    assert [fact.specification.agents[0].role for fact in found] == roles
    assert "plan-001 of story story-1" in found[0].specification.task


async def test_redeliveries_and_kills_start_nothing_twice(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    """Each plan of four roles is announced three times to several gateways, of which ten are killed."""
    deliveries, chance = [plan_event(number, roles=FOUR) for number in range(PLANS)] * 3, random.Random(3)
    chance.shuffle(deliveries)
    start = partial(gateway_process, own_nats_server.url, QUEUE_DEPTH_MAX="10000")
    gateways = [await start() for _ in range(GATEWAYS)]
    kills = 0
    try:
        share = -(-len(deliveries) // KILLS)
        for begin in range(0, len(deliveries), share):
            before = len(await acceptances(journal))
            for event in deliveries[begin : begin + share]:
                await announce(journal, event)
            async with asyncio.timeout(60):
                while len(await acceptances(journal)) <= before and len(await acceptances(journal)) < 4 * PLANS:
                    await asyncio.sleep(0.005)
            place = chance.randrange(GATEWAYS)
            gateways[place].kill()
            await gateways[place].wait()
            kills += 1
            gateways[place] = await start()
        await until_taken(journal, 180)
    finally:
        for process in gateways:
            process.kill()
            await process.wait()

    counts = Counter(fact.deliberation_id for fact in await acceptances(journal))
    wanted = {role_deliberation_id("default", f"plan-{number:03d}", role) for number in range(PLANS) for role in FOUR}
    assert kills == KILLS and counts == dict.fromkeys(wanted, 1)


async def test_a_full_queue_delays_a_plan_and_drops_none(
    journal: JetStreamJournal, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.admission.backlog.RETRY_AFTER_MAX_S", 1.0)
    async with taking(own_nats_server.url, queue_depth_max=3) as consumer:
        await announce(journal, plan_event(1))
        await announce(journal, plan_event(2))
        await until(lambda: consumer.counts["delayed"] > 0)
        assert len(await acceptances(journal)) == 3
        for fact in await acceptances(journal):
            end = Completed(deliberation_id=fact.deliberation_id, ts=fact.ts, usage=TotalUsage(), verdict=None)
            await journal.append("default", end)
        await until_taken(journal)

    assert len(await acceptances(journal)) == 4 and consumer.counts["started"] == 2


async def test_a_tenant_that_may_spend_no_more_delays_a_plan_and_drops_none(
    journal: JetStreamJournal, own_nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.planning.consumer.DELAY_MAX_S", 1)
    file = tmp_path / "roles.yaml"
    prices = "{currency: USD, prompt: 1, completion: 1}"
    roles = "".join(f"  {name}: {{persona: p, engines: [e]}}\n" for name in ("DEV", "QA"))
    file.write_text(f"engines:\n  e: {{url: http://e, prices: {prices}}}\nroles:\n{roles}")
    for day in (0, 1):
        subject = spend_subject((datetime.now(UTC) + timedelta(days=day)).date(), "default", "d1")
        await journal.write(subject, b'{"amount": 1, "currency": "USD"}')

    async with taking(own_nats_server.url, roles_file=file, spend_per_day=Decimal(1)) as consumer:
        await announce(journal, plan_event(1))
        await until(lambda: consumer.counts["delayed"] > 1)
        assert await acceptances(journal) == []
    async with taking(own_nats_server.url, roles_file=file, spend_per_day=Decimal(2)) as consumer:
        await until_taken(journal)

    assert len(await acceptances(journal)) == 2 and consumer.counts["started"] == 1


async def test_an_archive_that_does_not_answer_delays_a_plan_and_drops_none(
    journal: JetStreamJournal, own_nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.planning.consumer.ARCHIVE_RETRY_S", 0.2)
    url = f"sqlite:///{tmp_path}/archive.db"
    async with taking(own_nats_server.url, database_url=url) as consumer:
        await announce(journal, plan_event(1))
        await until(lambda: consumer.counts["delayed"] > 1)
        assert await acceptances(journal) == []
        await migrate(url)
        await until_taken(journal)

    assert len(await acceptances(journal)) == 2 and consumer.counts["started"] == 1


async def test_what_cannot_be_taken_is_rejected_by_name_and_the_next_plan_starts(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    async with taking(own_nats_server.url, planning_tenants="default,acme") as consumer:
        sequences = [
            await announce(journal, plan_event(plan_id=None)),
            await announce(journal, plan_event(roles=["DEV", "WIZARD"])),
            await announce(journal, plan_event(description="x" * 1_000_000)),
            await announce(journal, b"\xff no JSON"),
            await announce(journal, plan_event(tenant="rival")),
            await announce(journal, plan_event(timestamp="yesterday")),
            await announce(journal, plan_event(sprint="x" * 600)),
            await announce(journal, {"story_id": "s"}, TRANSITIONED),
            await announce(journal, b""),
            await announce(journal, b"[" * 100_000),
            await announce(journal, [plan_event()]),
            await announce(journal, json.dumps(plan_event()).encode()[:-1] + b', "plan_id": "again"}'),
            await announce(journal, plan_event(plan_id="a b")),
            await announce(journal, plan_event(roles=["DEV"] * 16)),
            await announce(journal, plan_event(title=" ")),
            await announce(journal, plan_event(plan_id="a\ud800", story_id="\udfff" * 600)),
        ]
        await announce(journal, plan_event(9, tenant="acme"))
        await until_taken(journal)
        found = await rejections(journal, sequences)

    def named(place: int) -> list[tuple[str, str]]:
        return [(fault["pointer"], fault["code"]) for fault in found[place]["problem"]["errors"]]

    assert named(0) == [("/plan_id", "missing")]
    assert named(1) == [("/roles/1", "unknown_role")]
    assert found[2]["problem"]["code"] == "body_too_large" and len(found[2]["received"]) == 4_096
    assert (found[2]["plan_id"], found[2]["story_id"]) == (None, None), "what is too large is not parsed"
    assert found[3]["problem"]["code"] == "invalid_json" and found[3]["plan_id"] is None
    assert named(4) == [("/tenant", "foreign_tenant")] and found[4]["plan_id"] == "plan-001"
    assert named(5) == [("/timestamp", "not_iso_8601")]
    assert named(6) == [("/sprint", "string_too_long")]
    assert ("/to_phase", "missing") in named(7)
    assert ("/plan_id", "missing") in named(8) and found[8]["received"] == ""
    assert found[9]["problem"]["code"] == "invalid_json" and len(found[9]["received"]) == 4_096
    assert named(10) == [("", "model_type")] and found[10]["story_id"] is None
    assert found[11]["problem"]["code"] == "invalid_json" and "repeats a key" in found[11]["problem"]["detail"]
    assert named(12) == [("/plan_id", "string_pattern_mismatch")]
    assert named(13) == [("/roles", "too_long")]
    assert named(14) == [("/title", "blank")]
    assert found[15]["problem"]["code"] == "invalid_json"
    assert (found[15]["plan_id"], found[15]["story_id"]) == ("a?", "?" * 512)
    assert all(fault["remedy"] for rejected in found for fault in rejected["problem"]["errors"])
    assert len(await acceptances(journal)) == 2 and consumer.counts == {"rejected": len(sequences), "started": 1}
    assert [record.tokens[1] async for record in journal.read("deliberations.*.*.accepted", 0)] == ["acme"] * 2


async def test_another_plan_under_a_known_id_is_rejected(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    async with taking(own_nats_server.url) as consumer:
        await announce(journal, plan_event())
        await announce(journal, plan_event(approved_by="another", timestamp="2026-01-02T00:00:00Z"))
        sequences = [
            await announce(journal, plan_event(description="Users log in by a passkey.")),
            await announce(journal, plan_event(roles=["ARCHITECT", "DEV", "QA"])),
            await announce(journal, plan_event(roles=["ARCHITECT"], title="Another")),
        ]
        found = await rejections(journal, sequences)

    assert [rejected["problem"]["code"] for rejected in found] == ["plan_conflict"] * 3
    assert consumer.counts == {"started": 1, "repeated": 1, "rejected": 3} and len(await acceptances(journal)) == 2


async def test_later_deliberations_of_a_story_carry_its_last_transition(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    tested = moved(from_phase="BUILD", to_phase="TEST", timestamp="2026-01-03T00:00:00Z")
    async with taking(own_nats_server.url):
        await announce(journal, plan_event(1, roles=["DEV"]))
        await announce(journal, moved(), TRANSITIONED)
        await announce(journal, plan_event(2, roles=["DEV"]))
        await announce(journal, tested, TRANSITIONED)
        await announce(journal, plan_event(3, roles=["DEV"]))
        await announce(journal, plan_event(4, roles=["DEV"], story_id="story-2"))
        await announce(journal, plan_event(2, roles=["DEV"]))
        await until_taken(journal)

    told = [fact.specification.metadata for fact in await acceptances(journal)]
    assert [each.get("to_phase") for each in told] == [None, "BUILD", "TEST", None]
    assert (told[2]["from_phase"], told[2]["transitioned_at"]) == ("BUILD", "2026-01-03T00:00:00Z")


async def test_records_are_signed_and_unsigned_events_are_taken(
    journal: JetStreamJournal, own_nats_server: NatsServer, tmp_path: Path
) -> None:
    key = tmp_path / "log_key"
    key.write_text("k" * 32)
    async with taking(own_nats_server.url, log_key_file=key) as consumer:
        await announce(journal, moved(), TRANSITIONED)
        await announce(journal, plan_event(roles=["DEV"]))
        await until_taken(journal)

    (fact,) = await acceptances(journal)
    assert fact.specification.metadata["to_phase"] == "BUILD" and consumer.counts["started"] == 1
    query = f'{{"last_by_subj":"deliberations.default.{fact.deliberation_id}.accepted"}}'.encode()
    stored = await journal.request("$JS.API.STREAM.MSG.GET.DELIBERATIONS", query)
    assert "hdrs" in stored["message"]
