"""Agent: one deployment per role. It runs a stage's calls together and records each answer, first write wins.

Calls belong to the replica, not to the request that brought them: a coordinator that dies leaves them running, their
answers are recorded, and its successor reads them instead of paying again. They are stopped by facts (cancel, a closed
stage, the end) that every replica hears, because what Ray does with a cancelled consumer depends on its mode.
"""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from app.deliberation.calls import Call, ChatMessage
from app.deliberation.errors import CallCancelled, DeliberationError, FactTooLarge
from app.deliberation.facts import CallFinished, CallStarted, decode, prefix
from app.deliberation.ports import Record
from app.deliberation.prompts.form import persona_section
from app.deliberation.roles import Role
from app.log.journal import JetStreamJournal
from app.observability.logs import outlast_output
from serve_deployments.agent.call import CallRun, StageRequest
from serve_deployments.agent.cancellation import CancellationListener
from serve_deployments.engine.client import Engines
from serve_deployments.identity import identity
from serve_deployments.sandbox.checks import Sandbox

APPEND_PATIENCE_S = 120.0
# Less than Serve's graceful_shutdown_timeout_s, after which the replica is killed.
FINISH_WITHIN_S = 4.5
# An engine that hangs must not make its agents seem dead: whoever asks waits half a second for them
# (`app.routes.roles`).
LOOK_WITHIN_S = 0.25
# What a replica counts from its start, and tells with its description.
COUNTS = ("answered", "failed", "cut", "retries", "hedges")

log = structlog.get_logger(__name__)


