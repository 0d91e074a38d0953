"""Work that another version accepted: it waits for a coordinator that can read and decide it, to its deadline."""

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from app.deliberation.facts import (
    Accepted,
    Cancelled,
    CancelRequested,
    Completed,
    Fact,
    Failed,
    Resumed,
    decode,
    encode,
)
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.coordinator.coordinator_replicas import Replica, Role, accepted, always, facts_of, until_done

NEXT = STRATEGIES["single"].version + 1


@pytest.fixture
async def coordinator(
    journal: JetStreamJournal, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Replica]:
    monkeypatch.setattr("serve_deployments.coordinator.coordinator.REQUEUE_DELAY_S", 0.1)
    replica = await Replica.start(own_nats_server.url, Role(journal, always))
    yield replica
    await replica.stop()


def of_next(deliberation_id: str, timeout_s: int = 120, strategy: str = "single") -> Accepted:
    fact = accepted(deliberation_id, timeout_s)
    update = {"strategy": strategy, "strategy_version": NEXT}
    return fact.model_copy(update={"specification": fact.specification.model_copy(update=update)})


def changed(fact: Accepted, fields: dict[str, Any]) -> bytes:
    document = json.loads(encode(fact))
    specification = document["specification"] | fields.pop("specification", {})
    return json.dumps(document | fields | {"specification": specification}, separators=(",", ":")).encode()


async def end_of(journal: JetStreamJournal, deliberation_id: str) -> Fact:
    (end,) = await journal.last([f"deliberations.default.{deliberation_id}.end"])
    return cast("Fact", decode(end.data))


@pytest.mark.parametrize("strategy", ["single", "foretold"])
async def test_a_strategy_of_another_version_waits_for_a_coordinator_that_has_it(
    journal: JetStreamJournal, coordinator: Replica, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    with capture_logs() as logged:
        await journal.append("default", of_next("later", strategy=strategy))
        await until(lambda: len([each for each in logged if each["event"] == "deliberation_requeued"]) >= 2)
        before = await facts_of(journal, "later")
        known = {strategy: replace(STRATEGIES["single"], name=strategy, version=NEXT)}
        monkeypatch.setattr("serve_deployments.coordinator.coordinator.STRATEGIES", known)
        await until_done(journal)
    assert len(before) == 1, "nothing is recorded by a coordinator that cannot decide it"
    facts = await facts_of(journal, "later")
    assert isinstance(facts[-1], Completed) and facts[-1].verdict is not None
    assert [fact.takeover for fact in facts if isinstance(fact, Resumed)] == [1]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: encode(of_next("d", 1)), "strategy_drift"),
        (lambda: changed(accepted("d", 1), {"specification": {"priority": "idle"}}), "unexpected_fact"),
    ],
)
async def test_work_that_no_coordinator_can_take_fails_at_its_deadline(
    journal: JetStreamJournal, coordinator: Replica, made: Callable[[], bytes], code: str
) -> None:
    data = made()
    await journal.write("deliberations.default.d.accepted", data)
    await until_done(journal)
    end = await end_of(journal, "d")
    assert isinstance(end, Failed) and end.problem is not None and end.problem.code == code
    deadline_at = datetime.fromisoformat(json.loads(data)["deadline_at"])
    assert end.ts >= deadline_at


async def test_work_that_waits_for_another_version_can_be_cancelled(
    journal: JetStreamJournal, coordinator: Replica
) -> None:
    with capture_logs() as logged:
        await journal.append("default", of_next("d"))
        await until(lambda: any(each["event"] == "deliberation_requeued" for each in logged))
        await journal.append("default", CancelRequested(deliberation_id="d", ts=datetime.now(UTC)))
        await until_done(journal)
    assert isinstance(await end_of(journal, "d"), Cancelled)


async def test_types_and_fields_that_a_later_version_added_are_skipped(
    journal: JetStreamJournal, coordinator: Replica, own_nats_server: NatsServer
) -> None:
    noted = {"type": "deliberation.noted", "deliberation_id": "d", "ts": "2026-01-01T00:00:00Z", "note": "later"}
    await coordinator.stop()
    later = changed(accepted("d"), {"mood": "calm", "specification": {"mood": "calm"}})
    await journal.write("deliberations.default.d.accepted", later)
    await journal.write("deliberations.default.d.noted", json.dumps(noted, separators=(",", ":")).encode())
    successor = await Replica.start(own_nats_server.url, Role(journal, always))
    await until_done(journal)
    await successor.stop()
    assert isinstance(await end_of(journal, "d"), Completed)
