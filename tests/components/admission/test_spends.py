from decimal import Decimal
from typing import Any

import pytest

from app.admission.spends import DailySpends, SpendLimits, record_spend
from app.api.refusals import SpendExhausted
from app.deliberation.calls import Usage, UsageCost
from app.deliberation.decider import failed
from app.deliberation.errors import InvalidRequest, JournalUnavailable, Poisoned
from app.deliberation.facts import Failed
from app.deliberation.fold import fold
from app.deliberation.roles import parse_roles
from tests.components.admission.spends import spend
from tests.fakes import FakeClock, InMemoryJournal
from tests.story import NOW, Story

LIMITS = SpendLimits("USD", Decimal(5), {"globex": Decimal(20)})
PRICES = {"currency": "USD", "prompt": 1, "completion": 1}


async def read(spends: DailySpends, journal: InMemoryJournal) -> None:
    await spends._read(journal)  # pyright: ignore[reportPrivateUsage]


async def spends_of(journal: InMemoryJournal, clock: FakeClock | None = None) -> DailySpends:
    found = DailySpends(clock or FakeClock(), LIMITS)
    await read(found, journal)
    return found


def ended(*costs: UsageCost | None) -> Failed:
    story = Story("d1")
    agents = [f"dev-00{place}" for place in range(1, len(costs) + 1)]
    answers = [
        story.finished(agent).model_copy(update={"usage": Usage(calls=1, cost=cost)})
        for agent, cost in zip(agents, costs, strict=True)
    ]
    state = fold(enumerate([story.accepted(), story.opened(), *answers], start=1))
    assert state is not None
    end = failed(state, NOW, Poisoned("p")).fact
    assert isinstance(end, Failed)
    return end


def usd(amount: str) -> UsageCost:
    return UsageCost(amount=Decimal(amount), currency="USD")


async def test_records_heard_and_read_in_any_order_count_once() -> None:
    journal = InMemoryJournal()
    for number in range(5):
        await spend(journal, f"d{number}", "0.1")
    spends = DailySpends(FakeClock(), LIMITS)

    for record in (journal.records[4], *journal.records[1:3], journal.records[4]):
        spends.apply(record)
    assert spends.spent("acme") == Decimal("0.3")
    await read(spends, journal)
    await spend(journal, "d5", "0.000001")
    for record in (journal.records[5], *journal.records):
        spends.apply(record)
    await read(spends, journal)

    assert spends.spent("acme") == Decimal("0.500001") and spends.spent("globex") == 0
    assert (await spends_of(journal)).spent("acme") == Decimal("0.500001"), "another gateway, or this one restarted"


async def test_a_new_day_begins_at_nothing() -> None:
    journal, clock = InMemoryJournal(), FakeClock()
    await spend(journal, "d1", "5")
    spends = await spends_of(journal, clock)
    clock.advance(86_399)

    with pytest.raises(SpendExhausted) as refused:
        spends.check(("acme", "new"), None, {})
    clock.advance(1)
    spends.check(("acme", "new"), None, {})

    assert refused.value.headers == {"Retry-After": "1"} and spends.spent("acme") == 0
    await read(spends, journal)
    assert spends.spent("acme") == 0


async def test_another_log_and_another_currency_count_nothing_here() -> None:
    journal = InMemoryJournal()
    await spend(journal, "d1", "5")
    await spend(journal, "d2", "7", currency="EUR")
    spends = await spends_of(journal)
    assert spends.spent("acme") == 5 and spends.by_tenant() == {"acme": 5}

    replaced = InMemoryJournal(epoch="another")
    await spend(replaced, "d9", "1")
    await read(spends, replaced)

    assert spends.spent("acme") == 1


async def test_a_record_that_does_not_decode_is_skipped() -> None:
    journal = InMemoryJournal()
    await journal.write("spends.2026-01-01.acme.d1", b"no json")
    await journal.write("spends.monday.acme.d2", b'{"amount": 1, "currency": "USD"}')
    await spend(journal, "d3", "2")

    assert (await spends_of(journal)).spent("acme") == 2


async def test_what_runs_counts_with_its_ceiling_and_is_reserved_while_it_is_written() -> None:
    journal = InMemoryJournal()
    await spend(journal, "d1", "2")
    spends, running = await spends_of(journal), {"d0": Decimal("0.5")}

    with spends.place(("acme", "d2"), Decimal(1), running):
        found = spends.view("acme", running)
        assert found is not None and (found.reserved, found.left) == (Decimal("1.5"), Decimal("1.5"))
        spends.check(("acme", "new"), Decimal("1.5"), running)
        with pytest.raises(SpendExhausted) as refused:
            spends.check(("acme", "new"), Decimal("1.500001"), running)
        with pytest.raises(SpendExhausted) as full:
            spends.check(("acme", "new"), None, {"d3": Decimal(2)})
        spends.check(("globex", "new"), Decimal(20), {})
    spends.check(("acme", "new"), Decimal(3), {})

    (fault,) = refused.value.errors
    assert (fault.location, fault.pointer) == ("body", "/budget/max_cost") and "at most 1.5 USD" in fault.remedy
    assert refused.value.retry_after_s == full.value.retry_after_s == 30, "what runs may end cheaper"
    assert str(full.value) == "This tenant has spent 2 USD of 5 USD today in UTC, and what runs may cost 3 USD."


