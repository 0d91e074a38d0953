"""Makes one attempt at a delivery and records its outcome."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from app.api.webhook_payloads import delivery_id, payload
from app.api.webhook_targets import Rules, UnfitUrl
from app.deliberation.ports import Clock, Journal, Record
from app.deliberation.specification import Webhook
from app.webhooks.attempts import (
    Attempt,
    AttemptFault,
    DeliveryEnded,
    DeliveryKey,
    DeliveryRecord,
    Redelivered,
    decoded,
    encoded,
)
from app.webhooks.sender.bulkheads import AttemptDeferred, Bulkheads
from app.webhooks.sender.posting import Poster
from app.webhooks.sender.schedule import AttemptOutcome, next_step
from app.webhooks.signatures import Signer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A fact to deliver, and its webhook."""

    tenant: str
    deliberation_id: str
    webhook: Webhook
    fact: Record

    @property
    def key(self) -> DeliveryKey:
        """The delivery's key."""
        return DeliveryKey(self.tenant, self.deliberation_id, delivery_id(self.fact))


class DeliveryWorker:
    """Makes attempts within the bulkheads, signs them, and records each outcome.

    `counts` are this process's: attempts by outcome, deliveries by ending. While `draining` is set, no attempt begins.
    """

    def __init__(
        self,
        journal: Journal,
        poster: Poster,
        bulkheads: Bulkheads,
        signer: Signer,
        rules: Rules,
        clock: Clock,
        *,
        delays_s: Sequence[float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.draining = asyncio.Event()
        self._journal = journal
        self._poster = poster
        self._bulkheads = bulkheads
        self._signer = signer
        self._rules = rules
        self._clock = clock
        self._delays_s = tuple(delays_s)
        self._draw = draw
        self._epoch = ""
        journal.on_reconnect(self._forget_epoch)

    def _forget_epoch(self) -> None:
        self._epoch = ""

    async def attempt_scheduled(self, delivery: PendingDelivery, number: int) -> DeliveryRecord:
        """Make the nth scheduled attempt; returns the stored record. Raises AttemptDeferred and JournalUnavailable."""
        outcome = await self._attempt(delivery)
        step = next_step(delivery.fact.subject, number, outcome, self._delays_s, self._draw())
        return await self.record(delivery.key, step)

    async def redeliver(self, delivery: PendingDelivery, number: int) -> None:
        """Make the attempt of the nth request for a redelivery; raises as `attempt_scheduled`."""
        outcome = await self._attempt(delivery)
        await self.record(delivery.key, Redelivered(fact=delivery.fact.subject, number=number, attempt=outcome.attempt))

    async def record(self, key: DeliveryKey, record: DeliveryRecord) -> DeliveryRecord:
        """Store a record unless its subject has one; returns the stored one. Raises JournalUnavailable."""
        appended = await self._journal.write(key.subject(record), encoded(record))
        if isinstance(record, DeliveryEnded) and appended.created:
            self.counts[record.ending] += 1
        return decoded(appended.record.data)

    async def _attempt(self, delivery: PendingDelivery) -> AttemptOutcome:
        if self.draining.is_set():
            # Returned to the queue at once, for another process.
            raise AttemptDeferred(0)
        try:
            target = self._rules.check(delivery.webhook.url)
        except UnfitUrl as exc:
            # The URL was valid at acceptance; the operator has since restricted the rules.
            fault = AttemptFault(code="url_refused", detail=f"{exc}.")
            return AttemptOutcome(Attempt(at=self._clock.now(), duration_ms=0, problem=fault))
        async with self._bulkheads.slot(delivery.tenant, target) as bulkhead:
            if not self._epoch:
                self._epoch = (await self._journal.state()).epoch
            body = payload(delivery.fact, self._epoch, delivery.webhook)
            headers = self._signer.headers(delivery.tenant, delivery.key.delivery_id, body, self._clock.now())
            outcome = await self._poster.post(delivery.webhook.url, headers, body)
            attempt = outcome.attempt
            bulkhead.note(answered=attempt.status_code is not None, duration_s=attempt.duration_ms / 1_000)
        self.counts["succeeded" if attempt.succeeded else "failed"] += 1
        log.info(
            "webhook_attempt",
            tenant=delivery.tenant,
            delivery_id=delivery.key.delivery_id,
            target=str(target),
            status=attempt.status_code,
            problem=attempt.problem and attempt.problem.code,
            duration_ms=attempt.duration_ms,
        )
        return outcome
