"""The operations on one deliberation, behind every façade: accept it, load it, await its end, cancel it, delete it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal

import structlog
from pydantic import ValidationError

from app.admission.backlog import Key
from app.admission.spends import DailySpends
from app.api.headers import Submission
from app.api.problems import NotReady, StillLive, ValidationFailed, body_fault
from app.api.requests import EVIDENCE_TOKENS_MAX, DeliberationRequest, EvidenceRequest, evidence_tokens
from app.api.schemas import FieldProblem, Spend
from app.archive.database.store import Archived, Store
from app.catalog.index import Catalog
from app.deliberation.decider import StrategyDefinition
from app.deliberation.errors import (
    ArchiveUnavailable,
    DeliberationDeleted,
    Gone,
    IdempotencyConflict,
    InvalidToken,
    JournalUnavailable,
    NotFound,
    QueueFull,
)
from app.deliberation.facts import Accepted, CancelledBy, CancelRequested, Deleted, decode, is_acceptance, prefix
from app.deliberation.fold import State, begin, state_of
from app.deliberation.ports import Appended, Clock, Journal, Record
from app.deliberation.quote import Quote, QuoteHistory, quote
from app.deliberation.roles import Role
from app.deliberation.specification import BYTES_PER_TOKEN, Evidence, FilesWorkspace, GitWorkspace, WorkspaceFile
from app.lifecycle.context import EVIDENCE_ID, ContextHydrator
from app.lifecycle.context_fit import ContextFit
from app.lifecycle.files import Files
from app.lifecycle.specify import Identity, accepted, body_sha256, deliberation_id, issued_at, specification
from app.workspace.git import is_installed
from app.workspace.repositories import NO_REPOSITORIES, CommitLookup, RepositoryRefused

# Even beside much evidence, the beginning of a context.
EVIDENCE_BYTES_MIN = 600
SWEEP_S = 60.0
# Deletions of one tenant that run at once.
DELETIONS_AT_ONCE = 2
HISTORY = timedelta(days=30)
# A process that had read the end before the deletion has announced it within this time.
YOUNG = timedelta(seconds=2 * SWEEP_S)
SubmissionOutcome = Literal["accepted", "replayed", "refused"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A deliberation, and the incarnation of the log that its facts come from; empty before the log was read."""

    state: State
    epoch: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The facts of a deliberation, from its acceptance on, and the incarnation of the log that they come from."""

    records: Sequence[Record]
    epoch: str


@dataclass(frozen=True, slots=True)
class Deliberations:
    """Operations on deliberations; each raises JournalUnavailable while the log cannot be reached.

    `kept_s` returns a tenant's retention, `timeout_s` is the default deadline, `outcomes` counts submissions.
    `tenant_clusters` has the label of each tenant that is bound to one.
    """

    journal: Journal
    clock: Clock
    catalog: Catalog
    roles: Mapping[str, Role]
    strategies: Mapping[str, StrategyDefinition]
    kept_s: Callable[[str], int]
    timeout_s: int
    draining: Callable[[], bool]
    files: Files
    context_fit: ContextFit
    archive: Store | None = None
    context: ContextHydrator | None = None
    spends: DailySpends | None = None
    tenant_clusters: Mapping[str, str] = field(default_factory=dict[str, str])
    repositories: CommitLookup = field(default_factory=lambda: CommitLookup(NO_REPOSITORIES))
    outcomes: Counter[SubmissionOutcome] = field(default_factory=Counter[SubmissionOutcome])
    deleting: dict[str, asyncio.Semaphore] = field(default_factory=dict[str, asyncio.Semaphore])
    quoting: asyncio.Lock = field(default_factory=asyncio.Lock)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    quoting_of: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock])

    async def find(self, tenant: str, deliberation_id: str) -> Found:
        """Returns the deliberation as `stored` found it; raises the same."""
        stored = await self.stored(tenant, deliberation_id)
        return Found(self.state_from(tenant, deliberation_id, stored.records), stored.epoch)

    async def stored(self, tenant: str, deliberation_id: str) -> Stored:
        """Returns the facts in the log, else in the archive, which a tombstone in the log hides.

        Raises NotFound and Gone, and ArchiveUnavailable when only the archive could have it.
        """
        records = await self.journal.facts(tenant, deliberation_id)
        try:
            self.check_present(tenant, deliberation_id, records)
            return Stored(records, self.catalog.epoch)
        except DeliberationDeleted:
            raise
        except (NotFound, Gone):
            archived = await self.archived(tenant, deliberation_id)
            if archived is None:
                raise
        self.check_present(tenant, deliberation_id, archived.records)
        return Stored(archived.records, archived.epoch)

    async def archived(self, tenant: str, deliberation_id: str) -> Archived | None:
        """Returns the archived deliberation; raises ArchiveUnavailable, and Gone after deletion or retention."""
        archived = None if self.archive is None else await self.archive.read(tenant, deliberation_id)
        if archived is not None and self._expired(tenant, decode(archived.records[0].data).ts):
            raise Gone(f"Deliberation {deliberation_id} is past its retention.")
        return archived

    def _expired(self, tenant: str, accepted_at: datetime) -> bool:
        return accepted_at + timedelta(seconds=self.kept_s(tenant)) < self.clock.now()

    async def load(self, tenant: str, deliberation_id: str) -> State:
        """The state for a client that waited. Each pass of the loop serves one, and takes new requests between them."""
        records = await self.journal.facts(tenant, deliberation_id)
        async with self.loading:
            await asyncio.sleep(0)
        return self.state_from(tenant, deliberation_id, records)

    def state_from(self, tenant: str, deliberation_id: str, records: Sequence[Record]) -> State:
        self.check_present(tenant, deliberation_id, records)
        state = state_of(records)
        assert state is not None, "check_present found an acceptance"
        return state

    def check_present(self, tenant: str, deliberation_id: str, records: Sequence[Record]) -> None:
        """Raise DeliberationDeleted beside a tombstone, and Gone without the acceptance.

        Without facts the time in the id decides: Gone past retention, otherwise NotFound.
        """
        if not records:
            issued = issued_at(deliberation_id)
            if issued is not None and self._expired(tenant, issued):
                raise Gone(f"Whatever was accepted as {deliberation_id} is past its retention.")
            raise NotFound(f"There is no deliberation {deliberation_id}.")
        if any(record.tokens[-1] == "deleted" for record in records):
            raise DeliberationDeleted(f"Deliberation {deliberation_id} has been deleted.")
        if not is_acceptance(records[0].subject):
            raise Gone(f"The facts of deliberation {deliberation_id} are past their retention.")

    async def wait_until_ended(self, tenant: str, state: State, wait_s: int | None) -> State:
        """The state once it has ended, or the current one after `wait_s` or when this process drains."""
        if state.ended or not wait_s:
            return state
        try:
            await self.ended(tenant, state.deliberation_id, wait_s)
            return await self.load(tenant, state.deliberation_id)
        except JournalUnavailable:
            return state

    async def ended(self, tenant: str, deliberation_id: str, timeout_s: float) -> bool:
        # A deliberation that is not in memory may have ended long ago.
        if self.catalog.find(tenant, deliberation_id) is None:
            if await self.journal.last([f"{prefix(tenant, deliberation_id)}.end"]):
                return True
        return await self.catalog.ended(tenant, deliberation_id, timeout_s)

    async def cancel(self, tenant: str, state: State, reason: str | None, by: CancelledBy = "client") -> State:
        """The state with a request to cancel. Idempotent: the first reason stays, and an ended state is unchanged."""
        if state.cancel is not None or state.ended:
            return state
        fact = CancelRequested(deliberation_id=state.deliberation_id, ts=self.clock.now(), by=by, reason=reason or None)
        await self.journal.append(tenant, fact)
        return await self.load(tenant, state.deliberation_id)

    async def delete(self, tenant: str, deliberation_id: str) -> None:
        """Leave a tombstone in log and archive, then remove the rest. Idempotent.

        The tombstone comes before all that is read here, so that a deliberation never reads half removed, and after
        the announcement, which only the end leads to. Raises StillLive before the end.
        """
        # Each message is overwritten by a request of its own: many deletions would keep the log from all tenants.
        async with self.deleting.setdefault(tenant, asyncio.Semaphore(DELETIONS_AT_ONCE)):
            records = await self.journal.facts(tenant, deliberation_id)
            if not any(record.tokens[-1] == "deleted" for record in records):
                await self._mark_deleted(tenant, (await self.find(tenant, deliberation_id)).state)
            await self.journal.purge(tenant, deliberation_id)
            await self.files.release(tenant, deliberation_id)
        if self.archive is not None:
            await self.archive.delete(tenant, deliberation_id, self.clock.now())

    async def _mark_deleted(self, tenant: str, state: State) -> None:
        id = state.deliberation_id
        if state.end is None:
            raise StillLive(f"Deliberation {id} is {state.status}; cancel it first, or await its end.")
        await self.journal.erase_announcement(tenant, id, state.end.ts)
        appended = await self.journal.append(tenant, Deleted(deliberation_id=id, ts=self.clock.now()))
        self.catalog.apply(appended.record)

    async def accept(
        self, tenant: str, request: DeliberationRequest, submission: Submission, identity: Identity | None = None
    ) -> tuple[State, bool]:
        """Returns the state at acceptance, stored durably, and whether an earlier request was accepted.

        Raises NotReady, QueueFull, IdempotencyConflict, ValidationFailed for another label than the tenant's, and Gone
        for the key of a removed deliberation. With an
        `identity` it raises ArchiveUnavailable, when only the archive could know an earlier acceptance.
        """
        key = submission.idempotency_key
        self.catalog.require_caught_up()
        repeatable = identity is not None or key is not None
        same = identity or Identity(deliberation_id(tenant, key, self.clock.now()), body_sha256(request))
        if repeatable:
            # A full queue must not refuse a retry of a request that it holds.
            stored = await self.journal.last([f"{prefix(tenant, same.id)}.*"])
            for record in stored:
                if is_acceptance(record.subject):
                    self.outcomes["replayed"] += 1
                    return _accepted_state(_acceptance(record, same), submission), True
            try:
                await self._check_unused(tenant, same.id)
            except ArchiveUnavailable:
                # A plan is announced again; a request with a key goes on without the archive.
                if identity is not None:
                    raise
        try:
            appended = await self._append_acceptance(tenant, same, request, submission, repeatable=repeatable)
        except QueueFull:
            self.outcomes["refused"] += 1
            raise
        self.catalog.apply(appended.record)
        self.outcomes["accepted" if appended.created else "replayed"] += 1
        return _accepted_state(_acceptance(appended.record, same), submission), not appended.created

    async def _verdicts(self, tenant: str, request: DeliberationRequest) -> list[Evidence]:
        """Returns the verdicts that a request follows; raises ValidationFailed."""
        if not request.follows:
            return []
        verdicts, faults = list[Evidence](), list[FieldProblem]()
        for place, id in enumerate(request.follows):
            try:
                state = (await self.find(tenant, id)).state
            except (NotFound, Gone) as unknown:
                remedy = "Name an ended deliberation of yours."
                faults.append(body_fault(f"/follows/{place}", "unknown_deliberation", str(unknown), remedy))
                continue
            verdict = None if state.end is None else state.end.verdict
            if verdict is None or verdict.content is None:
                detail = f"Deliberation {id} is {state.status} and has no verdict to follow"
                remedy = "Await its end, or name another." if state.end is None else "Name another."
                faults.append(body_fault(f"/follows/{place}", "no_verdict", detail, remedy))
                continue
            title = f"Verdict of an earlier council on: {state.specification.task}"
            verdicts.append(Evidence(id=id, title=title[:200], text=verdict.content))
        if faults:
            raise ValidationFailed(faults)
        return verdicts

    async def _workspace(self, tenant: str, request: DeliberationRequest) -> GitWorkspace | FilesWorkspace | None:
        """Returns the request's files, or its repository with the commit of its ref; raises ValidationFailed."""
        asked = request.workspace
        if asked is None:
            return None
        if not is_installed():
            detail, remedy = "Git is not installed here", "Leave workspace out, or have the operator install git."
            field = "/workspace/files" if asked.git is None else "/workspace/git"
            raise ValidationFailed([body_fault(field, "no_git", detail, remedy)])
        if asked.git is None:
            return FilesWorkspace(files=tuple(WorkspaceFile(**file.model_dump()) for file in asked.files or ()))
        ref = asked.ref or "HEAD"
        try:
            commit = await self.repositories.commit_of(asked.git, ref, tenant)
        except RepositoryRefused as refused:
            fault = body_fault(f"/workspace/{refused.field}", refused.code, refused.detail, refused.remedy)
            raise ValidationFailed([fault]) from refused
        return GitWorkspace(git=asked.git, ref=ref, commit=commit)

    async def _check_unused(self, tenant: str, id: str) -> None:
        try:
            archived = await self.archived(tenant, id)
        except Gone:
            raise Gone("What this Idempotency-Key started has been deleted; use a new key.") from None
        if archived is not None and not await self.journal.facts(tenant, id):
            raise Gone("What this Idempotency-Key started has left the log; use a new key.")

    async def quote(self, tenant: str, request: DeliberationRequest, *, read: bool) -> Quote:
        """The price of a request, which starts nothing. A caller that may `read` gets it by the archive's history.

        The context service is not asked: its text counts at its longest. Raises ValidationFailed as `accept` does.
        """
        added = await self._verdicts(tenant, request)
        if self.context is not None and request.metadata.get("story_id"):
            text = "x" * BYTES_PER_TOKEN * _context_tokens(request, added)
            added.append(Evidence(id=EVIDENCE_ID, title="", text=text))
        timeout_s = request.constraints.timeout_seconds or self.timeout_s
        workspace = await self._workspace(tenant, request)
        files = await self.files.named(tenant, request)
        asked = specification(
            request, self.roles, self.strategies, timeout_s=timeout_s, files=files, added=added, workspace=workspace
        )
        history = QuoteHistory() if read else None
        if read and self.archive is not None:
            today = self.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
            with suppress(ArchiveUnavailable):
                history = await self.archive.history(tenant, asked, today - HISTORY)
        # One at a time in a thread: a large council takes up to a second of the processor. A tenant waits for its own
        # quotes first, so that all tenants take turns.
        async with self.quoting_of.setdefault(tenant, asyncio.Lock()), self.quoting:
            return await asyncio.to_thread(quote, asked, self.strategies[asked.strategy], self.roles, history)

    def spend(self, tenant: str) -> Spend | None:
        """The spend of a tenant today; None without a limit. Raises JournalUnavailable before the log was read."""
        return None if self.spends is None else self.spends.view(tenant, self._ceilings(tenant))

    def _ceilings(self, tenant: str) -> Mapping[str, Decimal]:
        return {
            deliberation.id: deliberation.max_cost
            for deliberation in self.catalog.running(tenant)
            if deliberation.max_cost is not None
        }

    def _spend_place(self, key: Key, max_cost: Decimal | None) -> AbstractContextManager[None]:
        if self.spends is None:
            return nullcontext()
        return self.spends.place(key, max_cost, self._ceilings(key[0]))

    def _cluster(self, tenant: str, request: DeliberationRequest) -> str | None:
        """The label of the clusters that may do it: the tenant's, else the request's; raises ValidationFailed."""
        bound = self.tenant_clusters.get(tenant)
        if bound is not None and request.cluster not in (None, bound):
            detail, remedy = (
                f"This tenant's deliberations are for the clusters {bound}",
                f"Give {bound}, or leave it out.",
            )
            raise ValidationFailed([body_fault("/cluster", "foreign_cluster", detail, remedy)])
        return bound or request.cluster

    async def _append_acceptance(
        self, tenant: str, same: Identity, request: DeliberationRequest, submission: Submission, *, repeatable: bool
    ) -> Appended:
        """The acceptance in the log, this one or an earlier one. Raises NotReady while draining, and QueueFull."""
        if self.draining():
            raise NotReady("This gateway is stopping. Send the request again: another one accepts it.")
        backlog, cluster = self.catalog.backlog, self._cluster(tenant, request)
        roles = {agent.role for agent in request.roster}
        timeout_s = request.constraints.timeout_seconds or self.timeout_s
        # Checked before the specification is built, so that a refusal is cheap.
        key = (tenant, same.id)
        repeated = key if repeatable else None
        priority = request.priority
        backlog.check(roles, timeout_s, key=repeated, tenant=tenant, priority=priority, cluster=cluster)
        if self.spends is not None:
            self.spends.check(key, request.budget.max_cost, self._ceilings(tenant))
        added, context = await self._verdicts(tenant, request), None
        workspace = await self._workspace(tenant, request)
        if self.context is not None:
            context, known = await self.context.ask(tenant, same.id, request, _context_tokens(request, added))
            added += [] if known is None else [known]
        specified = specification(
            request,
            self.roles,
            self.strategies,
            timeout_s=timeout_s,
            files=await self.files.named(tenant, request),
            added=added,
            context=context,
            cluster=cluster,
            workspace=workspace,
        )
        specified = await self.files.with_long_texts_stored(tenant, specified)
        await self.context_fit.check(tenant, specified)
        await self.files.hold(tenant, same.id, specified.inputs)
        fact = accepted(specified, same, submission, now=self.clock.now())
        spend_place = self._spend_place(key, request.budget.max_cost)
        with backlog.place(key, roles, timeout_s, priority, cluster), spend_place:
            return await self.journal.append(tenant, fact)


