"""The operations on one deliberation, behind every façade: accept it, load it, await its end, cancel it, delete it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from app.api.problems import NotReady, StillLive
from app.api.requests import DeliberationRequest, Submission
from app.catalog.index import NOT_READ, Catalog
from app.catalog.projection import state_of
from app.deliberation.engine import StrategyDefinition
from app.deliberation.errors import Gone, IdempotencyConflict, JournalUnavailable, NotFound, QueueFull
from app.deliberation.facts import Accepted, CancelRequested, Deleted, decode
from app.deliberation.fold import State, begin
from app.deliberation.ports import Appended, Clock, Journal, Record
from app.deliberation.roles import Role
from app.lifecycle.specify import accepted, body_sha256, deliberation_id, issued_at, specification

SubmissionOutcome = Literal["accepted", "replayed", "refused"]


@dataclass(frozen=True, slots=True)
class Deliberations:
    """Operations on deliberations; each raises JournalUnavailable while the log cannot be reached.

    `retention_s` is the age at which the log removes facts, `timeout_s` the deadline where a request names none.
    `draining` returns whether this process is stopping. `outcomes` counts the submissions to this process.
    """

    journal: Journal
    clock: Clock
    catalog: Catalog
    roles: Mapping[str, Role]
    strategies: Mapping[str, StrategyDefinition]
    retention_s: int
    timeout_s: int
    draining: Callable[[], bool]
    outcomes: Counter[SubmissionOutcome] = field(default_factory=Counter[SubmissionOutcome])

    async def load(self, tenant: str, deliberation_id: str) -> State:
        """The state that the log holds; raises NotFound and Gone, see `check_present`."""
        return self.state_from(deliberation_id, await self.journal.facts(tenant, deliberation_id))

    def state_from(self, deliberation_id: str, records: Sequence[Record]) -> State:
        """The fold of a deliberation's facts; raises what `check_present` raises."""
        self.check_present(deliberation_id, records)
        state = state_of(records)
        assert state is not None, "check_present found an acceptance"
        return state

    def check_present(self, deliberation_id: str, records: Sequence[Record]) -> None:
        """Raise unless these facts are a deliberation's, from its acceptance on, without a tombstone.

        Raises Gone when it was deleted or retention has begun to remove its facts. Without facts the time in the id
        decides: past retention it raises Gone, otherwise NotFound.
        """
        if not records:
            issued = issued_at(deliberation_id)
            if issued is not None and issued + timedelta(seconds=self.retention_s) < self.clock.now():
                raise Gone(f"Whatever was accepted as {deliberation_id} is past its retention.")
            raise NotFound(f"There is no deliberation {deliberation_id}.")
        if any(record.tokens[-1] == "deleted" for record in records):
            raise Gone(f"Deliberation {deliberation_id} has been deleted.")
        if records[0].tokens[-1] != "accepted":
            raise Gone(f"The facts of deliberation {deliberation_id} are past their retention.")

    async def wait_until_ended(self, tenant: str, state: State, wait_s: int | None) -> State:
        """The state once it has ended, or the current one after `wait_s` or when this process drains."""
        if state.ended or not wait_s:
            return state
        await self.catalog.ended(tenant, state.deliberation_id, wait_s)
        try:
            return await self.load(tenant, state.deliberation_id)
        except JournalUnavailable:
            return state

    async def cancel(self, tenant: str, state: State, reason: str | None) -> State:
        """The state with a request to cancel. Idempotent: the first reason stays, and an ended state is unchanged."""
        if state.cancel is not None or state.ended:
            return state
        fact = CancelRequested(deliberation_id=state.deliberation_id, ts=self.clock.now(), reason=reason)
        await self.journal.append(tenant, fact)
        return await self.load(tenant, state.deliberation_id)

    async def delete(self, tenant: str, deliberation_id: str) -> None:
        """Remove every fact of an ended deliberation and leave a tombstone. Idempotent.

        The tombstone comes first, so that a deliberation never reads half removed. `sweep` removes facts that a crash
        leaves beside it. Raises StillLive before the end, and what `check_present` raises.
        """
        records = await self.journal.facts(tenant, deliberation_id)
        if not any(record.tokens[-1] == "deleted" for record in records):
            state = self.state_from(deliberation_id, records)
            if not state.ended:
                raise StillLive(f"Deliberation {deliberation_id} is {state.status}; cancel it first, or await its end.")
            tombstone = Deleted(deliberation_id=deliberation_id, ts=self.clock.now())
            appended = await self.journal.append(tenant, tombstone)
            self.catalog.apply(appended.record)
        await self.journal.purge(tenant, deliberation_id)

    async def accept(self, tenant: str, request: DeliberationRequest, submission: Submission) -> tuple[State, bool]:
        """The state at acceptance, and whether an earlier request was accepted. Durable when this returns.

        An Idempotency-Key determines the id. Raises NotReady, QueueFull, IdempotencyConflict, and Gone for the key of
        a deliberation that was removed.
        """
        key = submission.idempotency_key
        if not self.catalog.backlog_known:
            raise JournalUnavailable(NOT_READ)
        id, sha256 = deliberation_id(tenant, key, self.clock.now()), body_sha256(request)
        if key is not None and (self.catalog.knows(tenant, id) or not self.catalog.caught_up):
            # A full queue must not refuse a retry of a request that it holds.
            records = await self.journal.facts(tenant, id)
            if records and records[0].tokens[-1] == "accepted":
                self.outcomes["replayed"] += 1
                return _acceptance(records[0], sha256), True
        try:
            appended = await self._append_acceptance(tenant, id, request, submission)
        except QueueFull:
            self.outcomes["refused"] += 1
            raise
        self.catalog.apply(appended.record)
        self.outcomes["accepted" if appended.created else "replayed"] += 1
        return _acceptance(appended.record, sha256), not appended.created

    async def _append_acceptance(
        self, tenant: str, id: str, request: DeliberationRequest, submission: Submission
    ) -> Appended:
        """The acceptance in the log, this one or an earlier one. Raises NotReady while draining, and QueueFull."""
        if self.draining():
            raise NotReady("This gateway is stopping. Send the request again: another one accepts it.")
        backlog = self.catalog.backlog
        roles = {agent.role for agent in request.roster}
        timeout_s = request.constraints.timeout_seconds or self.timeout_s
        # Checked before the specification is built, so that a refusal is cheap.
        returning = submission.idempotency_key is not None
        backlog.check(roles, timeout_s, key=(tenant, id) if returning else None, tenant=tenant)
        specified = specification(request, self.roles, self.strategies, timeout_s=timeout_s)
        fact = accepted(specified, request, submission, id=id, now=self.clock.now())
        with backlog.place((tenant, id), roles, timeout_s):
            return await self.journal.append(tenant, fact)


def _acceptance(record: Record, sha256: str) -> State:
    """The state at acceptance; raises IdempotencyConflict when another body was accepted, Gone without acceptance."""
    fact = decode(record.data)
    if not isinstance(fact, Accepted):
        why = "has been deleted" if isinstance(fact, Deleted) else "is past its retention"
        raise Gone(f"What this Idempotency-Key started {why}; use a new key.")
    if fact.body_sha256 != sha256:
        raise IdempotencyConflict("This Idempotency-Key was used before with another body.")
    return begin(fact, record.sequence)
