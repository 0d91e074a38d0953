"""Statistics count each ended deliberation once, whatever is written again, deleted or expired, on both databases."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import BigInteger, func, literal, select

from app.api.schemas import Stats, StatsGroup
from app.archive.database.measures import WIDTHS_US, duration_class
from app.archive.database.rows import Written
from app.archive.database.statistics import StatsFilter
from app.archive.database.store import Store
from app.archive.database.tables import AMOUNTS, ROLLUP_KEY, measures, rollups
from app.catalog.entries import BENCH
from app.deliberation.calls import Usage, UsageCost
from app.deliberation.facts import Degraded, StrategyRef, Verdict
from app.deliberation.fold import state_of
from app.deliberation.quote import QuoteHistory, RoleHistory
from app.deliberation.specification import AgentSpec
from tests.integration.archive.archived_stories import EPOCH, records_of, written
from tests.integration.archive.conftest import opened
from tests.story import NOW, Story

DAY = timedelta(days=1)
AS_OF = NOW + 3 * DAY


def ended(
    id: str,
    *,
    tenant: str = "acme",
    at: datetime = NOW,
    took_s: float = 2.0,
    winner: str | None = "dev-001",
    model: str = "m-1",
    first: int = 1,
    degraded: bool = False,
    costs: tuple[str | None, str | None] = (None, None),
    metadata: dict[str, str] | None = None,
) -> Written:
    """A deliberation of a developer and a tester, who spend 10 and 5 tokens each time; `costs` as `0.5 USD`."""
    story, moment = Story(id), at + timedelta(seconds=took_s)
    agents = (AgentSpec(agent_id="dev-001", role="DEV"), AgentSpec(agent_id="dev-002", role="QA"))
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5, calls=1)
    answers = [
        story.finished(agent.agent_id).model_copy(
            update={"role": agent.role, "usage": usage.model_copy(update={"cost": cost_of(cost)}), "model": named}
        )
        for agent, named, cost in zip(agents, (model, "m-2"), costs, strict=True)
    ]
    verdict = Verdict(
        winner=winner, content=None, ranking=(), margin=None, tie=winner is None, dissent=(), agreement=0.5,
        strategy=StrategyRef(name="independent", version=1), calls=2,
    )  # fmt: skip
    completed = story.completed().model_copy(update={"ts": moment, "verdict": verdict})
    if degraded:
        completed = completed.model_copy(update={"degraded": Degraded.model_construct()})
    facts = [
        story.accepted(at, agents=agents, metadata=metadata or {}),
        story.opened(),
        *answers,
        story.closed(),
        completed,
    ]
    return written(records_of(story, facts, first, tenant), tenant)


def cost_of(text: str | None) -> UsageCost | None:
    amount, _, currency = (text or "").partition(" ")
    return UsageCost(amount=Decimal(amount), currency=currency) if text else None


async def stats(
    store: Store,
    by: StatsGroup | None = None,
    *,
    tenant: str | None = "acme",
    since: datetime = NOW,
    until: datetime | None = None,
    bench: bool = True,
) -> Stats:
    return (await store.stats(StatsFilter(tenant, since, until, AS_OF, by, bench)))[0]


async def test_figures_are_those_of_the_period(store: Store) -> None:
    await store.write(EPOCH, [ended(f"d{number}", took_s=number, first=10 * number) for number in range(1, 11)])

    found = await stats(store)

    assert (found.total, found.completed, found.active, found.groups) == (10, 10, 0, ())
    assert found.seconds.mean == 5.5 and (found.from_, found.to) == (NOW, AS_OF)
    assert (found.seconds.p50, found.seconds.p95, found.seconds.p99) == (5, 10, 10)
    assert (found.tokens.prompt_tokens, found.tokens.cached_tokens, found.tokens.completion_tokens) == (200, 80, 100)
    assert (found.agreement, found.degraded_share) == (0.5, 0)


async def test_roles_and_models_have_their_own_tokens_and_wins(store: Store) -> None:
    winners = ["dev-001", "dev-001", "dev-002", None]
    await store.write(EPOCH, [ended(f"d{place}", winner=each, first=10 * place) for place, each in enumerate(winners)])

    found = {by: (await stats(store, by)).groups for by in ("role", "model", "strategy", "tenant", "day")}

    wins = [(each.name, each.wins) for each in (*found["role"], *found["model"])]
    assert [(name, won.won, won.decided) for name, won in wins if won is not None] == [
        ("DEV", 2, 3), ("QA", 1, 3), ("m-1", 2, 3), ("m-2", 1, 3),
    ]  # fmt: skip
    assert [(each.total, each.tokens.prompt_tokens) for each in found["role"]] == [(4, 40), (4, 40)]
    assert [(each.name, each.total, each.tokens.prompt_tokens, each.wins) for each in found["strategy"]] == [
        ("independent", 4, 80, None)
    ]
    assert [each.name for each in (*found["tenant"], *found["day"])] == ["acme", "2026-01-01"]


async def test_a_history_is_of_the_tenants_completed_deliberations_of_one_shape(store: Store) -> None:
    """Each one makes two calls of 10 tokens, 4 of them cached, and 5; `d3` is another tenant's and `d4` is old."""
    others = [ended("d3", tenant="globex", first=30), ended("d4", at=NOW - 40 * DAY, first=40)]
    await store.write(EPOCH, [ended("d1"), ended("d2", first=20), *others])
    state = ended("d1").state
    assert state is not None
    asked, since = state.specification, NOW.replace(hour=0, minute=0, second=0, microsecond=0) - 30 * DAY

    found = await store.history("acme", asked, since)

    assert (found.deliberations, found.calls) == (2, 4)
    assert found.by_role == dict.fromkeys(("DEV", "QA"), RoleHistory(calls=2, completion_tokens=10))
    larger = asked.model_copy(update={"rounds": asked.rounds + 1})
    assert (await store.history("acme", larger, since)).deliberations == 0
    assert await store.history("nobody", asked, since) == QuoteHistory()