def _context_tokens(request: DeliberationRequest, added: Iterable[Evidence]) -> int:
    return max(EVIDENCE_BYTES_MIN // BYTES_PER_TOKEN, _tokens_left([*request.evidence, *added]))


def _tokens_left(evidence: Iterable[EvidenceRequest | Evidence]) -> int:
    return EVIDENCE_TOKENS_MAX - sum(
        evidence_tokens(document.title + (document.text or "") + (document.source or "")) for document in evidence
    )


def _acceptance(record: Record, same: Identity) -> State:
    fact = decode(record.data)
    if not isinstance(fact, Accepted):
        why = "has been deleted" if isinstance(fact, Deleted) else "is past its retention"
        raise Gone(f"What this Idempotency-Key started {why}; use a new key.")
    if fact.body_sha256 != same.sha256:
        raise IdempotencyConflict("This Idempotency-Key was used before with another body.")
    return begin(fact, record.sequence)


def _accepted_state(state: State, submission: Submission) -> State:
    if submission.on_acceptance is not None:
        submission.on_acceptance(state.deliberation_id, state.accepted.traceparent)
    return state


async def sweep(journal: Journal) -> None:
    """Remove deleted deliberations once more, as a crash may interrupt a deletion or a process write after it."""
    epoch, after = "", 0
    while True:
        await asyncio.sleep(SWEEP_S)
        with suppress(JournalUnavailable):
            current = (await journal.state()).epoch
            after = await sweep_once(journal, after if current == epoch else 0)
            epoch = current


async def sweep_once(journal: Journal, after: int) -> int:
    async for tombstone in journal.read("deliberations.*.*.deleted", after):
        after = tombstone.sequence
        _, tenant, deliberation_id, _ = tombstone.tokens
        try:
            subject, deleted_at = prefix(tenant, deliberation_id), decode(tombstone.data).ts
        except (ValidationError, InvalidToken):
            log.warning("fact_undecodable", subject=tombstone.subject, sequence=after)
            continue
        incomplete = len(await journal.last([f"{subject}.>"])) > 1
        if incomplete:
            log.info("deletion_completed", deliberation_id=deliberation_id)
        # Without a fact left, an outcome or the end may still have been announced just after the removal.
        if incomplete or datetime.now(UTC) - deleted_at < YOUNG:
            await journal.purge(tenant, deliberation_id)
    return after
