"""The states of a coordinator's executions: folded from the log, and kept up to date by facts received live.

A deliberation that no coordinator has touched needs no read: its acceptance, which the queue delivers, is enough.
"""

from collections.abc import Iterable

import stamina

from app.deliberation.errors import JournalUnavailable, UnexpectedFact, UnreadableFact
from app.deliberation.facts import Accepted, CallFinished, CancelRequested, Fact, NewerEvent
from app.deliberation.fold import State, apply, begin, fold
from app.deliberation.ports import Journal, Record
from serve_deployments.coordinator.execution import Execution, fact_of

APPEND_TIMEOUT_S = 60.0
EARLY_CANCELS_MAX = 10_000


class FactStore:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._early_cancels: dict[str, Record] = {}
        # No cancel above this sequence was missed; None while that is unknown.
        self._complete_above: int | None = None

    def keep_early_cancel(self, cancel: Record) -> None:
        self._early_cancels[cancel.tokens[2]] = cancel
        if len(self._early_cancels) > EARLY_CANCELS_MAX:
            # Raising the bound makes every older acceptance read the log, which holds the forgotten cancels.
            newest = max(early.sequence for early in self._early_cancels.values())
            self._complete_above = max(self._complete_above or 0, newest)
            self._early_cancels.clear()

    def mark_incomplete(self) -> None:
        """Read every deliberation from the log until `resync`, because cancels may have been missed."""
        self._complete_above = None

    async def resync(self) -> None:
        if self._complete_above is None:
            self._complete_above = (await self._journal.state()).last_sequence

    def load_fresh(self, execution: Execution) -> bool:
        """Set the state of a deliberation that no coordinator has touched; False when the log must be read.

        A stage that another coordinator opened all the same refuses this coordinator's next fact.
        """
        record = execution.item.record
        if execution.resumed or self._complete_above is None or record.sequence <= self._complete_above:
            return False
        accepted = fact_of(record)
        if not isinstance(accepted, Accepted):
            raise UnreadableFact(f"the record on {record.subject} is no acceptance")
        execution.state = begin(accepted, record.sequence)
        cancel = self._early_cancels.pop(execution.deliberation_id, None)
        if cancel is not None and not isinstance(fact := fact_of(cancel), NewerEvent):
            execution.state = apply(execution.state, fact, cancel.sequence)
        return True

    async def load(self, execution: Execution) -> None:
        """Set the state that the log holds, waiting for a log that is away as long as an append would.

        Raises UnexpectedFact for an empty log, Gone after a deletion, JournalUnavailable.
        """
        retries = stamina.retry_context(
            on=JournalUnavailable, attempts=None, timeout=APPEND_TIMEOUT_S, wait_initial=0.05, wait_max=1.0
        )
        records: list[Record] = []
        async for attempt in retries:
            with attempt:
                records = await self._journal.facts(execution.tenant, execution.deliberation_id)
        state = fold((record.sequence, fact_of(record)) for record in records)
        if state is None:
            raise UnexpectedFact("the log holds no fact of an accepted deliberation")
        self._set(execution, state)

    async def append(self, execution: Execution, fact: Fact) -> bool:
        """Write a fact and fold it. Returns False where another fact stands already: then the log is read instead."""
        appended = await self._journal.append(execution.tenant, fact)
        if appended.created:
            self._set(execution, apply(execution.state, fact, appended.record.sequence))
        else:
            # Another coordinator is ahead, and calls may have been made.
            execution.resumed = True
            await self.load(execution)
        return appended.created

    async def catch_up(self, execution: Execution, received: Iterable[Record | None] = ()) -> None:
        records = list(received)
        while not execution.inbox.empty():
            records.append(execution.inbox.get_nowait())
        state = execution.state
        for record in records:
            fact = None if record is None else fact_of(record)
            if isinstance(fact, NewerEvent):
                continue
            if record is None or fact is None or _is_ahead(state, fact):
                await self.load(execution)
                return
            state = state if _is_known(state, fact) else apply(state, fact, record.sequence)
        self._set(execution, state)

    def _set(self, execution: Execution, state: State) -> None:
        execution.state = state
        if not state.takeovers_without_progress:
            execution.clear_suspicion()


def _is_ahead(state: State, fact: Fact) -> bool:
    return isinstance(fact, CallFinished) and fact.stage > len(state.stages)


def _is_known(state: State, fact: Fact) -> bool:
    """Whether a fact is folded already: a fact that was read may be received as well."""
    if isinstance(fact, CallFinished):
        return fact.call_id in state.finished
    return isinstance(fact, CancelRequested) and state.cancel is not None
