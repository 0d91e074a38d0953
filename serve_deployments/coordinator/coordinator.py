"""Coordinator: fold the facts, let the strategy decide, execute. One task per deliberation; nothing it holds must last.

An item is acknowledged only after its end is in the log: when a coordinator dies, another one folds the facts and goes
on. Every write is first write wins, so a coordinator that hung can only repeat and read what stands.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Literal, assert_never

import structlog

from app.admission.spends import record_spend
from app.deliberation.announcements import Neighbours, announcement, recorded_responses
from app.deliberation.calls import Call, StageRequest, priority_number
from app.deliberation.decider import (
    POISON_TAKEOVERS,
    CloseStage,
    Decision,
    Done,
    Finish,
    OpenStage,
    RunStage,
    all_stopped,
    awaits_stopped_calls,
    decide,
    failed,
    next_moment,
    problem_of,
    require_strategy,
    waits_for_calls,
)
from app.deliberation.errors import (
    DeliberationError,
    FactTooLarge,
    Gone,
    JournalUnavailable,
    UnexpectedFact,
    UnknownStrategy,
    UnreadableFact,
)
from app.deliberation.facts import End, Failed, Resumed
from app.deliberation.fold import State
from app.deliberation.ports import Agents, AgentsLost, Record
from app.deliberation.specification import FilesWorkspace, GitWorkspace, Priority
from app.deliberation.strategies import STRATEGIES
from app.log.journal import JetStreamJournal
from app.log.stream_settings import Publication, coordinator_queues
from app.log.work_queue import QueueItem, WorkQueue
from app.observability.deliberation_spans import deliberation_spans
from app.observability.process_counts import CoordinatorCounts
from app.observability.trace_context import active_span
from app.observability.traces import Tracer, sampled_trace
from serve_deployments.coordinator.admission_queue import AdmissionQueue
from serve_deployments.coordinator.execution import Execution, ExecutionState, deadline_of, fact_of, hand_over
from serve_deployments.coordinator.fact_store import APPEND_TIMEOUT_S, FactStore
from serve_deployments.identity import REPLICA, identity

# The facts that others write about a deliberation that is held here.
HEARD = ("deliberations.*.*.cancel", "deliberations.*.*.call.*.finished")
HEARTBEAT_S = 2.0
REQUEUE_DELAY_S = 2.0
# How long the end waits for the cost of stopped calls, which is in the log some milliseconds after the stop.
STOP_GRACE_S = 1.0
# A suspect is a deliberation with at least two takeovers without progress: it may kill its coordinators. At most 16
# suspects run at once. Before its last chance a suspect runs alone, so that a death names its cause. After five seconds
# the next may run: when the log or all of Ray was away, many are suspects.
SUSPECT_TAKEOVERS = 2
SUSPECTS_AT_ONCE = 16
SUSPECT_FOR_S = 5.0
# A stage's calls end by their own deadline; a dead replica is noticed this much later.
GRACE = timedelta(seconds=2)
RETRY_WAIT_S = (0.2, 0.5, 1.0, 2.0)
# How long outcomes may take from the log to the coordinator once their agents have recorded them.
HEARD_WITHIN_S = 1.0

log = structlog.get_logger(__name__)


class RoleClient:
    def __init__(self, agents: Mapping[str, Agents]) -> None:
        self.names = sorted(agents)
        self._agents = agents

    async def run(self, execution: Execution, stage: RunStage, role: str, calls: Sequence[Call]) -> None:
        """Have a role run the calls, again when its agents are lost, until the execution has every outcome."""
        waits = iter(RETRY_WAIT_S)
        while execution.phase is not ExecutionState.STOPPING and (lacking := _lacking(execution, calls)):
            members = execution.state.specification.agents
            request = StageRequest(
                tenant=execution.tenant,
                deliberation_id=execution.deliberation_id,
                stage=stage.opened.stage,
                calls=lacking,
                asked_at=datetime.now(UTC),
                deadline_at=stage.deadline_at,
                resumed=execution.resumed,
                first_agent=members[0].agent_id,
                one_persona=all((agent.role, agent.persona) == (role, members[0].persona) for agent in members),
                accepted_sequence=execution.item.record.sequence,
                priority=priority_number(execution.state.specification.priority, execution.state.accepted.ts),
                traceparent=execution.trace and execution.trace.stage(stage.opened.stage).traceparent,
                workspace=_named(execution.state.specification.workspace),
                stage_calls=tuple(call for call in stage.stage_calls if call.role == role),
            )
            try:
                await self._agents[role].run(request)
                failure = "outcomes were not received"
                await asyncio.sleep(HEARD_WITHIN_S)
            except AgentsLost as error:
                failure = str(error)
            if _lacking(execution, calls):
                # Agents died or refused, or the connection to the log was lost. The coordinator reads the log;
                # while the stage is open, only the lacking calls are run again.
                log.warning("role_call_failed", role=role, deliberation_id=execution.deliberation_id, error=failure)
                execution.resumed = True
                execution.inbox.put_nowait(None)
                await asyncio.sleep(next(waits, RETRY_WAIT_S[-1]))


def _named(workspace: GitWorkspace | FilesWorkspace | None) -> GitWorkspace | Literal["files"] | None:
    """The workspace in requests to agents; the texts of files are in the log alone."""
    return "files" if isinstance(workspace, FilesWorkspace) else workspace


def _lacking(execution: Execution, calls: Sequence[Call]) -> tuple[Call, ...]:
    return tuple(call for call in calls if call.call_id not in execution.state.finished)


class CoordinatorReplica:
    def __init__(
        self,
        journal: JetStreamJournal,
        agents: Mapping[str, Agents],
        slots: int,
        publications: Collection[Publication] = (),
        identity: Callable[[], dict[str, Any]] = identity,
        tracer: Tracer | None = None,
        clusters: Sequence[str] = (),
    ) -> None:
        self._identity = identity
        self._tracer = tracer
        self._journal = journal
        self._neighbours: Neighbours = journal
        self._publications = frozenset(publications)
        self._facts = FactStore(journal)
        self._roles = RoleClient(agents)
        self._clusters = clusters
        names = coordinator_queues(clusters)
        # In equal parts, so that no label's work keeps another's from being taken.
        self._queues = [self._queue(name, ceil(slots / len(names))) for name in names]
        self._slots = slots
        self._executions: dict[str, Execution] = {}
        self._admission: dict[tuple[frozenset[str], Priority], AdmissionQueue] = {}
        self._group: asyncio.TaskGroup | None = None
        self._suspects = asyncio.Semaphore(SUSPECTS_AT_ONCE)
        self._last_chance = asyncio.Semaphore(1)
        self._counts = CoordinatorCounts()

    def _queue(self, consumer: str, slots: int) -> WorkQueue:
        def on_item(item: QueueItem) -> None:
            self._on_item(queue, item)

        queue = WorkQueue(self._journal, slots, on_item, consumer=consumer)
        return queue

    async def serve(self, ready: asyncio.Event) -> None:
        """Pull and coordinate until cancelled; the executions are then handed over, so that none is suspected."""
        cancelled = False
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._journal.subscribe(HEARD, self._on_fact)
                await self._journal.answer("control.coordinator", lambda _: self.describe())
                self._journal.on_reconnect(self._on_gap)
                await self._facts.resync()
                for queue in self._queues:
                    await queue.start()
                    group.create_task(queue.watch())
                group.create_task(self._keep_alive())
                ready.set()
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self._group = None
            await asyncio.gather(*(queue.close() for queue in self._queues))
            if cancelled and self._journal.client.is_connected:
                await hand_over(self._journal, self._executions.values(), REPLICA)
            for execution in list(self._executions.values()):
                await execution.queue.requeue(execution.item)

    async def pause(self) -> None:
        """Take and decide nothing more, and hold what is held until `serve` is cancelled.

        Agents of this process may finish their calls meanwhile: a successor would make them again.
        """
        await asyncio.gather(*(queue.close() for queue in self._queues))
        for execution in self._executions.values():
            if execution.task is not None:
                execution.task.cancel()

    async def describe(self) -> dict[str, Any]:
        return {
            **self._identity(),
            "in_flight": len(self._executions),
            "slots": self._slots,
            "roles": self._roles.names,
            "clusters": list(self._clusters),
            "gates": [
                {"roles": sorted(roles), "priority": priority, **queue.figures()}
                for (roles, priority), queue in self._admission.items()
            ],
            "counts": self._counts.model_dump(),
        }

    def _on_fact(self, record: Record) -> None:
        _, _, deliberation_id, kind, *_ = record.tokens
        execution = self._executions.get(deliberation_id)
        if execution is not None:
            execution.inbox.put_nowait(record)
        elif kind == "cancel":
            self._facts.keep_early_cancel(record)

    def _on_gap(self) -> None:
        self._facts.mark_incomplete()
        for execution in self._executions.values():
            execution.inbox.put_nowait(None)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(JournalUnavailable):
                await self._facts.resync()
            now = datetime.now(UTC)
            for execution in list(self._executions.values()):
                if now <= execution.alive_until:
                    await execution.queue.working(execution.item)

    def _on_item(self, queue: WorkQueue, item: QueueItem) -> None:
        _, tenant, deliberation_id, _ = item.record.tokens
        held = self._executions.get(deliberation_id)
        now = datetime.now(UTC)
        if held is not None:
            queue.drop()
            if now <= held.alive_until:
                # The item was redelivered while the deliberation is held: the newer delivery is the one to acknowledge.
                held.item = item
                return
            # The deliberation hangs beyond every deadline of its own: begin again from the facts.
            log.error("deliberation_hung", deliberation_id=deliberation_id)
            if held.task is not None:
                held.task.cancel()
            held.release(asyncio.get_running_loop().time())
        alive_until = now + timedelta(seconds=APPEND_TIMEOUT_S)
        execution = Execution(
            tenant, deliberation_id, queue, item, held is not None or item.deliveries > 1, alive_until
        )
        self._executions[deliberation_id] = execution
        if self._group is not None:
            execution.task = self._group.create_task(self._supervised(execution))

    async def _supervised(self, execution: Execution) -> None:
        """Bring a deliberation to its end. An error is recorded as its end.

        Without the log the item is requeued, and to its deadline where only another version can read or decide it.
        """
        try:
            try:
                await self._deliberate(execution)
            except (JournalUnavailable, Gone):
                raise
            except (UnknownStrategy, UnreadableFact) as error:
                deadline_at = deadline_of(execution.item.record)
                if deadline_at is not None and datetime.now(UTC) < deadline_at:
                    # A coordinator of the version that wrote it may take it, as in an upgrade.
                    raise
                await self._fail(execution, error)
            except DeliberationError as error:
                await self._fail(execution, error)
            except Exception as error:
                # A named place for a broad except: a defect must end this deliberation, not all of them.
                log.exception("deliberation_broke", deliberation_id=execution.deliberation_id)
                await self._fail(execution, DeliberationError(f"internal error: {type(error).__name__}"))
        except (JournalUnavailable, UnknownStrategy, UnreadableFact) as error:
            log.warning("deliberation_requeued", deliberation_id=execution.deliberation_id, error=str(error))
            self._release(execution)
            await execution.queue.requeue(execution.item, REQUEUE_DELAY_S)
            return
        except Gone as error:
            # It had ended and was deleted while this coordinator hung: nothing more may be written of it.
            log.info("deliberation_gone", deliberation_id=execution.deliberation_id, error=str(error))
        self._release(execution)
        if self._tracer is not None and execution.trace is not None:
            # Before the acknowledgement: when this coordinator dies, its successor records the spans.
            await self._tracer.flush()
        await execution.queue.ack(execution.item)

    def _release(self, execution: Execution) -> None:
        execution.release(asyncio.get_running_loop().time())
        if self._executions.get(execution.deliberation_id) is execution:
            del self._executions[execution.deliberation_id]

    async def _fail(self, execution: Execution, error: DeliberationError) -> None:
        now = datetime.now(UTC)
        known: State | None = None
        try:
            await self._facts.load(execution)
            known = execution.state
            fact = failed(known, now, error).fact
        except UnexpectedFact:
            # The log itself is damaged: an end without costs can still be written.
            fact = Failed(deliberation_id=execution.deliberation_id, ts=now, problem=problem_of(error))
        if known is not None:
            await self._record_spend(execution, fact)
        execution.enter(ExecutionState.ENDING)
        appended = await self._journal.append(execution.tenant, fact)
        if known is not None and appended.created:
            self._counts.count_end(known, fact)
        log.error(
            "deliberation_failed", deliberation_id=execution.deliberation_id, code=error.code, created=appended.created
        )
        end = fact if appended.created else fact_of(appended.record)
        if isinstance(end, End):
            await self._conclude(execution, end, known)

    async def _record_spend(self, execution: Execution, end: End) -> None:
        """Record the cost; without the log the execution is handed over unsuspected: its end alone waits."""
        try:
            await record_spend(self._journal, execution.tenant, end)
        except JournalUnavailable:
            await hand_over(self._journal, [execution], REPLICA)
            raise

    async def _conclude(self, execution: Execution, end: End, state: State | None) -> None:
        """Publish the messages for other services, and record the deliberation's spans."""
        await self._announce(execution, end, state)
        if self._tracer is not None and execution.trace is not None and state is not None:
            content = self._tracer.captures_content
            for span in deliberation_spans(execution.tenant, state, end, execution.trace, content=content):
                self._tracer.record(span)

    async def _announce(self, execution: Execution, end: End, state: State | None) -> None:
        """Publish the outcomes that a dead replica recorded and did not publish, then the end, where they are wanted.

        An end that is too large for one message is announced without its texts.
        """
        if state is not None and "responses" in self._publications:
            await self._neighbours.complete_responses(
                execution.deliberation_id, recorded_responses(execution.tenant, state)
            )
        if "announcements" not in self._publications:
            return
        try:
            await self._neighbours.announce(announcement(execution.tenant, end, state))
        except FactTooLarge as error:
            log.error("announcement_too_large", deliberation_id=execution.deliberation_id, error=str(error))
            await self._neighbours.announce(
                announcement(execution.tenant, end.model_copy(update={"verdict": None}), None)
            )

    async def _deliberate(self, execution: Execution) -> None:
        await self._begin(execution)
        reloaded = False
        while True:
            await self._facts.catch_up(execution)
            decision = _decision(execution)
            match decision:
                case Done():
                    assert execution.state.end is not None
                    await self._conclude(execution, execution.state.end, execution.state)
                    return
                case OpenStage(fact, run):
                    execution.begin()
                    if await self._facts.append(execution, fact):
                        await self._run_stage(execution, run)
                case RunStage():
                    # Another coordinator may have opened the stage, while this one waited for its turn.
                    execution.begin()
                    await self._run_stage(execution, decision)
                case CloseStage(fact):
                    await self._facts.append(execution, fact)
                case Finish() if not reloaded and awaits_stopped_calls(execution.state, datetime.now(UTC)):
                    # What was not received may be recorded all the same.
                    reloaded = True
                    await self._wait_for_stopped_calls(execution)
                    await self._facts.load(execution)
                case Finish(fact):
                    # Before the end: who has read the end finds the cost counted.
                    await self._record_spend(execution, fact)
                    execution.enter(ExecutionState.ENDING)
                    if await self._facts.append(execution, fact):
                        self._counts.count_end(execution.state, fact)
                case _:
                    assert_never(decision)

    async def _begin(self, execution: Execution) -> None:
        """Load the state, wait for its turn, and record a takeover where another coordinator held it before.

        The death of a holder says nothing against work that waited for its first turn: nothing was done.
        """
        fresh = self._facts.load_fresh(execution)
        if not fresh:
            await self._facts.load(execution)
        if not execution.state.ended and execution.state.cancel is None:
            # Before a takeover is recorded: work that another version put back has lost no coordinator.
            require_strategy(execution.state, STRATEGIES.get(execution.state.specification.strategy))
        execution.trace = sampled_trace(self._tracer, execution.deliberation_id, execution.state.accepted.traceparent)
        active_span.set(execution.trace and execution.trace.workflow)
        if execution.state.stages:
            await self._take_over(execution)
            await self._wait_for_turn(execution)
        else:
            await self._wait_for_turn(execution)
            if not fresh or execution.state.stages:
                await self._take_over(execution)

    async def _wait_for_turn(self, execution: Execution) -> None:
        """Return at the execution's turn, or when it needs none: it was begun before, is stopped, or is too late."""
        roles = frozenset(agent.role for agent in execution.state.specification.agents)
        key = roles, execution.state.specification.priority
        queue = self._admission.setdefault(key, AdmissionQueue(self._slots))
        ticket = execution.join(queue, asyncio.get_running_loop().time())
        deadline_at = execution.state.accepted.deadline_at
        execution.alive_until = max(execution.alive_until, deadline_at + GRACE)
        while not ticket.granted.is_set() and execution.state.cancel is None and not execution.state.ended:
            left_s = (deadline_at - datetime.now(UTC)).total_seconds()
            if left_s <= 0:
                break
            await self._facts.catch_up(execution, await execution.next_fact(ticket.granted, left_s))

    async def _take_over(self, execution: Execution) -> None:
        """Record a takeover before anything is done. A suspect first waits until few others run, or none."""
        execution.resumed = execution.resumed or bool(execution.state.stages) or execution.state.takeovers > 0
        execution.takeovers = execution.state.takeovers
        if not execution.resumed or execution.state.ended:
            return
        execution.enter(ExecutionState.RUNNING)
        if execution.state.takeovers_without_progress >= SUSPECT_TAKEOVERS:
            execution.alive_until = execution.state.accepted.deadline_at + GRACE
            last = execution.state.takeovers_without_progress >= POISON_TAKEOVERS - 2
            await execution.isolate(self._last_chance if last else self._suspects)
            asyncio.get_running_loop().call_later(SUSPECT_FOR_S, execution.clear_suspicion)
            await self._facts.load(execution)
            if execution.state.ended:
                return
        resumed = Resumed(
            deliberation_id=execution.deliberation_id,
            ts=datetime.now(UTC),
            takeover=execution.state.takeovers + 1,
            replica=REPLICA,
        )
        cause = "stop" if execution.state.given_back else "loss"
        if await self._facts.append(execution, resumed):
            self._counts.takeovers[cause] += 1
        execution.takeovers = execution.state.takeovers

    async def _run_stage(self, execution: Execution, run: RunStage) -> None:
        execution.alive_until = run.deadline_at + 2 * GRACE
        await self._facts.catch_up(execution)
        if not waits_for_calls(execution.state, datetime.now(UTC)):
            return
        by_role: dict[str, list[Call]] = {}
        for call in run.calls:
            by_role.setdefault(call.role, []).append(call)
        try:
            async with asyncio.TaskGroup() as group:
                requests = [
                    group.create_task(self._roles.run(execution, run, *role_calls)) for role_calls in by_role.items()
                ]
                try:
                    while waits_for_calls(execution.state, datetime.now(UTC)):
                        await self._wait_until_next_moment(execution)
                    if all_stopped(execution.state, datetime.now(UTC)):
                        await self._wait_for_stopped_calls(execution)
                finally:
                    for request in requests:
                        request.cancel()
        except ExceptionGroup as group:
            # The supervisor distinguishes errors by their class: raise the first one itself.
            raise group.exceptions[0] from group

    async def _wait_until_next_moment(self, execution: Execution) -> None:
        now = datetime.now(UTC)
        received: list[Record | None] = []
        with suppress(TimeoutError):
            async with asyncio.timeout((next_moment(execution.state, now) - now).total_seconds()):
                received.append(await execution.inbox.get())
        await self._facts.catch_up(execution, received)

    async def _wait_for_stopped_calls(self, execution: Execution) -> None:
        """Fold facts until every stopped call has recorded its cost, once and for a second at most.

        A verdict waits for at most half of the time left to its deadline, which might refuse it.
        """
        if execution.phase is ExecutionState.STOPPING:
            return
        execution.enter(ExecutionState.STOPPING)
        now = datetime.now(UTC)
        left_s = (execution.state.accepted.deadline_at - now).total_seconds()
        within_s = STOP_GRACE_S if all_stopped(execution.state, now) else min(STOP_GRACE_S, left_s / 2)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not execution.state.ended and awaits_stopped_calls(execution.state, datetime.now(UTC)):
                    await self._facts.catch_up(execution, [await execution.inbox.get()])


def _decision(execution: Execution) -> Decision:
    state = execution.state
    return decide(state, datetime.now(UTC), STRATEGIES.get(state.specification.strategy), execution.replay)
