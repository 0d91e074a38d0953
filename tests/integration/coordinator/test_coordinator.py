import asyncio
from datetime import UTC, datetime

import pytest

from app.deliberation.calls import StageRequest
from app.deliberation.errors import DeliberationError
from app.deliberation.facts import (
    Completed,
    Deleted,
    End,
    Fact,
    Failed,
    Resumed,
    StageOpened,
)
from app.deliberation.ports import Appended
from app.log.journal import JetStreamJournal
from app.log.stream_settings import ACK_WAIT_S_MIN, PUBLICATIONS, StreamSettings
from app.log.streams import apply
from app.observability.process_counts import CoordinatorCounts
from serve_deployments.coordinator.coordinator import HEARTBEAT_S
from tests.conditions import until
from tests.conftest import NatsServer
from tests.integration.coordinator.coordinator_replicas import (
    Replica,
    Role,
    accepted,
    always,
    facts_of,
    until_done,
    waiting,
)
from tests.otlp import KeptSpans

POISON = "poison"


class Breaking(JetStreamJournal):
    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        if isinstance(fact, Failed):
            raise RuntimeError("broken")
        return await super().append(tenant, fact)


async def counts_of(journal: JetStreamJournal) -> CoordinatorCounts:
    (reply,) = await journal.inquire("control.coordinator", timeout_s=5)
    return CoordinatorCounts.model_validate(reply["counts"])


async def test_poisoned_work_fails_and_work_beside_it_completes(
    own_nats_server: NatsServer,
) -> None:
    journal = await JetStreamJournal.connect(own_nats_server.url)
    await apply(journal, StreamSettings(ack_wait_s=1, publications=PUBLICATIONS))
    innocents = ["innocent1", "innocent2", "innocent3"]
    deaths = 0

    async def answers(request: StageRequest) -> bool:
        # Until two coordinators have died no call is answered, so that all four deliberations are equally suspect. None
        # is answered before the poison has killed, when this coordinator holds that as well.
        facts = await facts_of(journal, POISON)
        beside = sum(isinstance(fact, Resumed) for fact in facts) >= deaths and not isinstance(facts[-1], End)
        return request.deliberation_id != POISON and deaths >= 2 and not beside

    role = Role(journal, answers)
    for deliberation_id in (innocents[0], POISON, *innocents[1:]):
        await journal.append("default", accepted(deliberation_id))
    begun: list[str] = []
    subscription = await journal.subscribe(
        [f"deliberations.default.{POISON}.>"], lambda record: begun.append(record.subject.rpartition(".")[2])
    )
    async with asyncio.timeout(60):
        while True:
            # Each dies as soon as it has begun the poison, the first by opening its stage. The fifth that takes it over
            # lives, and ends it.
            seen = len(begun)
            replica = await Replica.start(own_nats_server.url, role)
            await until(lambda seen=seen: len(begun) > seen, timeout_s=30)
            if "5" in begun:
                break
            if not deaths:
                await until(lambda: len(role.asked) == 4)
            await replica.die()
            deaths += 1
        await until(lambda: "end" in begun)
        for deliberation_id in innocents:
            while not isinstance((await facts_of(journal, deliberation_id))[-1], Completed):
                await asyncio.sleep(0.05)
    ended = await facts_of(journal, POISON)
    assert isinstance(ended[-1], Failed) and ended[-1].problem is not None
    assert ended[-1].problem.code == "poisoned" and deaths == 5
    assert [fact.takeover for fact in ended if isinstance(fact, Resumed)] == [1, 2, 3, 4, 5]
    # Every ended item is acknowledged a moment later.
    await until_done(journal, 10)
    counts = await counts_of(journal)
    assert counts.takeovers["loss"] >= 1 and counts.takeovers["stop"] == 0
    assert sum(found.seconds["failed"].sum_s > 0 for found in counts.strategies.values()) == 1
    await replica.die()
    await subscription.close()
    await journal.close()


