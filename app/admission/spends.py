"""The spend of each tenant in the present day in UTC, and the check of a tenant's limit.

A coordinator records the cost of a deliberation in a stream of its own, right before the end. The first write wins, and
a deletion of the deliberation leaves it: no tenant lowers its spend. Every gateway reads the records of the day.

A running deliberation reserves its `budget.max_cost`, and nothing without one. Work without it may exceed the limit by
the cost of what is unfinished when the limit is reached.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from math import ceil

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from app.admission.backlog import Key
from app.api.refusals import SpendExhausted
from app.api.schemas import Spend
from app.deliberation.calls import Money
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import End
from app.deliberation.ports import Clock, Journal, Record
from app.deliberation.roles import Role, currency_of
from app.deliberation.specification import Amount, Currency, checked_token
from app.log.projection import Projection

CHECK_S = 60.0
# After this time some of what runs may have ended below its ceiling.
RESERVED_RETRY_S = 30
YIELDS_EVERY = 200
_DAY = timedelta(days=1)

log = structlog.get_logger(__name__)


class SpendRecorded(BaseModel):
    model_config = ConfigDict(frozen=True)

    amount: Amount
    currency: Currency


def spend_subject(day: date, tenant: str, deliberation_id: str) -> str:
    tenant, deliberation_id = checked_token(tenant, "tenant"), checked_token(deliberation_id, "deliberation")
    return f"spends.{day.isoformat()}.{tenant}.{deliberation_id}"


async def record_spend(journal: Journal, tenant: str, end: End) -> None:
    """Record the cost of a deliberation, before its end; where no call has a price there is none. Idempotent."""
    cost = end.usage.cost
    if cost is not None:
        recorded = SpendRecorded(amount=cost.amount, currency=cost.currency)
        subject = spend_subject(end.ts.date(), tenant, end.deliberation_id)
        await journal.write(subject, recorded.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class SpendLimits:
    """A tenant's limit for a day: its own, or `per_day`; None bounds nothing."""

    currency: str
    per_day: Decimal | None
    by_tenant: Mapping[str, Decimal]

    @classmethod
    def of(
        cls, per_day: Decimal | None, by_tenant: Mapping[str, Decimal], roles: Mapping[str, Role]
    ) -> "SpendLimits | None":
        """The limits of the settings, in the currency of the roles' prices; None without any limit.

        Raises what `currency_of` raises: calls of an engine without prices would pass a limit unseen.
        """
        if per_day is None and not by_tenant:
            return None
        setting = "SPENDS_PER_DAY" if per_day is None else "SPEND_PER_DAY"
        currency = currency_of(roles, setting)
        return cls(currency, per_day, by_tenant)

    def of_tenant(self, tenant: str) -> Decimal | None:
        return self.by_tenant.get(tenant, self.per_day)


@dataclass(slots=True)
class _DaySums:
    """Millionths by tenant and currency of one day, of all records up to a sequence and of some above it."""

    millionths: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    complete_to: int = 0
    above: set[int] = field(default_factory=set[int])


