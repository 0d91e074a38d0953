"""Coordinator: fold the facts, let the strategy decide, obey. One task per deliberation; what it holds can be lost.

A delivery is acknowledged only after its end is in the log, so whatever dies, somebody folds the facts again and goes
on from there. Every write is first write wins: a zombie that wakes up can only repeat what stands already, and read it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

import structlog

from app.deliberation.calls import Call
from app.deliberation.driver import next_moment, waits_for_calls
from app.deliberation.engine import (
    POISON_TAKEOVERS,
    CloseStage,
    Done,
    Finish,
    OpenStage,
    RunStage,
    decide,
    failed,
    problem_of,
)
from app.deliberation.errors import DeliberationError, Gone, JournalUnavailable, UnexpectedFact
from app.deliberation.facts import Cancelled, Completed, End, Failed, Resumed, StageClosed, TimedOut
from app.deliberation.fold import State
from app.deliberation.ports import Record
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from app.log.work_queue import QueueItem, WorkQueue
from app.observability.logs import outlast_output
from serve_deployments.agent.agent import settle_heap
from serve_deployments.coordinator.admission_queue import AdmissionQueue, TicketOutcome
from serve_deployments.coordinator.fact_store import APPEND_PATIENCE_S, FactStore
from serve_deployments.coordinator.role_client import Handle, RoleClient
from serve_deployments.coordinator.work import Work, fact_of, hand_over
from serve_deployments.identity import REPLICA, identity

HEARTBEAT_S = 2.0
GIVE_BACK_DELAY_S = 2.0
# How long the end waits for what calls that were stopped had cost; it is in the log some milliseconds after.
STOP_GRACE_S = 1.0
# After so many takeovers without a step of the work, few are begun at once, and before the last chance one alone: if
# its coordinator dies, it was this one. Whoever lives for some seconds with it lets the next begin: when many have been
# taken over again and again, because the log or all of Ray was away, each would otherwise wait for the calls of all.
SUSPECT_TAKEOVERS = 2
SUSPECTS_AT_ONCE = 16
SUSPECT_FOR_S = 5.0
# A stage's calls end by their own deadline; a replica that died is noticed this much later.
GRACE = timedelta(seconds=2)

log = structlog.get_logger(__name__)


class CoordinatorReplica:
    """What a coordinator replica holds: the log, the queue, the handles of its roles, and the work in hand."""

    def __init__(self, journal: JetStreamJournal, agents: Mapping[str, Handle], slots: int) -> None:
        self._journal = journal
        self._ledger = FactStore(journal)
        self._roles = RoleClient(agents)
        self._queue = WorkQueue(journal, slots, self._delivered)
        self._slots = slots
        self._works: dict[str, Work] = {}
        self._gates: dict[frozenset[str], AdmissionQueue] = {}
        self._group: asyncio.TaskGroup | None = None
        self._few = asyncio.Semaphore(SUSPECTS_AT_ONCE)
        self._alone = asyncio.Semaphore(1)

    async def serve(self, ready: asyncio.Event) -> None:
        """Pull and coordinate until cancelled; what is in hand is then handed over.

        When it breaks instead, what is in hand is given back as well, but may have been the cause.
        """
        in_order = False
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._journal.subscribe(["deliberations.*.*.cancel"], self._heard)
                await self._journal.answer("control.coordinator", self.describe)
                self._journal.on_reconnect(self._missed)
                await self._ledger.hear_again()
                await self._queue.start()
                group.create_task(self._queue.watch())
                group.create_task(self._keep_alive())
                ready.set()
        except asyncio.CancelledError:
            in_order = True
            raise
        finally:
            self._group = None
            await self._queue.close()
            if in_order and self._journal.client.is_connected:
                await hand_over(self._journal, [work for work in self._works.values() if work.begun], REPLICA)
            for work in list(self._works.values()):
                await self._queue.give_back(work.delivery)

    async def describe(self) -> dict[str, Any]:
        """The replica as `GET /cluster` and `/readyz` see it."""
        return {
            **identity(),
            "in_flight": len(self._works),
            "slots": self._slots,
            "roles": self._roles.names,
            "gates": [{"roles": sorted(roles), **gate.figures()} for roles, gate in self._gates.items()],
        }

    def _heard(self, record: Record) -> None:
        work = self._works.get(record.tokens[2])
        if work is None:
            self._ledger.early(record)
        else:
            work.inbox.put_nowait(record)

    def _missed(self) -> None:
        self._ledger.missed()
        for work in self._works.values():
            work.inbox.put_nowait(None)

    async def _keep_alive(self) -> None:
        """Tell the server every few seconds what is still being worked on, but only while a call is within its time."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(JournalUnavailable):
                await self._ledger.hear_again()
            now = datetime.now(UTC)
            for work in list(self._works.values()):
                if now <= work.alive_until:
                    await self._queue.working(work.delivery)

    def _delivered(self, delivery: QueueItem) -> None:
        _, tenant, deliberation_id, _ = delivery.record.tokens
        held = self._works.get(deliberation_id)
        now = datetime.now(UTC)
        if held is not None:
            self._queue.drop()
            if now <= held.alive_until:
                # Redelivered while in hand: the newer delivery is the one to acknowledge.
                held.delivery = delivery
                return
            # It hangs beyond every deadline of its own: begin again from the facts.
            log.error("deliberation_hung", deliberation_id=deliberation_id)
            if held.task is not None:
                held.task.cancel()
            held.left(asyncio.get_running_loop().time())
        alive_until = now + timedelta(seconds=APPEND_PATIENCE_S)
        work = Work(tenant, deliberation_id, delivery, held is not None or delivery.deliveries > 1, alive_until)
        self._works[deliberation_id] = work
        if self._group is not None:
            work.task = self._group.create_task(self._supervised(work))

    async def _supervised(self, work: Work) -> None:
        """Bring one deliberation to its end; whatever goes wrong is recorded as its end, or the work is given back."""
        try:
            try:
                await self._deliberated(work)
            except JournalUnavailable:
                raise
            except Gone as error:
                # It had ended, and was deleted, while this one hung: nothing may be written of it any more.
                log.info("deliberation_gone", deliberation_id=work.deliberation_id, error=str(error))
            except DeliberationError as error:
                await self._ended_by(work, error)
            except Exception as error:
                # The named place for a broad except: a defect must end this deliberation, not all of them.
                log.exception("deliberation_broke", deliberation_id=work.deliberation_id)
                await self._ended_by(work, DeliberationError(f"internal error: {type(error).__name__}"))
        except JournalUnavailable as error:
            log.warning("deliberation_given_back", deliberation_id=work.deliberation_id, error=str(error))
            self._release(work)
            await self._queue.give_back(work.delivery, GIVE_BACK_DELAY_S)
        else:
            self._release(work)
            await self._queue.ack(work.delivery)

    def _release(self, work: Work) -> None:
        work.stepped()
        work.left(asyncio.get_running_loop().time())
        if self._works.get(work.deliberation_id) is work:
            del self._works[work.deliberation_id]

    async def _ended_by(self, work: Work, error: DeliberationError) -> None:
        now = datetime.now(UTC)
        try:
            fact = failed(await self._ledger.state(work), now, error).fact
        except UnexpectedFact:
            # The log itself is damaged: the end can still be written, and knows of no cost.
            fact = Failed(deliberation_id=work.deliberation_id, ts=now, problem=problem_of(error))
        appended = await self._journal.append(work.tenant, fact)
        log.error(
            "deliberation_failed", deliberation_id=work.deliberation_id, code=error.code, created=appended.created
        )
        end = fact if appended.created else fact_of(appended.record)
        if isinstance(end, End):
            await self._journal.announce(end)

    async def _deliberated(self, work: Work) -> None:
        state = await self._begun(work)
        while True:
            state = await self._ledger.caught_up(work, state)
            definition = STRATEGIES.get(state.specification.strategy)
            if definition is None:
                raise UnexpectedFact(f"no strategy {state.specification.strategy} here")
            decision = decide(state, datetime.now(UTC), definition)
            match decision:
                case Done():
                    assert state.end is not None
                    work.outcome = _outcome(state.end)
                    await self._journal.announce(state.end)
                    return
                case OpenStage(fact, run):
                    work.begun = True
                    state = await self._ledger.appended(work, state, fact)
                    if state.open_stage and state.open_stage.opened == fact:
                        state = await self._run(work, state, run)
                case Finish() if _lacking(state) and not work.settled:
                    # What a closed stage left out was stopped, and has cost something: it is in the log by now.
                    work.settled = True
                    state = await self._ledger.state(work)
                case CloseStage(fact) | Finish(fact):
                    # Nothing is to be said of it after its end.
                    work.begun = isinstance(fact, StageClosed)
                    state = await self._ledger.appended(work, state, fact)
                case RunStage():
                    state = await self._run(work, state, decision)
                case _:
                    assert_never(decision)

    async def _begun(self, work: Work) -> State:
        """The state once it may be worked on, and once it is recorded if somebody else had it before.

        What still waits for its turn has done nothing, and is not blamed for the end of whoever holds it meanwhile.
        """
        fresh = self._ledger.fresh(work)
        state = fresh or await self._ledger.state(work)
        if state.stages:
            return await self._turn(work, await self._taken_over(work, state))
        state = await self._turn(work, state)
        return state if fresh else await self._taken_over(work, state)

    async def _turn(self, work: Work, state: State) -> State:
        """The state when it is this work's turn; at once when it was begun before, or need not be begun any more."""
        loop, roles = asyncio.get_running_loop(), frozenset(agent.role for agent in state.specification.agents)
        work.gate = self._gates.setdefault(roles, AdmissionQueue(self._slots))
        work.place = work.gate.ask(loop.time(), begun=bool(state.stages))
        # It is within its time while it waits, too.
        work.alive_until = max(work.alive_until, state.accepted.deadline_at + GRACE)
        while not work.place.granted.is_set() and state.cancel is None and not state.ended:
            left_s = (state.accepted.deadline_at - datetime.now(UTC)).total_seconds()
            if left_s <= 0:
                break
            heard = await work.heard_before(work.place.granted, left_s)
            state = await self._ledger.caught_up(work, state, heard)
        return state

    async def _taken_over(self, work: Work, state: State) -> State:
        """The state of what somebody else may have begun; that it is taken over is recorded before anything is done.

        Work that seems to kill whoever holds it is begun beside few of its kind, and in the end alone, until it has
        made a step or some seconds have passed: what is in hand beside it would be blamed as well.
        """
        work.resumed = work.resumed or bool(state.stages) or state.takeovers > 0
        work.takeovers = state.takeovers
        if not work.resumed or state.ended:
            return state
        work.begun = True
        if state.takeovers_without_progress >= SUSPECT_TAKEOVERS:
            work.alive_until = state.accepted.deadline_at + GRACE
            apart = self._alone if state.takeovers_without_progress >= POISON_TAKEOVERS - 2 else self._few
            await apart.acquire()
            work.apart = apart
            asyncio.get_running_loop().call_later(SUSPECT_FOR_S, work.stepped)
            state = await self._ledger.state(work)
            if state.ended:
                return state
        state = await self._ledger.appended(
            work,
            state,
            Resumed(
                deliberation_id=work.deliberation_id,
                ts=datetime.now(UTC),
                takeover=state.takeovers + 1,
                replica=REPLICA,
            ),
        )
        work.takeovers = state.takeovers
        return state

    async def _run(self, work: Work, state: State, run: RunStage) -> State:
        """Run a stage's lacking calls until it may close, somebody cancels, or the deliberation's deadline passes."""
        work.alive_until = run.deadline_at + 2 * GRACE
        state = await self._ledger.caught_up(work, state)
        if not waits_for_calls(state, datetime.now(UTC)):
            return state
        by_role: dict[str, list[Call]] = {}
        for call in run.calls:
            by_role.setdefault(call.role, []).append(call)
        try:
            async with asyncio.TaskGroup() as group:
                asking = [group.create_task(self._roles.ask(work, run, role, calls)) for role, calls in by_role.items()]
                try:
                    while waits_for_calls(state, datetime.now(UTC)):
                        state = await self._heard_of(work, state)
                    if state.cancel is not None or datetime.now(UTC) >= state.accepted.deadline_at:
                        work.stopping = True
                        state = await self._settled(work, state)
                finally:
                    for task in asking:
                        task.cancel()
        except ExceptionGroup as group:
            # The first one says what happened; whoever supervises this deliberation tells errors apart by their class.
            raise group.exceptions[0] from group
        return state

    async def _settled(self, work: Work, state: State) -> State:
        """The state once every call that was stopped has said what it cost, or the grace is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S):
                while not state.ended and _lacking(state):
                    state = await self._ledger.caught_up(work, state, [await work.inbox.get()])
        return state

    async def _heard_of(self, work: Work, state: State) -> State:
        """The state after the next facts, or after the next moment at which time alone may decide."""
        now = datetime.now(UTC)
        try:
            async with asyncio.timeout((next_moment(state, now) - now).total_seconds()):
                records = [await work.inbox.get()]
        except TimeoutError:
            return state
        return await self._ledger.caught_up(work, state, records)


def _outcome(end: End) -> TicketOutcome:
    """What an end says of the pace at which work is done."""
    match end:
        case Completed() | Failed():
            return "done"
        case TimedOut():
            return "missed"
        case Cancelled():
            return "stopped"


def _lacking(state: State) -> bool:
    """Whether some call that was planned has no outcome."""
    return any(call.call_id not in state.finished for stage in state.stages for call in stage.opened.calls)


class Coordinator:
    """The Serve deployment that turns accepted deliberations into verdicts. Nobody calls it: it pulls."""

    async def __init__(self, agents: dict[str, Handle], nats_url: str, slots: int) -> None:
        outlast_output()
        journal = await JetStreamJournal.connect(nats_url, name="coordinator", patience_s=APPEND_PATIENCE_S)
        self._replica = CoordinatorReplica(journal, agents, slots)
        ready = asyncio.Event()
        # Held here and watched by check_health: Serve knows no deployment that works without being called.
        self._serving = asyncio.get_running_loop().create_task(self._replica.serve(ready))
        waiter = asyncio.get_running_loop().create_task(ready.wait())
        await asyncio.wait({self._serving, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        self.check_health()
        settle_heap()

    def check_health(self) -> None:
        """Called by Serve; raises when the pull loop has ended, so that the replica is replaced."""
        if self._serving.done():
            self._serving.result()
            raise RuntimeError("the coordinator's pull loop has ended")

    async def __del__(self) -> None:
        """Called by Serve before the replica stops: work in hand goes back to the queue at once."""
        self._serving.cancel()
        await asyncio.wait({self._serving})
