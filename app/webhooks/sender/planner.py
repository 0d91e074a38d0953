"""Decides which attempts are due: first attempts from a deliberation's facts, later ones from delivery records."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta

from app.api.webhook_payloads import delivery_id, due, is_end, patterns
from app.deliberation.facts import Accepted, decode, is_acceptance, prefix
from app.deliberation.ports import Journal, Record
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
    deliveries_subject,
    receiver_gone,
)
from app.webhooks.sender.delivery import DeliveryWorker

# A deliberation is followed until this long after its deadline; then it is checked at this interval.
END_GRACE_S = 60.0
OVERDUE_S = 60.0
# Each new event rereads all facts, so the pause between two reads grows with their number.
PAUSE_PER_FACT_S = 0.002
# Only an object has these bytes: inside a string, quotation marks are escaped.
_WEBHOOK_OBJECT = b'"webhook":{'


def webhook_of(data: bytes) -> tuple[Accepted, Webhook] | None:
    """An acceptance and its webhook; None if it has none. Raises pydantic's ValidationError."""
    if _WEBHOOK_OBJECT not in data:
        return None
    fact = decode(data)
    if not isinstance(fact, Accepted) or fact.specification.webhook is None:
        return None
    return fact, fact.specification.webhook


def _seconds_until(moment: datetime) -> float:
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


class DeliveryPlanner:
    """Works off two queues: `follow` for accepted deliberations, `retry` for delivery records.

    Both return the seconds until a redelivery, None when done; both raise AttemptDeferred and JournalUnavailable.
    """

    def __init__(self, journal: Journal, worker: DeliveryWorker) -> None:
        self._journal = journal
        self._worker = worker

    async def follow(self, accepted: Record) -> float | None:
        """Make first attempts in the log's order until the end. A failure delays no later event."""
        subscribed = webhook_of(accepted.data)
        if subscribed is None:
            return None
        fact, webhook = subscribed
        tenant = accepted.tokens[1]
        subjects = patterns(tenant, fact, webhook.events)
        until = fact.deadline_at + timedelta(seconds=END_GRACE_S)
        changed = asyncio.Event()
        async with AsyncExitStack() as stack:
            # A reconnect counts as a change, because a fact may have been missed.
            stack.callback(self._journal.on_reconnect(changed.set))
            subscription = await self._journal.subscribe(subjects, lambda _: changed.set())
            stack.push_async_callback(subscription.close)
            while True:
                changed.clear()
                facts = await self._journal.last(subjects)
                if await self._attempt_first(tenant, fact, webhook, facts):
                    return None
                if not (left_s := _seconds_until(until)):
                    return OVERDUE_S
                await asyncio.sleep(len(facts) * PAUSE_PER_FACT_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await changed.wait()

    async def _attempt_first(self, tenant: str, accepted: Accepted, webhook: Webhook, facts: Sequence[Record]) -> bool:
        events = due(facts, webhook)
        if events:
            deliberation_id = events[0].tokens[2]
            known = await self._histories(tenant, deliberation_id, "*.failed.1")
            if any(receiver_gone(history.ended) for history in known.values()):
                return True
            tenant_key = (tenant, deliberation_id)
            for fact in events:
                history = known.get(delivery_id(fact))
                if history is not None and history.started:
                    continue
                # Attempts take time: meanwhile the deliberation may be deleted, and a retry may meet a receiver's 410.
                pending = await self._pending(DeliveryKey(*tenant_key, delivery_id(fact)), fact.subject)
                if pending is None or await self._receiver_is_gone(*tenant_key):
                    return True
                if receiver_gone(await self._worker.attempt_scheduled(accepted, webhook, fact, 1)):
                    return True
        return any(map(is_end, facts))

    async def _receiver_is_gone(self, tenant: str, deliberation_id: str) -> bool:
        ended = await self._journal.last([f"{deliveries_subject(tenant, deliberation_id)}.*.ended"])
        return any(receiver_gone(decoded(record.data)) for record in ended)

    async def retry(self, queued: Record) -> float | None:
        """Make the attempt that a record asks for, once it is due: a scheduled retry or a redelivery."""
        record, key = decoded(queued.data), DeliveryKey.of(queued)
        match record:
            case AttemptFailed():
                if wait_s := _seconds_until(record.next_attempt_at):
                    return wait_s
                await self._retry(key, record)
            case RedeliveryRequested():
                await self._redeliver(key, record)
            case DeliveryEnded() | Redelivered():
                pass
        return None

    async def _retry(self, key: DeliveryKey, failed: AttemptFailed) -> None:
        known = await self._histories(key.tenant, key.deliberation_id, f"{key.delivery_id}.>")
        own = known.get(key.delivery_id, DeliveryHistory())
        if own.finished or failed.number + 1 in own.failed:
            return
        if any(receiver_gone(history.ended) for history in known.values()):
            await self._worker.record(key, DeliveryEnded(fact=failed.fact, ending="stopped", attempt=None))
        elif pending := await self._pending(key, failed.fact):
            await self._worker.attempt_scheduled(*pending, failed.number + 1)
        else:
            await self._worker.record(key, DeliveryEnded(fact=failed.fact, ending="expired", attempt=None))

    async def _redeliver(self, key: DeliveryKey, request: RedeliveryRequested) -> None:
        known = await self._histories(key.tenant, key.deliberation_id, f"{key.delivery_id}.>")
        if request.number in known.get(key.delivery_id, DeliveryHistory()).redelivered:
            return
        if pending := await self._pending(key, request.fact):
            await self._worker.redeliver(*pending, request.number)
        else:
            await self._worker.record(key, Redelivered(fact=request.fact, number=request.number, attempt=None))

    async def _histories(self, tenant: str, deliberation_id: str, records: str) -> dict[str, DeliveryHistory]:
        stem = deliveries_subject(tenant, deliberation_id)
        return deliveries(await self._journal.last([f"{stem}.{records}", f"{stem}.*.ended"]))

    async def _pending(self, key: DeliveryKey, subject: str) -> tuple[Accepted, Webhook, Record] | None:
        stem = prefix(key.tenant, key.deliberation_id)
        facts = {record.subject: record for record in await self._journal.last([f"{stem}.*", subject])}
        acceptance = next((record for name, record in facts.items() if is_acceptance(name)), None)
        accepted = None if acceptance is None or f"{stem}.deleted" in facts else webhook_of(acceptance.data)
        if accepted is None or subject not in facts or delivery_id(facts[subject]) != key.delivery_id:
            return None
        return *accepted, facts[subject]