class DailySpends:
    """The spend of each tenant in the present day: a projection of the log, read again once a minute."""

    def __init__(self, clock: Clock, limits: SpendLimits) -> None:
        self.caught_up = False
        self.limits = limits
        self._clock = clock
        self._epoch = ""
        self._days: dict[date, _DaySums] = {}
        # The ceilings of acceptances that are being written, and are not received yet.
        self._written: dict[Key, Decimal] = {}

    async def follow(self, journal: Journal) -> None:
        await Projection(
            journal, ["spends.>"], self.apply, self._read, lambda running: running.stale_within(CHECK_S)
        ).run()

    async def _read(self, journal: Journal) -> None:
        """Read the records of this day, and of the next: the clock of a coordinator may be ahead."""
        stream = await journal.state("spends.>")
        known_to = max((sums.complete_to for sums in self._days.values()), default=0)
        # A server that lost the end of the stream gives its sequences again.
        if stream.epoch != self._epoch or stream.last_sequence < known_to:
            self._days, self._epoch = {}, stream.epoch
        today = self._clock.now().date()
        self._days = {day: sums for day, sums in self._days.items() if day >= today}
        number = 0
        for day in (today, today + _DAY):
            sums = self._days.setdefault(day, _DaySums())
            last = sums.complete_to
            async for record in journal.read(f"spends.{day.isoformat()}.>", sums.complete_to):
                self.apply(record)
                last, number = record.sequence, number + 1
                if number % YIELDS_EVERY == 0:
                    await asyncio.sleep(0)
            sums.complete_to = last
            sums.above = {sequence for sequence in sums.above if sequence > last}
        self.caught_up = True

    def apply(self, record: Record) -> None:
        """Count a record, in any order and any number of times; logs and skips one that does not decode."""
        try:
            _, day, tenant, _ = record.tokens
            sums = self._days.setdefault(date.fromisoformat(day), _DaySums())
            spend = SpendRecorded.model_validate_json(record.data)
        except (ValueError, ValidationError):
            log.warning("spend_undecodable", subject=record.subject, sequence=record.sequence)
            return
        if record.sequence <= sums.complete_to or record.sequence in sums.above:
            return
        sums.above.add(record.sequence)
        key = tenant, spend.currency
        sums.millionths[key] = (
            sums.millionths.get(key, 0) + Money(amount=spend.amount, currency=spend.currency).millionths
        )

    def spent(self, tenant: str) -> Decimal:
        sums = self._days.get(self._clock.now().date(), _DaySums())
        return Decimal(sums.millionths.get((tenant, self.limits.currency), 0)).scaleb(-6)

    def by_tenant(self) -> Mapping[str, Decimal]:
        sums = self._days.get(self._clock.now().date(), _DaySums()).millionths
        return {tenant: self.spent(tenant) for tenant, currency in sums if currency == self.limits.currency}

    def view(self, tenant: str, running: Mapping[str, Decimal], but: str = "") -> Spend | None:
        """A tenant's spend as clients read it; None without a limit. Raises JournalUnavailable until records are read.

        `running` are the ceilings of active deliberations, by id; `but` is the id of one that reserves nothing.
        """
        limit = self.limits.of_tenant(tenant)
        if limit is None:
            return None
        if not self.caught_up:
            raise JournalUnavailable("The spends of the day have not been read yet.")
        midnight = self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
        written = {id: ceiling for (of, id), ceiling in self._written.items() if of == tenant}
        reserved = {id: ceiling for id, ceiling in {**written, **running}.items() if id != but}
        return Spend(
            spent=self.spent(tenant),
            reserved=sum(reserved.values(), Decimal(0)),
            limit=limit,
            currency=self.limits.currency,
            resets_at=midnight,
        )

    def check(self, key: Key, max_cost: Decimal | None, running: Mapping[str, Decimal]) -> None:
        """Raise SpendExhausted when a deliberation with this ceiling cannot be accepted now, else as `view`.

        Its own reservation does not count: a repetition may come while the first acceptance is being written.
        """
        spend = self.view(key[0], running, but=key[1])
        if spend is None:
            return
        left_s = max(1, ceil((spend.resets_at - self._clock.now()).total_seconds()))
        if spend.spent >= spend.limit:
            raise SpendExhausted(spend, left_s, max_cost)
        if spend.left <= 0 or (max_cost is not None and max_cost > spend.left):
            fits_later = (max_cost or Decimal(0)) <= spend.limit - spend.spent
            wait_s = RESERVED_RETRY_S if spend.reserved and fits_later else left_s
            raise SpendExhausted(spend, min(left_s, wait_s), max_cost)

    @contextmanager
    def place(self, key: Key, max_cost: Decimal | None, running: Mapping[str, Decimal]) -> Generator[None]:
        self.check(key, max_cost, running)
        reserves = max_cost is not None and key not in self._written
        if max_cost is not None and reserves:
            self._written[key] = max_cost
        try:
            yield
        finally:
            if reserves:
                del self._written[key]
