"""A replica of a role: runs a stage's calls together and records each outcome, first write wins.

Calls belong to the replica, not to the request: when a coordinator dies, they run on, and its successor reads their
outcomes from the log. Facts stop calls: a task of the queue cannot be cancelled, nor can Ray's requests in every mode.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import structlog

from app.deliberation.announcements import Neighbours, agent_response
from app.deliberation.calls import Call, StageRequest
from app.deliberation.errors import CallCancelled, DeliberationError, FactTooLarge, InputGone, JournalUnavailable
from app.deliberation.facts import CallFinished, CallStarted, ToolUsed, decode, prefix
from app.deliberation.prompts.form import with_persona
from app.deliberation.roles import Role
from app.log.inputs import COUNT, CountedInput
from app.log.journal import JetStreamJournal
from app.log.stream_settings import Publication
from app.log.text_viewers import SUBJECT, TextViewers
from app.observability.process_counts import ToolCounts
from app.observability.replica_status import HEARTBEAT_S, HEARTBEATS_SUBJECT
from app.observability.trace_context import DeliberationTrace, SpanRef, active_span
from app.observability.traces import Tracer
from app.workspace.repositories import NO_REPOSITORIES, AllowedRepositories
from serve_deployments.agent.call import CallRun
from serve_deployments.agent.cancellation import CancellationListener
from serve_deployments.agent.inputs import Inputs
from serve_deployments.engine.client import PROBE_TIMEOUT_S, Engines
from serve_deployments.identity import identity
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.sandbox.checks import Sandbox
from serve_deployments.tools.servers import ToolServers
from serve_deployments.tools.toolbox import GrantedTools
from serve_deployments.workspace.copies import Copies
from serve_deployments.workspace.sources import Fetches
from serve_deployments.workspace.workspace import Workspaces

APPEND_TIMEOUT_S = 120.0
# Less than the half second that gateways wait for a replica's description (`app.operations.survey`): an engine that
# hangs must not make its agents seem dead.
PROBE_WITHIN_S = 0.25
# A survey waits for what each engine answers anew, or that it does not; it gives a replica two seconds.
PROBED_WITHIN_S = PROBE_TIMEOUT_S + 0.1
# The counters of a replica's description, from its start.
COUNTS = ("answered", "failed", "cut", "retries", "hedges")

log = structlog.get_logger(__name__)


class AgentReplica:
    def __init__(
        self,
        name: str,
        role: Role,
        engines: Engines,
        journal: JetStreamJournal,
        *,
        stream_deltas: bool,
        publications: Collection[Publication] = (),
        engine_away_timeout_s: float,
        identity: Callable[[], dict[str, Any]] = identity,
        tracer: Tracer | None = None,
        repositories: AllowedRepositories = NO_REPOSITORIES,
        workspace_dir: Path | None = None,
    ) -> None:
        self.name = name
        self.tracer = tracer
        self.role = role
        self.engines = engines
        engines.concurrency, engines.model = role.concurrency, role.model
        self.journal = journal
        self._neighbours: Neighbours = journal
        self.stream_deltas = stream_deltas
        self.viewers = TextViewers(always="texts" in publications)
        self._responds = "responses" in publications
        self.engine_away_timeout_s = engine_away_timeout_s
        self._node_directory = NodeDirectory(workspace_dir)
        self.sandbox = Sandbox(self._node_directory)
        self.inputs = Inputs(journal.inputs)
        copies, fetches = Copies(self._node_directory), Fetches(repositories, self._node_directory)
        self._workspaces = Workspaces(copies, self.sandbox, journal, fetches)
        self._identity = identity
        # By deliberation and call.
        self._running: dict[str, dict[str, tuple[CallRun, asyncio.Task[None]]]] = {}
        self._counts: Counter[str] = Counter()
        self._lenient: Counter[str] = Counter()
        # By currency, in millionths.
        self._costs: Counter[str] = Counter()
        self._requests = 0
        self._cancellations = CancellationListener(journal, self._stop)
        self._tools = ToolServers(role.tools, self._node_directory)
        self._tool_uses = {role_tools.mcp.name: ToolCounts() for role_tools in role.tools}

    def count(self, what: str) -> None:
        self._counts[what] += 1

    def count_use(self, used: ToolUsed) -> None:
        # A use without a server names no tool that the call has.
        if used.server:
            self._tool_uses.setdefault(used.server, ToolCounts()).count(used)

    def toolboxes(self, request: StageRequest, call: Call) -> Sequence[GrantedTools]:
        return [*self._workspaces.granted(request, call), *self._tools.granted(call, request.tenant)]

    @property
    def in_flight(self) -> int:
        """Calls that wait for an engine, are at one, or record their outcome."""
        return sum(map(len, self._running.values()))

    async def listen(self) -> None:
        await self.journal.answer(f"control.role.{self.name}", self.describe)
        await self.journal.listen(SUBJECT, self.viewers.renew)

    async def keep(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._workspaces.keep())
            await self._cancellations.keep(
                lambda: {(run.request.tenant, run.request.deliberation_id) for run, _ in self._all_running()},
                lambda: not self._requests and not self._running,
            )

    def _all_running(self) -> Iterator[tuple[CallRun, asyncio.Task[None]]]:
        return chain.from_iterable(running.values() for running in self._running.values())

    def _stop(self, deliberation_id: str, stage: float, why: str) -> None:
        for run, task in self._running.get(deliberation_id, {}).values():
            if run.request.stage <= stage and run.stopped is None:
                run.stopped = why
                # A task that has not begun reads the reason itself; a task with an outcome is recording the outcome.
                if run.stoppable:
                    task.cancel()

    async def describe(self, asked: bytes = b"") -> dict[str, Any]:
        """The replica as `GET /roles`, `GET /status` and `/metrics` show it.

        Asked to `probe`, it asks its engines anew. Else a probe of the last second is good enough, and one that takes
        longer is not waited for. Asked to `count`, it returns the tokens of an input instead.
        """
        if asked.startswith(COUNT):
            return await self._count(asked.removeprefix(COUNT))
        if asked == b"probe":
            await self.engines.probe_briefly(PROBED_WITHIN_S, fresh_s=0.0)
        else:
            await self.engines.probe_briefly(PROBE_WITHIN_S)
        return self._described()

    async def _count(self, asked: bytes) -> dict[str, Any]:
        """The tokens of a text input as an engine of this role counts them; null where none does."""
        counted = CountedInput.model_validate_json(asked)
        try:
            text = await self.inputs.text_of(counted.tenant, counted.file)
        except (InputGone, JournalUnavailable):
            return {"tokens": None}
        return {"tokens": await self.engines.count_tokens(text, self.role.model)}

    async def _beat(self) -> NoReturn:
        """Tell gateways regularly that this replica works. Runs until cancelled."""
        while True:
            await self.journal.tell(HEARTBEATS_SUBJECT.format(role=self.name), json.dumps(self._described()).encode())
            await asyncio.sleep(HEARTBEAT_S)

    def _described(self) -> dict[str, Any]:
        model = self.role.model or next((engine.models[0] for engine in self.engines.engines if engine.models), None)
        return {
            **self._identity(),
            "role": self.name,
            "model": model,
            "simulated": bool(model and "simulated" in model),
            "engines": [engine.described(time.monotonic(), self.role.model) for engine in self.engines.engines],
            "in_flight": self.in_flight,
            "waiting": self.engines.waiting,
            "concurrency": self.role.concurrency,
            "counts": {name: self._counts[name] for name in COUNTS},
            "lenient": dict(self._lenient),
            "costs": dict(self._costs),
            "tools": self._tools.described(),
            "failed_removals": self._node_directory.failed_removals,
            "tool_uses": {server: counts.model_dump() for server, counts in self._tool_uses.items()},
        }

    async def finish(self, within_s: float | None = None) -> None:
        """Wait for the running calls, at most `within_s`: a recorded outcome is not requested again."""
        running = [task for _, task in self._all_running()]
        if running:
            await asyncio.wait(running, timeout=within_s)

    async def close(self) -> None:
        """End the connections to tool servers, with the processes of those that are commands."""
        await self._tools.close()

    async def run_stage(self, request: StageRequest) -> None:
        """Run a stage's calls at once; returns when the outcome of each is in the log, where coordinators receive it.

        Raises JournalUnavailable when an outcome cannot be recorded.
        """
        self._requests += 1
        try:
            await self._cancellations.watch(request.tenant, request.deliberation_id, request.accepted_sequence)
            tasks = await self._start_calls(request)
            if tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    if not task.cancelled():
                        task.result()
        finally:
            self._requests -= 1

    async def _start_calls(self, request: StageRequest) -> set[asyncio.Task[None]]:
        recorded, attempts, unrecorded_at = set[str](), dict[str, int](), request.asked_at
        # A call that ends while the log is read may be missing in what was read: its task knows its end.
        running = self._running_of(request)
        if request.resumed or self._cancellations.taken_over(request.deliberation_id):
            unrecorded_at = datetime.now(UTC)
            recorded, attempts = await self._history(request)
            running |= self._running_of(request)
        return {
            running.get(call.call_id) or self._start_call(request, call, attempts.get(call.call_id, 0), unrecorded_at)
            for call in request.calls
            if call.call_id not in recorded
        }

    def _running_of(self, request: StageRequest) -> dict[str, asyncio.Task[None]]:
        running = self._running.get(request.deliberation_id, {})
        return {call.call_id: running[call.call_id][1] for call in request.calls if call.call_id in running}

    async def _history(self, request: StageRequest) -> tuple[set[str], dict[str, int]]:
        """The calls with a recorded outcome, and how many attempts each call has had."""
        subject = prefix(request.tenant, request.deliberation_id)
        tails = [f"{subject}.call.{call.call_id}.{tail}" for call in request.calls for tail in ("started", "finished")]
        recorded, attempts = set[str](), dict[str, int]()
        for record in await self.journal.last(tails):
            match decode(record.data):
                case CallStarted() as started:
                    attempts[started.call_id] = started.attempt
                case _:
                    recorded.add(record.tokens[4])
        return recorded, attempts

    def _start_call(
        self, request: StageRequest, call: Call, attempts_before: int, unrecorded_at: datetime
    ) -> asyncio.Task[None]:
        asked = with_persona(call, self.role.persona, shared=request.one_persona)
        run = CallRun(self, request, asked, attempts_before, unrecorded_at)
        # Not in a task group: the call outlives the request. The replica holds the task, and requests await it.
        task = asyncio.get_running_loop().create_task(self._run(run))
        self._running.setdefault(request.deliberation_id, {})[call.call_id] = run, task
        task.add_done_callback(lambda _: self._forget(request.deliberation_id, call.call_id))
        return task

    def _forget(self, deliberation_id: str, call_id: str) -> None:
        del self._running[deliberation_id][call_id]
        if not self._running[deliberation_id]:
            del self._running[deliberation_id]

    async def _run(self, run: CallRun) -> None:
        if self.tracer is not None and (stage := SpanRef.of_traceparent(run.request.traceparent)) is not None:
            trace = DeliberationTrace(run.request.deliberation_id, stage.trace_id, stage)
            active_span.set(trace.agent(run.call.call_id))
        run.stopped = self._cancellations.why(run.request.deliberation_id, run.request.stage)
        if run.stopped is not None:
            await self._record(run, run.failed(CallCancelled(run.stopped)))
            return
        self.engines.retries.deposit()
        run.stoppable = True
        try:
            outcome = await self._outcome_of(run)
        except asyncio.CancelledError:
            if run.stopped is None or (task := asyncio.current_task()) is None:
                raise
            task.uncancel()
            outcome = run.failed(CallCancelled(run.stopped))
        finally:
            run.stoppable = False
        await self._record(run, outcome)

    async def _outcome_of(self, run: CallRun) -> CallFinished:
        try:
            return await run.outcome()
        except JournalUnavailable:
            # A use of a tool that cannot be recorded: as with an outcome, the coordinator asks again.
            raise
        except Exception as error:
            # A named place for a broad except: a defect ends its call, which coordinators would else repeat for ever.
            log.exception("call_broke")
            return run.failed(DeliberationError(f"internal error: {type(error).__name__}"))

    async def _record(self, run: CallRun, outcome: CallFinished) -> None:
        try:
            appended = await self.journal.append(run.request.tenant, outcome)
        except FactTooLarge as too_large:
            outcome = run.failed(too_large)
            appended = await self.journal.append(run.request.tenant, outcome)
        if appended.created:
            problem, cost = outcome.problem, outcome.usage.cost
            self.count("answered" if problem is None else "cut" if problem.code == CallCancelled.code else "failed")
            self._lenient.update(outcome.lenient)
            if cost is not None:
                self._costs[cost.currency] += int(cost.amount * 1_000_000)
            if self._responds:
                await self._respond(run, outcome)

    async def _respond(self, run: CallRun, outcome: CallFinished) -> None:
        """Announce an outcome. One that cannot be announced now is announced at the end."""
        request, call = run.request, run.call
        response = agent_response(
            request.tenant, outcome, call.output, temperature=call.temperature, first_agent=request.first_agent
        )
        try:
            await self._neighbours.respond(response)
        except JournalUnavailable as error:
            log.warning("response_lost", deliberation_id=request.deliberation_id, error=str(error))