async def test_costs_are_summed_exactly_and_roles_and_models_have_their_own(store: Store) -> None:
    prices = [("0.000001 USD", "0.1 USD"), ("0.2 USD", None), (None, None), ("0 USD", "1000000 USD")]
    await store.write(EPOCH, [ended(f"d{place}", costs=each, first=10 * place) for place, each in enumerate(prices)])

    found = await stats(store, "role")
    models = await stats(store, "model")

    assert str(found.cost) == "1000000.300001 USD, without 3 unpriced calls" and found.other_costs == ()
    assert [(each.name, str(each.cost)) for each in found.groups] == [
        ("DEV", "0.200001 USD, without 1 unpriced call"),
        ("QA", "1000000.1 USD, without 2 unpriced calls"),
    ]
    assert [str(each.cost) for each in models.groups] == [str(each.cost) for each in found.groups]
    assert found.model_dump(mode="json")["cost"] == {"amount": 1000000.300001, "currency": "USD", "unpriced_calls": 3}


async def test_without_a_price_there_is_no_cost_and_a_free_engine_costs_nothing(store: Store) -> None:
    await store.write(EPOCH, [ended("d1"), ended("d2", at=NOW + DAY, costs=("0 EUR", "0 EUR"), first=20)])

    unpriced, free = (await stats(store, "day")).groups

    assert unpriced.cost is None and str(free.cost) == "0 EUR"


async def test_two_currencies_have_two_sums(store: Store, database_url: str) -> None:
    costs = [("0.5 USD", "0.5 USD"), ("0.1 EUR", None), ("0.1 EUR", "0.2 EUR"), (None, None)]
    await store.write(EPOCH, [ended(f"d{place}", costs=each, first=10 * place) for place, each in enumerate(costs)])

    found = await stats(store, "role")
    await store.delete("acme", "d1", AS_OF)

    assert str(found.cost) == "0.4 EUR, without 3 unpriced calls"
    assert [str(each) for each in found.other_costs] == ["1 USD"]
    assert [(str(each.cost), [*map(str, each.other_costs)]) for each in found.groups] == [
        ("0.2 EUR, without 1 unpriced call", ["0.5 USD"]),
        ("0.2 EUR, without 2 unpriced calls", ["0.5 USD"]),
    ]
    assert str((await stats(store)).cost) == "0.3 EUR, without 2 unpriced calls"
    assert await differing(database_url) == []