async def test_a_repetition_is_not_refused_for_its_own_ceiling() -> None:
    spends, own = await spends_of(InMemoryJournal()), ("acme", "d1")

    with spends.place(own, Decimal(4), {}):
        with spends.place(own, Decimal(4), {}):
            spends.check(own, Decimal(4), {"d1": Decimal(4)})
        found = spends.view("acme", {"d1": Decimal(4)})
        with pytest.raises(SpendExhausted):
            spends.check(("acme", "d2"), Decimal(4), {})

    assert found is not None and found.reserved == 4, "heard of and still being written, it counts once"
    spends.check(("acme", "d2"), Decimal(4), {})


async def test_what_never_fits_today_is_asked_for_after_midnight() -> None:
    journal = InMemoryJournal()
    await spend(journal, "d1", "3")
    spends = await spends_of(journal)

    with pytest.raises(SpendExhausted) as refused:
        spends.check(("acme", "new"), Decimal(3), {"d2": Decimal(1)})

    assert refused.value.retry_after_s == 86_400


async def test_records_count_again_after_the_server_lost_the_end_of_the_stream() -> None:
    journal = InMemoryJournal()
    for number in range(3):
        await spend(journal, f"d{number}", "1")
    spends = await spends_of(journal)

    restored = InMemoryJournal(epoch=journal.epoch)
    await spend(restored, "d9", "2")
    await read(spends, restored)

    assert spends.spent("acme") == 2


async def test_nothing_is_accepted_before_the_day_was_read_where_there_is_a_limit() -> None:
    unlimited = DailySpends(FakeClock(), SpendLimits("USD", None, {"globex": Decimal(1)}))
    unlimited.check(("acme", "new"), None, {})

    with pytest.raises(JournalUnavailable, match="not been read"):
        unlimited.check(("globex", "new"), None, {})


async def test_the_cost_of_all_calls_is_recorded_once() -> None:
    journal = InMemoryJournal()
    await record_spend(journal, "acme", ended(usd("0.5"), usd("0.25")))
    await record_spend(journal, "acme", ended(usd("9")))

    (record,) = journal.records
    assert (record.subject, record.data) == ("spends.2026-01-01.acme.d1", b'{"amount":0.75,"currency":"USD"}')


async def test_without_a_price_nothing_is_recorded() -> None:
    journal = InMemoryJournal()
    await record_spend(journal, "acme", ended(None, None))
    assert journal.records == []


def roles(*engines: dict[str, Any]) -> dict[str, Any]:
    named = {f"e{place}": {"url": f"http://e{place}", **each} for place, each in enumerate(engines)}
    return {"engines": named, "roles": {"DEV": {"persona": "p", "engines": list(named)}}}


def test_limits_are_in_the_currency_of_the_prices() -> None:
    declared = parse_roles(roles({"prices": PRICES}), "roles.yaml")
    limits = SpendLimits.of(Decimal(5), {"globex": Decimal(20)}, declared)

    assert limits is not None and limits.currency == "USD"
    assert (limits.of_tenant("acme"), limits.of_tenant("globex")) == (5, 20)
    assert SpendLimits.of(None, {}, declared) is None


@pytest.mark.parametrize(
    ("declared", "engine"),
    [
        (roles({"prices": PRICES}, {}), "asks e1 (http://e1), without prices"),
        ({"roles": {"DEV": {"persona": "p"}}}, "asks the default engines, without prices"),
    ],
)
@pytest.mark.parametrize(
    ("per_day", "by_tenant", "setting"),
    [(Decimal(5), {}, "SPEND_PER_DAY"), (None, {"acme": Decimal(5)}, "SPENDS_PER_DAY")],
)
def test_an_engine_without_prices_is_refused_with_one_line(
    declared: dict[str, Any], engine: str, per_day: Decimal | None, by_tenant: dict[str, Decimal], setting: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SpendLimits.of(per_day, by_tenant, parse_roles(declared, "roles.yaml"))

    assert str(refused.value).startswith(f"{setting}: role DEV {engine}. Declare `prices`")
    assert f"or leave {setting} out." in str(refused.value) and "\n" not in str(refused.value)
