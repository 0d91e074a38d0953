"""The two works of the sender: to follow a deliberation and tell its events, and to try again what was not taken."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from app.api.webhook_payloads import delivery_id, due, is_end, patterns
from app.deliberation.facts import Accepted, decode, prefix
from app.deliberation.ports import Clock, Journal, Record
from app.deliberation.specification import Webhook
from app.webhooks.attempts import (
    AttemptFailed,
    DeliveryEnded,
    DeliveryHistory,
    DeliveryKey,
    Redelivered,
    RedeliveryRequested,
    decoded,
    deliveries,
    deliveries_of,
    stopped,
)
from app.webhooks.sender.delivering import Deliverer, Notice
from app.webhooks.sender.queue_worker import ItemDecision, ItemDone, Later
from app.webhooks.sender.schedule import seconds_until

# How long after its deadline a deliberation is followed on, and how often it is looked at from then on.
END_GRACE_S = 60.0
OVERDUE_S = 60.0
# A deliberation of a thousand facts is read anew for each event; so the more facts, the longer the pause in between.
PAUSE_PER_FACT_S = 0.002
# Only a structure can have these bytes: within a string the quotation marks are escaped.
_NAMES_ONE = b'"webhook":{'


def webhook_of(data: bytes) -> tuple[Accepted, Webhook] | None:
    """An acceptance and its webhook; None where there is none. Raises pydantic's ValidationError."""
    if _NAMES_ONE not in data:
        return None
    fact = decode(data)
    if not isinstance(fact, Accepted) or fact.specification.webhook is None:
        return None
    return fact, fact.specification.webhook


class DeliveryPlanner:
    """Tells each wanted event of a deliberation once it stands in the log: the first attempt at each delivery.

    One after the other and in the log's order, each begun when the one before it has been recorded. What fails is
    repeated by its own record, and holds nothing up.
    """

    def __init__(self, journal: Journal, deliverer: Deliverer, clock: Clock) -> None:
        self._journal = journal
        self._deliverer = deliverer
        self._clock = clock

    async def follow(self, accepted: Record) -> ItemDecision:
        """Follow an accepted deliberation to its end. Raises Crowded and JournalUnavailable."""
        found = webhook_of(accepted.data)
        if found is None:
            return ItemDone()
        fact, webhook = found
        tenant = accepted.tokens[1]
        of_it = patterns(tenant, fact.deliberation_id, webhook.events)
        until = fact.deadline_at + timedelta(seconds=END_GRACE_S)
        async with self._heard(of_it) as news:
            while True:
                news.clear()
                facts = await self._journal.last(of_it)
                if await self._told(tenant, webhook, facts):
                    return ItemDone()
                if not (left_s := seconds_until(until, self._clock.now())):
                    return Later(OVERDUE_S)
                await self._pause(news, facts, left_s)

    async def _told(self, tenant: str, webhook: Webhook, facts: Sequence[Record]) -> bool:
        """Make every first attempt that was not made; whether there is nothing more to tell."""
        shown = due(facts, webhook)
        begun: set[str] | None = await self._begun(tenant, shown[0].tokens[2]) if shown else set()
        for fact in shown:
            if begun is None:
                return True
            if delivery_id(fact) not in begun:
                told = await self._deliverer.by_schedule(Notice(tenant, fact.tokens[2], webhook, fact), 1)
                begun = None if stopped(told) else begun
        return begun is None or any(map(is_end, facts))

    @asynccontextmanager
    async def _heard(self, of_it: Sequence[str]) -> AsyncGenerator[asyncio.Event]:
        """An event that is set by every fact that matches, and whenever one may have been missed."""
        news = asyncio.Event()
        unhook = self._journal.on_reconnect(news.set)
        try:
            subscription = await self._journal.subscribe(of_it, lambda _: news.set())
            try:
                yield news
            finally:
                await subscription.close()
        finally:
            unhook()

    async def _begun(self, tenant: str, deliberation_id: str) -> set[str] | None:
        """Deliveries that were attempted before; None when the receiver has said that it wants no more."""
        stem = deliveries_of(tenant, deliberation_id)
        recorded = deliveries(await self._journal.last([f"{stem}.*.failed.1", f"{stem}.*.ended"]))
        if any(stopped(each.ended) for each in recorded.values()):
            return None
        return {id for id, each in recorded.items() if each.begun}

    async def _pause(self, news: asyncio.Event, facts: Sequence[Record], left_s: float) -> None:
        await asyncio.sleep(len(facts) * PAUSE_PER_FACT_S)
        try:
            async with asyncio.timeout(left_s):
                await news.wait()
        except TimeoutError:
            return


class Repeater:
    """Makes the attempts that records ask for: the next one by schedule, and the one that somebody wished for."""

    def __init__(self, journal: Journal, deliverer: Deliverer, clock: Clock) -> None:
        self._journal = journal
        self._deliverer = deliverer
        self._clock = clock

    async def repeat(self, asking: Record) -> ItemDecision:
        """Make the attempt that a record asks for, when it is due. Raises Crowded and JournalUnavailable."""
        told = decoded(asking.data)
        place = DeliveryKey.of(asking)
        match told:
            case AttemptFailed():
                wait_s = seconds_until(told.next_attempt_at, self._clock.now())
                if wait_s:
                    return Later(wait_s)
                await self._by_schedule(place, told)
            case RedeliveryRequested():
                await self._once_more(place, told)
            case DeliveryEnded() | Redelivered():
                pass
        return ItemDone()

    async def _by_schedule(self, place: DeliveryKey, failed: AttemptFailed) -> None:
        known = await self._known(place)
        own = known.get(place.delivery_id, DeliveryHistory())
        if own.settled or failed.number + 1 in own.failed:
            return
        if any(stopped(each.ended) for each in known.values()):
            await self._deliverer.record(place, DeliveryEnded(fact=failed.fact, ending="stopped", attempt=None))
            return
        notice = await self._notice(place, failed.fact)
        if notice is None:
            await self._deliverer.record(place, DeliveryEnded(fact=failed.fact, ending="expired", attempt=None))
            return
        await self._deliverer.by_schedule(notice, failed.number + 1)

    async def _once_more(self, place: DeliveryKey, asked: RedeliveryRequested) -> None:
        if asked.number in (await self._known(place)).get(place.delivery_id, DeliveryHistory()).redelivered:
            return
        notice = await self._notice(place, asked.fact)
        if notice is None:
            await self._deliverer.record(place, Redelivered(fact=asked.fact, number=asked.number, attempt=None))
            return
        await self._deliverer.once_more(notice, asked.number)

    async def _known(self, place: DeliveryKey) -> dict[str, DeliveryHistory]:
        """All records of the delivery, and how others of the same deliberation ended."""
        stem = deliveries_of(place.tenant, place.deliberation_id)
        return deliveries(await self._journal.last([place.pattern, f"{stem}.*.ended"]))

    async def _notice(self, place: DeliveryKey, subject: str) -> Notice | None:
        """What is to be told; None when its facts are gone, or others stand in their place."""
        acceptance, deleted = (
            f"{prefix(place.tenant, place.deliberation_id)}.{tail}" for tail in ("accepted", "deleted")
        )
        found = {record.subject: record for record in await self._journal.last([acceptance, deleted, subject])}
        accepted = webhook_of(found[acceptance].data) if acceptance in found and deleted not in found else None
        if accepted is None or subject not in found or delivery_id(found[subject]) != place.delivery_id:
            return None
        return Notice(place.tenant, place.deliberation_id, accepted[1], found[subject])