async def test_a_period_is_exact_at_both_ends(store: Store) -> None:
    times = [NOW + timedelta(hours=hours) for hours in range(0, 96, 5)]
    times += [NOW + timedelta(minutes=minutes) for minutes in (59, 61, 119)]
    times.sort()
    await store.write(EPOCH, [ended(f"d{at:%d%H%M}", at=at, first=10 * place + 1) for place, at in enumerate(times)])
    bounds = [NOW + timedelta(hours=hours) for hours in (-3, 0, 1, 1.01, 1.5, 2, 6, 20, 24, 30.5, 48, 72, 95, 99)]

    for since in bounds:
        for until in (*(each for each in bounds if each > since), None):
            found = await stats(store, "day", since=since, until=until)
            within = [at for at in times if since <= at and (until is None or at < until)]
            assert found.total == len(within) == sum(each.total for each in found.groups), (since, until)
            assert [each.name for each in found.groups] == sorted({f"{at:%Y-%m-%d}" for at in within})


async def test_what_runs_counts_beside_what_has_ended(store: Store) -> None:
    active = [ended(f"a{n}", tenant=tenant, first=10 * n) for n, tenant in enumerate(("acme", "acme", "rival"), 1)]
    begun = [replace(each, records=each.records[:2], state=state_of(each.records[:2])) for each in active]
    await store.write(EPOCH, [ended("d1"), *begun])

    found = {by: await stats(store, by) for by in ("strategy", "day", "role", "model")}

    assert {(each.total, each.active, each.completed) for each in found.values()} == {(3, 2, 1)}
    groups = {by: {each.name: (each.total, each.active) for each in stats.groups} for by, stats in found.items()}
    assert groups["strategy"] == {"independent": (3, 2)} == {"independent": next(iter(groups["day"].values()))}
    assert groups["role"] == {"DEV": (3, 2), "QA": (3, 2)} and set(groups["model"].values()) == {(1, 0)}
    assert (await stats(store, since=NOW + timedelta(seconds=1))).active == 0
    everyone = (await stats(store, "tenant", tenant=None)).groups
    assert {each.name: each.active for each in everyone} == {"acme": 2, "rival": 1}


@pytest.mark.parametrize("since", [NOW, NOW - DAY])
async def test_what_a_benchmark_asked_is_left_out_on_request(store: Store, since: datetime) -> None:
    """In the sums of hours and days, in single rows, and among what runs."""
    asked = [ended(f"b{place}", metadata=dict([BENCH]), first=10 * place) for place in range(3)]
    running = replace(asked[2], records=asked[2].records[:2], state=state_of(asked[2].records[:2]))
    await store.write(EPOCH, [*asked[:2], running, ended("d1", metadata={"bench": "mine"}, first=90)])

    whole = {by: await stats(store, by, since=since) for by in (None, "day", "strategy", "role", "model")}
    without = {by: await stats(store, by, since=since, bench=False) for by in whole}

    assert {(each.total, each.active, each.completed) for each in whole.values()} == {(4, 1, 3)}
    assert {(each.total, each.active, each.completed) for each in without.values()} == {(1, 0, 1)}
    assert {group.total for by, each in without.items() if by is not None for group in each.groups} == {1}


async def test_tenants_are_counted_apart(store: Store) -> None:
    await store.write(
        EPOCH, [ended("d1"), ended("d1", tenant="rival", first=50), ended("d2", tenant="rival", first=70)]
    )

    assert (await stats(store)).total == 1
    everyone = await stats(store, "tenant", tenant=None)
    assert [(each.name, each.total) for each in everyone.groups] == [("acme", 1), ("rival", 2)]
    assert everyone.total == 3


@pytest.mark.parametrize("begin", [NOW, NOW + timedelta(hours=1)])
async def test_a_deletion_leaves_no_trace_in_statistics(store: Store, database_url: str, begin: datetime) -> None:
    await store.write(EPOCH, [ended("d1", at=NOW + timedelta(hours=2), model="gone")])
    await store.delete("acme", "d1", AS_OF)
    await store.write(EPOCH, [ended("d1", at=NOW + timedelta(hours=2), model="gone")])

    found = await stats(store, "model", since=begin)

    assert (found.total, found.tokens.prompt_tokens, found.groups) == (0, 0, ())
    assert await counted(database_url) == (0, 0)


