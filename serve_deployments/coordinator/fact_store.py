"""What a coordinator knows of its deliberations: what the log holds, and what was heard since.

Whoever has heard all that matters need not read: for a deliberation that nobody has touched, its first fact is enough.
"""

from collections.abc import Iterable

import stamina

from app.deliberation.errors import JournalUnavailable, UnexpectedFact
from app.deliberation.facts import Accepted, Fact, Resumed
from app.deliberation.fold import State, apply, begin, fold
from app.deliberation.ports import Journal, Record
from serve_deployments.coordinator.work import Work, fact_of, known

APPEND_PATIENCE_S = 60.0
EARLY_CANCELS_MAX = 10_000


class FactStore:
    """Reads, writes and folds facts, and keeps what was heard of deliberations that are not in hand yet."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # Requests to stop that came before their deliberation did, and the sequence above which none was missed.
        self._early_cancels: dict[str, Record] = {}
        self._heard_from: int | None = None

    def early(self, cancel: Record) -> None:
        """Keep a request to stop something that is not in hand yet."""
        self._early_cancels[cancel.tokens[2]] = cancel
        if len(self._early_cancels) > EARLY_CANCELS_MAX:
            # What is forgotten here is in the log: it is read again for whatever was accepted up to now.
            self._heard_from = max(self._heard_from or 0, *(early.sequence for early in self._early_cancels.values()))
            self._early_cancels.clear()

    def missed(self) -> None:
        """Requests to stop may have been missed: until `hear_again` nothing is known but what is read."""
        self._heard_from = None

    async def hear_again(self) -> None:
        """From here on nothing is missed. Raises JournalUnavailable."""
        if self._heard_from is None:
            self._heard_from = (await self._journal.state()).last_sequence

    async def state(self, work: Work) -> State:
        """Fold what the log holds, waiting for a log that is away as long as an append would.

        Raises UnexpectedFact when it holds nothing, Gone when it was deleted, JournalUnavailable.
        """
        records = await self._facts(work)
        state = fold((record.sequence, fact_of(record)) for record in records)
        if state is None:
            raise UnexpectedFact("the log holds no fact of an accepted deliberation")
        return state

    async def _facts(self, work: Work) -> list[Record]:
        retries = stamina.retry_context(
            on=JournalUnavailable, attempts=None, timeout=APPEND_PATIENCE_S, wait_initial=0.05, wait_max=1.0
        )
        async for attempt in retries:
            with attempt:
                return await self._journal.facts(work.tenant, work.deliberation_id)
        raise AssertionError("a retry context ends by returning or raising")

    def fresh(self, work: Work) -> State | None:
        """The state of a deliberation that nobody has touched yet; None when the log must tell.

        A request to stop would have been heard, and if a stage was opened all the same, its fact refuses the next.
        """
        record = work.delivery.record
        if work.resumed or self._heard_from is None or record.sequence <= self._heard_from:
            return None
        accepted = fact_of(record)
        assert isinstance(accepted, Accepted), "the queue hands out accepted facts alone"
        state = begin(accepted, record.sequence)
        cancel = self._early_cancels.pop(work.deliberation_id, None)
        return apply(state, fact_of(cancel), cancel.sequence) if cancel else state

    async def appended(self, work: Work, state: State, fact: Fact) -> State:
        """The state after a fact is written; or, when another one stands in its place, the one that the log tells."""
        appended = await self._journal.append(work.tenant, fact)
        if appended.created:
            if not isinstance(fact, Resumed):
                work.stepped()
            return apply(state, fact, appended.record.sequence)
        # Somebody else is ahead: what stands is the truth, and calls may have been made already.
        work.resumed = True
        return await self.state(work)

    async def caught_up(self, work: Work, state: State, heard: Iterable[Record | None] = ()) -> State:
        """The state after what was taken from the inbox, and all that has reached it by now."""
        heard_now = list(heard)
        while not work.inbox.empty():
            heard_now.append(work.inbox.get_nowait())
        for record in heard_now:
            if record is None:
                # Facts were missed.
                return await self.state(work)
            fact = fact_of(record)
            state = state if known(state, fact) else apply(state, fact, record.sequence)
        if not state.takeovers_without_progress:
            work.stepped()
        return state