async def test_waiting_work_records_no_takeover(own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.coordinator.admission_queue.LIMIT_AT_FIRST", 1)
    journal = await JetStreamJournal.connect(own_nats_server.url)
    await apply(journal, StreamSettings(ack_wait_s=1, publications=PUBLICATIONS))
    names = ["one", "two", "three", "four", "five", "six"]
    deaths = 0

    async def answers(_: StageRequest) -> bool:
        return deaths == 3

    async def takeovers(name: str) -> int:
        return sum(isinstance(fact, Resumed) for fact in await facts_of(journal, name))

    async def begun(name: str) -> bool:
        return any(isinstance(fact, StageOpened) for fact in await facts_of(journal, name))

    role = Role(journal, answers)
    for name in names:
        await journal.append("default", accepted(name))
    async with asyncio.timeout(30):
        for _ in range(3):
            asked = len(role.asked)
            replica = await Replica.start(own_nats_server.url, role)
            # It holds all six, but begins at most one more than before.
            await until(lambda asked=asked: len(role.asked) > asked, timeout_s=10)
            while await waiting(journal) != (0, 6):
                await asyncio.sleep(0.02)
            await replica.die()
            deaths += 1
        waited = [name for name in names if not await begun(name)]
        assert len(waited) >= 3
        assert [await takeovers(name) for name in waited] == [0] * len(waited)
        replica = await Replica.start(own_nats_server.url, role)
        for name in names:
            while not isinstance((await facts_of(journal, name))[-1], Completed):
                await asyncio.sleep(0.02)
    await replica.stop()
    await journal.close()


async def test_orderly_restarts_never_poison_work(journal: JetStreamJournal, own_nats_server: NatsServer) -> None:

    async def answers(_: StageRequest) -> bool:
        return len(role.asked) == 8

    role = Role(journal, answers)
    await journal.append("default", accepted("long"))
    async with asyncio.timeout(30):
        replica = await Replica.start(own_nats_server.url, role)
        for restarts in range(1, 8):
            await until(lambda restarts=restarts: len(role.asked) == restarts)
            await replica.stop()
            replica = await Replica.start(own_nats_server.url, role)
        while not isinstance((await facts_of(journal, "long"))[-1], Completed):
            await asyncio.sleep(0.02)
    given_back = [fact.given_back for fact in await facts_of(journal, "long") if isinstance(fact, Resumed)]
    assert given_back == [True, False] * 7
    assert (await counts_of(journal)).takeovers == {"loss": 0, "stop": 1}
    await replica.stop()


async def test_only_the_coordinator_whose_end_stands_counts_the_deliberation(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:

    async def answers(request: StageRequest) -> bool:
        if request.deliberation_id == "elsewhere":
            await journal.append("default", Completed(deliberation_id="elsewhere", ts=datetime.now(UTC)))
        return True

    role = Role(journal, answers)
    for deliberation_id in ("here", "elsewhere"):
        await journal.append("default", accepted(deliberation_id))
    replica = await Replica.start(own_nats_server.url, role)
    await until_done(journal)
    assert len(role.asked) == 2
    counts = await counts_of(journal)
    (ended,) = counts.strategies.values()
    assert {status: sum(found.counts) for status, found in ended.seconds.items()} == {
        "completed": 1,
        "failed": 0,
        "cancelled": 0,
        "timeout": 0,
    }
    assert sum(counts.waited["interactive"].counts) == sum(counts.stages["propose"].counts) == 1
    await replica.stop()


async def test_a_broken_coordinator_records_no_hand_over(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:
    """Any of its works may be the cause, so each takeover must count."""
    running = asyncio.Event()

    async def breaks(request: StageRequest) -> bool:
        if request.deliberation_id == "beside":
            running.set()
            await asyncio.Event().wait()
        await running.wait()
        raise DeliberationError("a failure that cannot be recorded")

    for deliberation_id in ("beside", "breaking"):
        await journal.append("default", accepted(deliberation_id))
    replica = await Replica.start(own_nats_server.url, Role(journal, breaks), Breaking)
    await asyncio.wait({replica.serving})
    assert isinstance(replica.serving.exception(), ExceptionGroup)
    for deliberation_id in ("beside", "breaking"):
        assert not any(isinstance(fact, Resumed) for fact in await facts_of(journal, deliberation_id))
    await replica.journal.close()


async def test_a_failure_of_deleted_work_ends_no_other_work(
    journal: JetStreamJournal, own_nats_server: NatsServer
) -> None:

    async def fails_once_deleted(request: StageRequest) -> bool:
        if request.deliberation_id == "deleted":
            await journal.append("default", Deleted(deliberation_id="deleted", ts=datetime.now(UTC)))
            raise DeliberationError("a failure of which nothing may be written")
        async with asyncio.timeout(10):
            while await waiting(journal) != (0, 1):
                await asyncio.sleep(0.02)
        return True

    for deliberation_id in ("beside", "deleted"):
        await journal.append("default", accepted(deliberation_id))
    replica = await Replica.start(own_nats_server.url, Role(journal, fails_once_deleted))
    async with asyncio.timeout(20):
        while not isinstance((await facts_of(journal, "beside"))[-1], Completed) and not replica.serving.done():
            await asyncio.sleep(0.02)
    assert not replica.serving.done()
    assert not any(isinstance(fact, Resumed) for fact in await facts_of(journal, "beside"))
    assert not await journal.last(["deliberations.default.deleted.end"])
    await replica.stop()


def test_ack_wait_lasts_at_least_three_heartbeats() -> None:
    assert ACK_WAIT_S_MIN >= 3 * HEARTBEAT_S


async def test_a_coordinator_that_dies_before_its_spans_are_sent_leaves_them_to_its_successor(
    own_nats_server: NatsServer,
) -> None:
    journal = await JetStreamJournal.connect(own_nats_server.url)
    await apply(journal, StreamSettings(ack_wait_s=1, publications=PUBLICATIONS))
    held, sent = KeptSpans(flushes=asyncio.Event()), KeptSpans()
    role = Role(journal, always)
    await journal.append("default", accepted("d1"))
    first = await Replica.start(own_nats_server.url, role, tracer=held)
    await until(lambda: bool(held.spans), 30)
    await first.die()
    second = await Replica.start(own_nats_server.url, role, tracer=sent)
    await until_done(journal)
    await second.stop()
    facts = await facts_of(journal, "d1")
    assert isinstance(facts[-1], Completed) and role.asked == ["d1"]
    assert sent.spans == held.spans
    assert [span.name.partition(" ")[0] for span in sent.spans] == ["invoke_workflow", "propose", "invoke_agent"]
    await journal.close()
