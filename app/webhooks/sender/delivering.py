"""One attempt at one delivery, and its record. Whoever decides that an attempt is due asks this."""

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
    Redelivered,
    Told,
    decoded,
    encoded,
)
from app.webhooks.sender.bulkheads import Bulkheads, Crowded
from app.webhooks.sender.posting import Poster
from app.webhooks.sender.schedule import AttemptOutcome, next_step
from app.webhooks.signatures import Signer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact that somebody is to be told, and where."""

    tenant: str
    deliberation_id: str
    webhook: Webhook
    fact: Record

    @property
    def place(self) -> DeliveryKey:
        """Which delivery it is."""
        return DeliveryKey(self.tenant, self.deliberation_id, delivery_id(self.fact))


class Deliverer:
    """Makes attempts within the bounds of the lanes, signs them, and writes down what came of each.

    `counts` are of this process: attempts by whether they succeeded, deliveries by how they ended.
    """

    def __init__(
        self,
        journal: Journal,
        poster: Poster,
        lanes: Bulkheads,
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
        self._lanes = lanes
        self._signer = signer
        self._rules = rules
        self._clock = clock
        self._delays_s = tuple(delays_s)
        self._draw = draw
        self._epoch = ""
        journal.on_reconnect(self._forget_epoch)

    def _forget_epoch(self) -> None:
        self._epoch = ""

    async def by_schedule(self, notice: Notice, number: int) -> Told:
        """Make the nth attempt, and return what stands in the log of it. Raises Crowded and JournalUnavailable."""
        outcome = await self._attempt(notice)
        step = next_step(notice.fact.subject, number, outcome, self._delays_s, self._draw())
        return await self.record(notice.place, step)

    async def once_more(self, notice: Notice, number: int) -> Told:
        """Make the attempt that a request asked for, as `by_schedule`."""
        outcome = await self._attempt(notice)
        return await self.record(
            notice.place, Redelivered(fact=notice.fact.subject, number=number, attempt=outcome.attempt)
        )

    async def record(self, place: DeliveryKey, told: Told) -> Told:
        """Write a record where none stands; returns the one that stands there then. Raises JournalUnavailable."""
        appended = await self._journal.write(place.subject(told), encoded(told))
        if isinstance(told, DeliveryEnded) and appended.created:
            self.counts[told.ending] += 1
        return decoded(appended.record.data)

    async def _attempt(self, notice: Notice) -> AttemptOutcome:
        if self.draining.is_set():
            # Whoever takes it next is another process.
            raise Crowded(0)
        try:
            target = self._rules.check(notice.webhook.url)
        except UnfitUrl as exc:
            # Its URL was fit when it was accepted: the operator has taken something back since.
            fault = AttemptFault(code="url_refused", detail=f"{exc}.")
            return AttemptOutcome(Attempt(at=self._clock.now(), duration_ms=0, problem=fault))
        async with self._lanes.place(notice.tenant, target) as lane:
            if not self._epoch:
                self._epoch = (await self._journal.state()).epoch
            body = payload(notice.fact, self._epoch, notice.webhook)
            headers = self._signer.headers(notice.tenant, notice.place.delivery_id, body, self._clock.now())
            outcome = await self._poster.post(notice.webhook.url, headers, body)
            answered = outcome.attempt.status_code is not None
            lane.note(answered=answered, duration_s=outcome.attempt.duration_ms / 1_000)
        attempt = outcome.attempt
        self.counts["succeeded" if attempt.succeeded else "failed"] += 1
        log.info(
            "webhook_attempt",
            tenant=notice.tenant,
            delivery_id=notice.place.delivery_id,
            target=str(target),
            status=attempt.status_code,
            problem=attempt.problem and attempt.problem.code,
            duration_ms=attempt.duration_ms,
        )
        return outcome
