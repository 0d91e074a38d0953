"""Makes one attempt at a delivery, decides by the retry schedule what follows, and records the outcome."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from app.api.schemas import dump
from app.api.webhook_payloads import delivery_id, payload
from app.api.webhook_targets import Rules, Target, UnfitUrl
from app.deliberation.facts import Accepted
from app.deliberation.ports import Journal, Record
from app.deliberation.specification import Webhook
from app.observability import conventions as names
from app.observability.trace_context import SpanRef, new_span_id
from app.observability.traces import RecordedSpan, Tracer, sampled_trace
from app.webhooks.attempts import (
    Attempt,
    AttemptFailed,
    AttemptProblem,
    DeliveryEnded,
    DeliveryKey,
    DeliveryRecord,
    Redelivered,
    decoded,
)
from app.webhooks.sender.bulkheads import AttemptDeferred, Bulkheads
from app.webhooks.sender.posting import AttemptOutcome, Poster
from app.webhooks.signatures import Signer

DELAYS_S: tuple[float, ...] = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds from each failed attempt to the next, 76 hours in all: the example of Standard Webhooks 1.0.0."""
JITTER_SHARE = 0.2
RETRY_AFTER_MAX_S = 86_400
GONE = 410

log = structlog.get_logger(__name__)


def next_step(
    fact: str, number: int, outcome: AttemptOutcome, delays_s: Sequence[float], draw: float
) -> AttemptFailed | DeliveryEnded:
    """Returns the record of the nth scheduled attempt. `draw` in [0, 1) adds up to a fifth, so that retries spread.

    Retry-After may lengthen the delay, never shorten it.
    """
    attempt = outcome.attempt
    if attempt.succeeded:
        return DeliveryEnded(fact=fact, ending="delivered", attempt=attempt)
    if attempt.status_code == GONE:
        return DeliveryEnded(fact=fact, ending="stopped", attempt=attempt)
    if number > len(delays_s):
        return DeliveryEnded(fact=fact, ending="exhausted", attempt=attempt)
    delay_s = max(delays_s[number - 1], min(outcome.retry_after_s or 0, RETRY_AFTER_MAX_S))
    ended_at = attempt.at + timedelta(milliseconds=attempt.duration_ms)
    due_at = ended_at + timedelta(seconds=delay_s * (1 + JITTER_SHARE * draw))
    return AttemptFailed(fact=fact, number=number, attempt=attempt, next_attempt_at=due_at)


def _key(fact: Record) -> DeliveryKey:
    return DeliveryKey(fact.tokens[1], fact.tokens[2], delivery_id(fact))


@dataclass(eq=False)
class DeliveryWorker:
    """Makes attempts within the bulkheads, and records outcomes; none begins while `draining` is set."""

    journal: Journal
    poster: Poster
    bulkheads: Bulkheads
    signer: Signer
    rules: Rules
    delays_s: Sequence[float]
    tracer: Tracer | None = None
    counts: Counter[str] = field(default_factory=Counter[str])
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    _epoch: str = ""

    def __post_init__(self) -> None:
        self.journal.on_reconnect(self._forget_epoch)

    def _forget_epoch(self) -> None:
        self._epoch = ""

    async def attempt_scheduled(
        self, accepted: Accepted, webhook: Webhook, fact: Record, number: int
    ) -> DeliveryRecord:
        """Make the nth scheduled attempt; returns the stored record. Raises AttemptDeferred and JournalUnavailable."""
        outcome = await self._attempt(accepted, webhook, fact)
        step = next_step(fact.subject, number, outcome, self.delays_s, random.random())
        return await self.record(_key(fact), step)

    async def redeliver(self, accepted: Accepted, webhook: Webhook, fact: Record, number: int) -> None:
        outcome = await self._attempt(accepted, webhook, fact)
        await self.record(_key(fact), Redelivered(fact=fact.subject, number=number, attempt=outcome.attempt))

    async def record(self, key: DeliveryKey, record: DeliveryRecord) -> DeliveryRecord:
        """Store a record unless its subject has a record; returns the stored record. Raises JournalUnavailable."""
        appended = await self.journal.write(key.subject(record), dump(record))
        if isinstance(record, DeliveryEnded) and appended.created:
            self.counts[record.ending] += 1
        return decoded(appended.record.data)

    async def _attempt(self, accepted: Accepted, webhook: Webhook, fact: Record) -> AttemptOutcome:
        if self.draining.is_set():
            # Returned to the queue at once, for another process.
            raise AttemptDeferred(0)
        try:
            target = self.rules.check(webhook.url)
        except UnfitUrl as exc:
            # The URL was valid at acceptance; the operator has since restricted the rules.
            problem = AttemptProblem(code="url_refused", detail=f"{exc}.")
            return AttemptOutcome(Attempt(at=datetime.now(UTC), duration_ms=0, problem=problem))
        key = _key(fact)
        async with self.bulkheads.slot(key.tenant, target) as bulkhead:
            if not self._epoch:
                self._epoch = (await self.journal.state()).epoch
            body = payload(fact, self._epoch, webhook)
            headers = self.signer.headers(key.tenant, key.delivery_id, body, datetime.now(UTC))
            outcome = await self.poster.post(webhook.url, headers, body)
            attempt = outcome.attempt
            bulkhead.note(answered=attempt.status_code is not None, duration_s=attempt.duration_ms / 1_000)
        self.counts["succeeded" if attempt.succeeded else "failed"] += 1
        self._trace(accepted, key, target, attempt)
        log.info(
            "webhook_attempt",
            tenant=key.tenant,
            delivery_id=key.delivery_id,
            target=str(target),
            status=attempt.status_code,
            problem=attempt.problem and attempt.problem.code,
            duration_ms=attempt.duration_ms,
        )
        return outcome

    def _trace(self, accepted: Accepted, key: DeliveryKey, target: Target, attempt: Attempt) -> None:
        """Record an attempt below its workflow, which the receiver need not know: no header names the span."""
        trace = sampled_trace(self.tracer, accepted.deliberation_id, accepted.traceparent)
        if self.tracer is None or trace is None:
            return
        span = RecordedSpan(
            name=names.WEBHOOK,
            ref=SpanRef(trace.trace_id, new_span_id()),
            parent_id=trace.workflow.span_id,
            began_at=attempt.at,
            ended_at=attempt.at + timedelta(milliseconds=attempt.duration_ms),
            kind="client",
            attributes={
                names.HTTP_REQUEST_METHOD: "POST",
                names.HTTP_RESPONSE_STATUS_CODE: attempt.status_code,
                names.SERVER_ADDRESS: target.host,
                names.SERVER_PORT: target.port,
                names.DELIVERY_ID: key.delivery_id,
                names.TENANT: key.tenant,
            },
            error=attempt.problem and attempt.problem.code,
        )
        self.tracer.record(span)