async def test_what_expired_leaves_the_sums(store: Store, database_url: str) -> None:
    await store.write(EPOCH, [ended("d1"), ended("d2", at=NOW + DAY, first=20)])

    await store.expire(NOW + DAY)

    assert (await stats(store)).total == 1
    await store.expire(NOW + 2 * DAY)
    assert await counted(database_url) == (0, 0)


async def test_projectors_that_write_the_same_at_once_count_it_once(store: Store, database_url: str) -> None:
    draw = Random(5)
    batches = [
        [ended(f"d{number}", took_s=number, first=number * 100 + draw.randrange(3)) for number in range(30)]
        for _ in range(6)
    ]
    for batch in batches:
        draw.shuffle(batch)
    await asyncio.gather(*(store.write(EPOCH, batch) for batch in batches))
    await store.delete("acme", "d3", AS_OF)

    assert (await stats(store)).total == 29
    assert await differing(database_url) == []


async def test_a_later_fact_replaces_what_was_counted(store: Store, database_url: str) -> None:
    whole = ended("d1")
    early = replace(whole, state=state_of(whole.records[:2]), records=whole.records[:2])
    for each in (early, whole, whole, early, ended("d1", took_s=9, first=50)):
        await store.write(EPOCH, [each])

    found = await stats(store, "role")

    assert [(each.name, each.total, each.tokens.prompt_tokens) for each in found.groups] == [
        ("DEV", 1, 10),
        ("QA", 1, 10),
    ]
    assert await differing(database_url) == []


async def test_what_an_engine_makes_up_stops_no_copy(store: Store) -> None:
    names = ["m" * 200 + "1", "m" * 200 + "2", "a\0b", ""]
    named = [ended(f"d{place}", model=name, first=10 * place + 1) for place, name in enumerate(names)]
    huge = ended("huge", first=900)
    assert huge.state is not None
    calls = {
        id: each.model_copy(
            update={"usage": Usage(prompt_tokens=10**30, completion_tokens=-5, cost=cost_of(f"{10**24} USD"))}
        )
        for id, each in huge.state.finished.items()
    }
    await store.write(EPOCH, [*named, replace(huge, state=replace(huge.state, finished=calls))])

    found = await stats(store, "model")

    assert [(each.name[:3], each.total) for each in found.groups] == [
        ("", 1),
        ("ab", 1),
        ("m-1", 1),
        ("m-2", 5),
        ("mmm", 2),
    ]
    assert found.cost is not None and found.cost.amount == Decimal(1 << 40) / 10**6
    assert found.tokens.prompt_tokens > 10**12 and found.tokens.completion_tokens == 4 * 10


async def counted(url: str) -> tuple[int, int]:
    async with opened(url) as database, database.begin() as connection:
        found = [
            (await connection.execute(select(func.count()).select_from(each))).scalar_one()
            for each in (measures, rollups)
        ]
    return found[0], found[1]


async def differing(url: str) -> Sequence[object]:
    expected = set[tuple[object, ...]]()
    async with opened(url) as database, database.begin() as connection:
        for width_us in WIDTHS_US:
            width, begin_us = literal(width_us, BigInteger), measures.c.created_us - measures.c.created_us % width_us
            rows = select(measures, width.label("width_us"), begin_us.label("begin_us")).subquery().c
            key, added = [rows[name] for name in ROLLUP_KEY], [func.sum(rows[name]) for name in AMOUNTS]
            expected |= {tuple(row) for row in await connection.execute(select(*key, *added).group_by(*key))}
        chosen = select(*(rollups.c[name] for name in (*ROLLUP_KEY, *AMOUNTS)))
        found = {tuple(row) for row in await connection.execute(chosen)}
    return sorted(map(str, expected ^ found))


def test_classes_of_durations_are_narrow() -> None:
    assert duration_class(0) == duration_class(999) == 0
    by_class = dict[int, list[int]]()
    for took_us in (int(1_000 * 1.01**step) for step in range(2_000)):
        by_class.setdefault(duration_class(took_us), []).append(took_us)
    assert list(by_class) == sorted(by_class)
    assert all(times[-1] < 1.1 * times[0] for times in by_class.values())