def settle_heap() -> None:
    """Leave what was loaded at start out of garbage collection, and collect the rest less often.

    Ray, pydantic and grpc are some 500,000 objects, which every full collection would walk.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@dataclass(frozen=True, slots=True)
class _Running:
    """A call that runs here."""

    tenant: str
    stage: int
    run: CallRun
    task: asyncio.Task[Record]

    def stop(self, why: str) -> None:
        """Close its request to the engine. Of two facts that stop it, the first is why."""
        if self.run.stopped is None:
            self.run.stopped = why
            # One that has not begun yet sees for itself: cancelled now, it would never record that it was cut.
            if self.run.begun:
                self.task.cancel()


class AgentReplica:
    """What a replica of `Agent:<ROLE>` holds: its role, its engines, the log, and the calls that run."""

    def __init__(
        self, name: str, role: Role, engines: Engines, journal: JetStreamJournal, *, stream_deltas: bool
    ) -> None:
        self.name = name
        self.role = role
        self.engines = engines
        self.journal = journal
        self.stream_deltas = stream_deltas
        self.slots = asyncio.Semaphore(role.concurrency)
        self.sandbox = Sandbox()
        self._running: dict[tuple[str, str], _Running] = {}
        self._counts: Counter[str] = Counter()
        self._requests = 0
        self._stops = CancellationListener(journal, self._stop)

    def count(self, what: str) -> None:
        """Count something that operators want to know: an outcome, a retry, a hedge."""
        self._counts[what] += 1

    async def listen(self) -> None:
        """Answer the questions that coordinators and gateways ask."""
        await self.journal.answer(f"control.role.{self.name}", self.describe)

    async def keep(self) -> None:
        """Miss nothing that stops calls, and rest while nobody asks for any. Runs until cancelled."""
        await self._stops.keep(
            lambda: {(running.tenant, deliberation_id) for (deliberation_id, _), running in self._running.items()},
            lambda: not self._requests and not self._running,
        )

    def _stop(self, deliberation_id: str, stage: float, why: str) -> None:
        for (running_id, _), running in list(self._running.items()):
            if running_id == deliberation_id and running.stage <= stage:
                running.stop(why)

    async def describe(self) -> dict[str, Any]:
        """The replica as `GET /roles`, `GET /cluster` and `/metrics` show it."""
        await self.engines.look(LOOK_WITHIN_S)
        model = self.role.model or next((e.models[0] for e in self.engines.engines if e.models), None)
        return {
            **identity(),
            "role": self.name,
            "model": model,
            "simulated": bool(model and "simulated" in model),
            "engines": [
                {
                    "url": engine.url,
                    "healthy": engine.healthy,
                    "circuit": engine.circuit.state(time.monotonic()),
                    "in_flight": engine.in_flight,
                    "models": list(engine.models),
                    "version": engine.version,
                }
                for engine in self.engines.engines
            ],
            "in_flight": len(self._running),
            "concurrency": self.role.concurrency,
            "counts": {name: self._counts[name] for name in COUNTS},
        }

    async def finish(self, within_s: float) -> None:
        """Let the calls that run end, but no longer than that: what they record is not asked for again."""
        running = [each.task for each in self._running.values()]
        if running:
            await asyncio.wait(running, timeout=within_s)

    async def run_stage(self, request: StageRequest) -> AsyncIterator[tuple[int, bytes]]:
        """Run a stage's calls at once; yields (sequence, bytes) of each recorded outcome as it comes.

        Raises JournalUnavailable when an outcome cannot be recorded.
        """
        self._requests += 1
        try:
            await self._stops.hear(request.tenant, request.deliberation_id, request.accepted_sequence)
            async for record in self._outcomes(request):
                yield record.sequence, record.data
        finally:
            self._requests -= 1

    async def _outcomes(self, request: StageRequest) -> AsyncIterator[Record]:
        attempts: dict[str, int] = {}
        recorded: list[Record] = []
        unrecorded_at = request.asked_at
        if request.resumed or self._stops.taken_over(request.deliberation_id):
            unrecorded_at = datetime.now(UTC)
            recorded, attempts = await self._history(request)
        for record in recorded:
            yield record
        known = {record.tokens[4] for record in recorded}
        waiting = {
            self._task(request, call, attempts.get(call.call_id, 0), unrecorded_at)
            for call in request.calls
            if call.call_id not in known
        }
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    yield task.result()

    async def _history(self, request: StageRequest) -> tuple[list[Record], dict[str, int]]:
        """Outcomes that are recorded already, and how many attempts each call has had."""
        subject = prefix(request.tenant, request.deliberation_id)
        tails = [f"{subject}.call.{call.call_id}.{tail}" for call in request.calls for tail in ("started", "finished")]
        recorded: list[Record] = []
        attempts: dict[str, int] = {}
        for record in await self.journal.last(tails):
            match decode(record.data):
                case CallStarted() as started:
                    attempts[started.call_id] = started.attempt
                case _:
                    recorded.append(record)
        return recorded, attempts

    def _task(
        self, request: StageRequest, call: Call, attempts_before: int, unrecorded_at: datetime
    ) -> asyncio.Task[Record]:
        """The call's task: the one that runs already, when another coordinator's request brought the call before."""
        key = (request.deliberation_id, call.call_id)
        if key in self._running:
            return self._running[key].task
        run = CallRun(self, request, self._with_persona(call), attempts_before, unrecorded_at)
        # Not in a task group: the call outlives the request. It is held here, and awaited by whoever asked.
        task = asyncio.get_running_loop().create_task(self._recorded(request, run))
        self._running[key] = _Running(request.tenant, request.stage, run, task)
        task.add_done_callback(lambda _: self._running.pop(key))
        return task

    async def _recorded(self, request: StageRequest, run: CallRun) -> Record:
        """Record the call's outcome; of a call that a fact stops, that it was cut and what it had cost."""
        run.begun = True
        run.stopped = self._stops.why(request.deliberation_id, request.stage)
        if run.stopped is not None:
            return await self._append(request, run, run.failed(CallCancelled(run.stopped)))
        outcome: CallFinished | None = None
        self.engines.retries.first_attempt()
        try:
            outcome = await self._outcome_of(run)
            return await self._append(request, run, outcome)
        except asyncio.CancelledError:
            if run.stopped is None or (task := asyncio.current_task()) is None:
                raise
            task.uncancel()
            return await self._append(request, run, outcome or run.failed(CallCancelled(run.stopped)))

    async def _outcome_of(self, run: CallRun) -> CallFinished:
        try:
            return await run.outcome()
        except Exception as error:
            # A named place for a broad except: a defect ends its call, which would be made again for ever otherwise.
            log.exception("call_broke")
            return run.failed(DeliberationError(f"internal error: {type(error).__name__}"))

    async def _append(self, request: StageRequest, run: CallRun, outcome: CallFinished) -> Record:
        problem = outcome.problem
        self.count("answered" if problem is None else "cut" if problem.code == CallCancelled.code else "failed")
        try:
            return (await self.journal.append(request.tenant, outcome)).record
        except FactTooLarge as too_large:
            return (await self.journal.append(request.tenant, run.failed(too_large))).record

    def _with_persona(self, call: Call) -> Call:
        if call.check is not None:
            return call
        *before, last = call.messages
        ending = ChatMessage(role=last.role, content=last.content + persona_section(self.role.persona))
        return call.model_copy(update={"messages": (*before, ending)})


class Agent:
    """The Serve deployment of one role: its replica's calls, reached by a streaming handle call per stage."""

    async def __init__(self, name: str, role: Role, nats_url: str, engine_urls: list[str], stream_deltas: bool) -> None:
        outlast_output()
        journal = await JetStreamJournal.connect(nats_url, name=f"agent-{name}", patience_s=APPEND_PATIENCE_S)
        engines = Engines(role.engines or engine_urls, connections=role.concurrency)
        await engines.probe()
        self._replica = AgentReplica(name, role, engines, journal, stream_deltas=stream_deltas)
        await self._replica.listen()
        self._resting = asyncio.get_running_loop().create_task(self._replica.keep())
        settle_heap()

    async def __del__(self) -> None:
        """Called by Serve before the replica stops: nobody waits for its calls any more, but their answers count."""
        await self._replica.finish(FINISH_WITHIN_S)

    async def run_stage(self, request: bytes) -> AsyncIterator[tuple[int, bytes]]:
        """See `AgentReplica.run_stage`; `request` is a StageRequest as JSON."""
        async for outcome in self._replica.run_stage(StageRequest.model_validate_json(request)):
            yield outcome
