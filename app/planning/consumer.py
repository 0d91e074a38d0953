"""Works off the events of the planning service: starts plans, keeps transitions, rejects what cannot be read."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import structlog
from pydantic import AwareDatetime, Field

from app.api.headers import Submission
from app.api.problems import PROBLEM_DOCUMENTS, NotReady, answer_to, problem
from app.api.request_body import parsed_body
from app.api.schemas import Problem, Resource, dump
from app.deliberation.errors import ArchiveUnavailable, DeliberationError, JournalUnavailable, QueueFull
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.queue_worker import ItemDeferred, QueueWorker
from app.log.stream_settings import PLANNING_CONSUMER, PLANNING_STREAM
from app.planning.events import PlanRequest, StoryTransition
from app.planning.plans import Plans, keep_transition

APPROVED = "planning.plan.approved"
REJECTED = "planning.plan.rejected"
RECEIVED_CHARS_MAX = 4_096
PLAN_BYTES_MAX = 262_144
ARCHIVE_RETRY_S = 5.0
# A tenant that has spent what it may in a day waits until midnight, but an operator may raise the limit before.
DELAY_MAX_S = 300

log = structlog.get_logger(__name__)


class PlanRejected(Resource):
    """The answer to an event that starts nothing."""

    subject: str = Field(description="The subject of the event")
    sequence: int = Field(description="Its sequence in PLANNING_EVENTS; a rejection with a known one is a repetition")
    rejected_at: AwareDatetime
    plan_id: str | None = Field(description="As given; null where it cannot be read, or the event is too large")
    story_id: str | None
    problem: Problem
    received: str = Field(description=f"The beginning of the event, at most {RECEIVED_CHARS_MAX} characters")


class PlanConsumer:
    """`counts` has the number of events by outcome: `started`, `repeated`, `delayed`, `rejected`, `transitions`."""

    def __init__(self, journal: JetStreamJournal, plans: Plans, tenants: Sequence[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._journal = journal
        self._plans = plans
        self._tenants = tenants

    async def run(self) -> None:
        """Take events until cancelled; the one in hand is given back then.

        One gateway takes all events, one after the other. So a plan finds the transitions announced before it.
        """
        slots = 1
        await QueueWorker(
            self._journal,
            PLANNING_STREAM,
            PLANNING_CONSUMER,
            slots,
            lambda item: self.on_event(item.record),
            signed=False,
            exclusive=True,
        ).run()

    async def on_event(self, event: Record) -> None:
        """Work off one event. Raises JournalUnavailable; ItemDeferred while the plan must wait."""
        try:
            await (self._approve(event) if event.subject == APPROVED else self._transit(event))
        except QueueFull as full:
            self.counts["delayed"] += 1
            delay_s = min(full.retry_after_s, DELAY_MAX_S)
            log.info("plan_delayed", sequence=event.sequence, delay_s=delay_s, reason=str(full))
            raise ItemDeferred(delay_s) from full
        except ArchiveUnavailable as exc:
            self.counts["delayed"] += 1
            log.warning("plan_delayed", sequence=event.sequence, delay_s=ARCHIVE_RETRY_S, reason=str(exc))
            raise ItemDeferred(ARCHIVE_RETRY_S) from exc
        except NotReady as stopping:
            raise ItemDeferred(0) from stopping
        except JournalUnavailable:
            raise
        except DeliberationError as refused:
            await self._reject(event, refused)

    async def _approve(self, event: Record) -> None:
        context = {"roles": self._plans.deliberations.roles, "tenants": self._tenants}
        request = parsed_body(event.data, PlanRequest, context, PLAN_BYTES_MAX)
        tenant = request.tenant or self._tenants[0]
        plan, replayed = await self._plans.approve(tenant, request, Submission())
        self.counts["repeated" if replayed else "started"] += 1
        log.info("plan_approved", plan_id=plan.id, tenant=tenant, roles=len(plan.roles), repeated=replayed)

    async def _transit(self, event: Record) -> None:
        transition = parsed_body(event.data, StoryTransition, {"tenants": self._tenants}, PLAN_BYTES_MAX)
        await keep_transition(self._journal, transition.tenant or self._tenants[0], transition, event.sequence)
        self.counts["transitions"] += 1

    async def _reject(self, event: Record, refused: DeliberationError) -> None:
        document = problem(answer_to(refused, PROBLEM_DOCUMENTS, ""), event.subject, "")
        await self._journal.publish(REJECTED, _rejection(event, document), f"rejected.{event.sequence}")
        self.counts["rejected"] += 1
        # Pointers and codes alone: the event is not ours to log.
        faults = [f"{fault.pointer} {fault.code}" for fault in document.errors]
        log.warning("plan_rejected", subject=event.subject, sequence=event.sequence, code=document.code, faults=faults)


def _rejection(event: Record, document: Problem) -> bytes:
    rejected = PlanRejected(
        subject=event.subject,
        sequence=event.sequence,
        rejected_at=datetime.now(UTC),
        plan_id=None,
        story_id=None,
        problem=document,
        received=event.data[: 4 * RECEIVED_CHARS_MAX].decode(errors="replace")[:RECEIVED_CHARS_MAX],
    )
    # The server accepts messages above an event's bound, and parsing one would block all requests.
    if len(event.data) > PLAN_BYTES_MAX:
        return dump(rejected)
    try:
        return dump(rejected.model_copy(update=_ids(event.data)))
    except (ValueError, RecursionError):
        return dump(rejected)


def _ids(data: bytes) -> dict[str, str | None]:
    read: Any = json.loads(data)
    fields = cast("dict[str, Any]", read) if isinstance(read, dict) else dict[str, Any]()
    ids = {name: fields.get(name) for name in ("plan_id", "story_id")}
    return {
        name: value[:512].encode(errors="replace").decode() if isinstance(value, str) else None
        for name, value in ids.items()
    }
