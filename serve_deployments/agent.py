"""Agent: one deployment per role. It runs a stage's calls together and records each answer, first write wins.

Calls belong to the replica, not to the request that brought them: a coordinator that dies leaves them running, their
answers are recorded, and its successor reads them instead of paying again. They are stopped by facts (cancel, a closed
stage, the end) that every replica hears, because what Ray does with a cancelled consumer depends on its mode.
"""

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import stamina
import structlog
from pydantic import AwareDatetime

from app.deliberation.anonymity import call_seed
from app.deliberation.calls import Call, ChatMessage, Check, FactProblem, Usage
from app.deliberation.engine import problem_of
from app.deliberation.errors import (
    CallCancelled,
    CallFailure,
    CallTimeout,
    DeliberationError,
    FactTooLarge,
    InvalidOutput,
)
from app.deliberation.facts import CallDelta, CallFinished, CallStarted, decode, prefix
from app.deliberation.outputs import parse_output
from app.deliberation.ports import Record, Subscription
from app.deliberation.prompts.form import persona_section
from app.deliberation.roles import Role
from app.deliberation.specification import Value
from app.journal import JetStreamJournal
from serve_deployments.engine import Completion, EngineAway, Engines, EngineState, Meter, RetryLater
from serve_deployments.sandbox.checks import Sandbox

STOPS = ("deliberations.*.*.cancel", "deliberations.*.*.stage.*.closed", "deliberations.*.*.end")
IDLE_AFTER_S = 10.0
ATTEMPTS_MAX = 3
FRAME_S = 0.05
APPEND_PATIENCE_S = 120.0
# What a replica counts from its start, and tells with its description.
COUNTS = ("answered", "failed", "cut", "retries", "hedges")
RETRY_WAIT_MAX_S = 5.0
# What stands where a model would when no engine is asked.
CHECKED_BY = "sandbox"

log = structlog.get_logger(__name__)


def settle_heap() -> None:
    """Leave what was loaded at start out of garbage collection, and collect the rest less often.

    Ray, pydantic and grpc are some 500,000 objects, which every full collection would walk.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class StageRequest(Value, frozen=True):
    """Calls of one role in one stage. `resumed` says that some may have been made or recorded before."""

    tenant: str
    deliberation_id: str
    stage: int
    calls: tuple[Call, ...]
    deadline_at: AwareDatetime
    resumed: bool


class DeltaPublisher:
    """Publishes an attempt's text as it grows: the first piece at once, later ones gathered into frames of 50 ms."""

    def __init__(self, journal: JetStreamJournal, request: StageRequest, call: Call, attempt: int) -> None:
        self._journal = journal
        self._request = request
        self._call = call
        self._attempt = attempt
        self._offset = 0
        self._waiting: list[str] = []
        self._due_s = 0.0

    async def take(self, text: str) -> None:
        """Take a piece of text in, and publish when a frame is due."""
        self._waiting.append(text)
        if asyncio.get_running_loop().time() >= self._due_s:
            await self.flush()

    async def flush(self) -> None:
        """Publish what waits."""
        if not self._waiting:
            return
        text = "".join(self._waiting)
        self._waiting.clear()
        delta = CallDelta(
            deliberation_id=self._request.deliberation_id,
            ts=datetime.now(UTC),
            call_id=self._call.call_id,
            agent_id=self._call.agent_id,
            attempt=self._attempt,
            offset=self._offset,
            text=text,
        )
        self._offset += len(text)
        self._due_s = asyncio.get_running_loop().time() + FRAME_S
        await self._journal.publish_view(self._request.tenant, delta)


def backoff_hook(error: Exception) -> bool | float:
    """Whether to try a failed request again, or after how many seconds: 429, 5xx and broken connections, not 4xx."""
    if isinstance(error, RetryLater) and error.after_s > 0:
        return min(error.after_s, RETRY_WAIT_MAX_S)
    return isinstance(error, CallFailure) and error.retryable


class CallRun:
    """One call on its way to a recorded outcome."""

    def __init__(self, agent: "AgentReplica", request: StageRequest, call: Call, attempts_before: int) -> None:
        self._agent = agent
        self._request = request
        self._call = call
        # A check asks no engine: there is no attempt to count, however often it has been begun.
        self._attempt = attempts_before if call.check is None else 0
        self._unsent = 0
        self._answered_by: int | None = None
        self._usage = Usage()
        self._failed_engines: list[EngineState] = []
        self._model: str | None = None
        self._engine: str | None = None
        self._began = datetime.now(UTC)
        # Why a fact stops it, from the moment when one does.
        self.stopped: str | None = None

    async def outcome(self) -> CallFinished:
        """The call's outcome: an answer that satisfies its schema, or the failure that remained after all attempts."""
        try:
            async with asyncio.timeout((self._request.deadline_at - datetime.now(UTC)).total_seconds()):
                check = self._call.check
                completion = await (self._answered() if check is None else self._ran(check))
        except TimeoutError:
            return self.failed(CallTimeout("no answer within the call's deadline"))
        except CallFailure as failure:
            return self.failed(failure)
        ttft_ms = None if completion.ttft_s is None else round(completion.ttft_s * 1_000)
        return self._finished(text=completion.text, finish_reason=completion.finish_reason, ttft_ms=ttft_ms)

    async def _ran(self, check: Check) -> Completion:
        """A sandbox's report instead of an engine's answer."""
        await self._started(CHECKED_BY, attempt=1)
        within_s = (self._request.deadline_at - datetime.now(UTC)).total_seconds()
        report = await self._agent.sandbox.report(check, within_s)
        return Completion(text=report.model_dump_json(), finish_reason="stop", usage=Usage(), ttft_s=None)

    async def _started(self, model: str, attempt: int) -> None:
        started = CallStarted(
            deliberation_id=self._request.deliberation_id,
            ts=datetime.now(UTC),
            call_id=self._call.call_id,
            agent_id=self._call.agent_id,
            role=self._call.role,
            model=model,
            attempt=attempt,
        )
        await self._agent.journal.publish_view(self._request.tenant, started)

    async def _answered(self) -> Completion:
        """A valid answer; an invalid one is asked for once more, with another seed."""
        completion = await self._completed()
        try:
            return self._checked(completion)
        except InvalidOutput as invalid:
            log.info("output_invalid", call_id=self._call.call_id, error=str(invalid))
        return self._checked(await self._completed())

    def _checked(self, completion: Completion) -> Completion:
        if completion.finish_reason == "length":
            raise InvalidOutput(f"the answer was cut off at max_tokens={self._call.max_tokens}")
        parse_output(self._call.output, completion.text)
        return completion

    async def _completed(self) -> Completion:
        """One completion, from whichever engine gives it within the allowed attempts."""
        try:
            return await self._requested()
        except CallFailure as exc:
            failures = [exc]
        # Entered only after a failure, which counts as its first attempt: to build the context costs 0.1 ms a call.
        retries = stamina.retry_context(
            on=self._backoff, attempts=ATTEMPTS_MAX, timeout=None, wait_initial=0.1, wait_max=RETRY_WAIT_MAX_S
        )
        async for attempt in retries:
            with attempt:
                if failures:
                    raise failures.pop()
                return await self._requested()
        raise AssertionError("a retry context ends by returning or raising")

    def _backoff(self, error: Exception) -> bool | float:
        again = backoff_hook(error)
        if again is False:
            return False
        self._agent.count("retries")
        if not isinstance(error, RetryLater):
            return again
        # What an overloaded engine refuses comes again no faster than the budget of retries allows.
        return max(float(again), self._agent.engines.retries.wait_s(time.monotonic()))

    async def _requested(self) -> Completion:
        async with self._agent.slots:
            while True:
                try:
                    async with self._agent.engines.turn(self._failed_engines) as engine:
                        return await self._hedged(engine)
                except EngineAway as away:
                    # Nothing was sent: its circuit is open now, and whoever may be asked next is waited for.
                    log.info("engine_away", call_id=self._call.call_id, error=str(away))

    async def _hedged(self, engine: EngineState) -> Completion:
        """The engine's completion; where the role hedges and the engine is slow, another one's, if that is sooner."""
        hedges = self._agent.engines.hedges
        after_s = hedges.after_s(self._call.output.kind) if self._agent.role.hedge else None
        if after_s is None:
            return await self._timed(engine)
        asked = {asyncio.get_running_loop().create_task(self._timed(engine))}
        try:
            done, _ = await asyncio.wait(asked, timeout=after_s)
            other = None if done else self._agent.engines.choose([*self._failed_engines, engine])
            if other is not None and other is not engine and hedges.take():
                self._agent.count("hedges")
                asked.add(asyncio.get_running_loop().create_task(self._timed(other)))
            waiting = asked
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                first = done.pop()
                if not waiting or first.exception() is None:
                    return first.result()
        finally:
            for task in asked:
                task.cancel()
            # Waited for, so that what the slower one had cost is counted.
            await asyncio.gather(*asked, return_exceptions=True)

    async def _timed(self, engine: EngineState) -> Completion:
        began_s = time.monotonic()
        try:
            completion = await self._requested_of(engine)
        except CallFailure:
            self._failed_engines.append(engine)
            raise
        self._agent.engines.hedges.answered(self._call.output.kind, time.monotonic() - began_s)
        return completion

    async def _requested_of(self, engine: EngineState) -> Completion:
        call, request, journal = self._call, self._request, self._agent.journal
        model = await self._agent.engines.model_of(engine, call.model or self._agent.role.model)
        self._model, self._engine = model, engine.url
        self._attempt += 1
        attempt = self._attempt
        await self._started(model, attempt)
        deltas = DeltaPublisher(journal, request, call, attempt) if self._agent.stream_deltas else None
        seed = call.seed if attempt == 1 else call_seed(call.seed, call.call_id, attempt)
        trace = f"{request.deliberation_id}.{call.call_id}.{attempt}"
        meter = Meter()
        try:
            completion = await self._agent.engines.complete(
                engine, call, model, seed=seed, trace=trace, on_text=deltas.take if deltas else None, meter=meter
            )
        except EngineAway:
            self._unsent += 1
            raise
        finally:
            self._usage += meter.usage
        if deltas:
            await deltas.flush()
        # Of two that were asked, the one that answers.
        self._model, self._engine, self._answered_by = model, engine.url, attempt
        return completion

    def failed(self, error: DeliberationError) -> CallFinished:
        """The outcome that records a failure instead of an answer."""
        return self._finished(problem=problem_of(error))

    def _finished(
        self,
        *,
        text: str | None = None,
        problem: FactProblem | None = None,
        finish_reason: str | None = None,
        ttft_ms: int | None = None,
    ) -> CallFinished:
        now = datetime.now(UTC)
        return CallFinished(
            deliberation_id=self._request.deliberation_id,
            ts=now,
            call_id=self._call.call_id,
            agent_id=self._call.agent_id,
            role=self._call.role,
            stage=self._request.stage,
            attempt=self._answered_by or max(1, self._attempt),
            text=text,
            problem=problem,
            finish_reason=finish_reason,
            model=self._model,
            engine=self._engine,
            # Every attempt is a request to an engine, also one that a crash or a broken stream cut short; but not one
            # that found nobody.
            usage=self._usage.model_copy(update={"calls": self._attempt - self._unsent}),
            duration_ms=round((now - self._began).total_seconds() * 1_000),
            ttft_ms=ttft_ms,
        )


_STOPPED_BY = {
    "cancel": "stopped on request",
    "stage": "stopped: its stage had closed",
    "end": "stopped: the deliberation had ended",
}


@dataclass(frozen=True, slots=True)
class _Running:
    """A call that runs here."""

    stage: int
    run: CallRun
    task: asyncio.Task[Record]

    def stop(self, why: str) -> None:
        """Close its request to the engine. Of two facts that stop it, the first is why."""
        if self.run.stopped is None:
            self.run.stopped = why
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
        self._stops: Subscription | None = None
        # The subscription is shared by requests that come at once, and takes a round trip to make.
        self._stops_lock = asyncio.Lock()

    def count(self, what: str) -> None:
        """Count something that operators want to know: an outcome, a retry, a hedge."""
        self._counts[what] += 1

    async def listen(self) -> None:
        """Answer the questions that coordinators and gateways ask."""
        await self.journal.answer(f"control.role.{self.name}", self.describe)

    async def hear_stops(self) -> None:
        """Hear the facts that stop calls, from now until the replica has been idle for a while.

        Every stage of every deliberation closes by such a fact: an idle role should not pay for the busy ones.
        """
        async with self._stops_lock:
            if self._stops is None:
                self._stops = await self.journal.subscribe(STOPS, self._heard)

    async def rest(self) -> None:
        """Stop hearing what stops calls while nobody asks for any. Runs until cancelled."""
        while True:
            await asyncio.sleep(IDLE_AFTER_S)
            async with self._stops_lock:
                if self._stops is not None and not self._requests and not self._running:
                    await self._stops.close()
                    self._stops = None

    def _heard(self, record: Record) -> None:
        tokens = record.tokens
        stage = int(tokens[4]) if tokens[3] == "stage" else None
        for (deliberation_id, _), running in list(self._running.items()):
            if deliberation_id == tokens[2] and (stage is None or running.stage <= stage):
                running.stop(_STOPPED_BY[tokens[3]])

    async def describe(self) -> dict[str, Any]:
        """The replica as `GET /roles` shows it."""
        await self.engines.probe()
        model = self.role.model or next((e.models[0] for e in self.engines.engines if e.models), None)
        return {
            "role": self.name,
            "replica": f"{os.uname().nodename}-{os.getpid()}",
            "model": model,
            "simulated": bool(model and "simulated" in model),
            "engines": [
                {
                    "url": engine.url,
                    "healthy": engine.healthy,
                    "circuit": engine.circuit.state(time.monotonic()),
                    "in_flight": engine.in_flight,
                    "models": list(engine.models),
                }
                for engine in self.engines.engines
            ],
            "in_flight": len(self._running),
            "counts": {name: self._counts[name] for name in COUNTS},
        }

    async def run_stage(self, request: StageRequest) -> AsyncIterator[tuple[int, bytes]]:
        """Run a stage's calls at once; yields (sequence, bytes) of each recorded outcome as it comes.

        Raises JournalUnavailable when an outcome cannot be recorded.
        """
        self._requests += 1
        try:
            await self.hear_stops()
            async for record in self._outcomes(request):
                yield record.sequence, record.data
        finally:
            self._requests -= 1

    async def _outcomes(self, request: StageRequest) -> AsyncIterator[Record]:
        attempts: dict[str, int] = {}
        recorded: list[Record] = []
        if request.resumed:
            recorded, attempts = await self._history(request)
        for record in recorded:
            yield record
        known = {record.tokens[4] for record in recorded}
        waiting = {
            self._task(request, call, attempts.get(call.call_id, 0))
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

    def _task(self, request: StageRequest, call: Call, attempts_before: int) -> asyncio.Task[Record]:
        """The call's task: the one that runs already, when another coordinator's request brought the call before."""
        key = (request.deliberation_id, call.call_id)
        if key in self._running:
            return self._running[key].task
        run = CallRun(self, request, self._with_persona(call), attempts_before)
        # Not in a task group: the call outlives the request. It is held here, and awaited by whoever asked.
        task = asyncio.get_running_loop().create_task(self._recorded(request, run))
        self._running[key] = _Running(request.stage, run, task)
        task.add_done_callback(lambda _: self._running.pop(key))
        return task

    async def _recorded(self, request: StageRequest, run: CallRun) -> Record:
        """Record the call's outcome; of a call that a fact stops, that it was cut and what it had cost."""
        outcome: CallFinished | None = None
        self.engines.retries.first_attempt()
        try:
            outcome = await run.outcome()
            return await self._append(request, run, outcome)
        except asyncio.CancelledError:
            if run.stopped is None or (task := asyncio.current_task()) is None:
                raise
            task.uncancel()
            return await self._append(request, run, outcome or run.failed(CallCancelled(run.stopped)))

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
        journal = await JetStreamJournal.connect(nats_url, name=f"agent-{name}", patience_s=APPEND_PATIENCE_S)
        engines = Engines(role.engines or engine_urls, connections=role.concurrency)
        await engines.probe()
        self._replica = AgentReplica(name, role, engines, journal, stream_deltas=stream_deltas)
        await self._replica.listen()
        self._resting = asyncio.get_running_loop().create_task(self._replica.rest())
        settle_heap()

    async def run_stage(self, request: bytes) -> AsyncIterator[tuple[int, bytes]]:
        """See `AgentReplica.run_stage`; `request` is a StageRequest as JSON."""
        async for outcome in self._replica.run_stage(StageRequest.model_validate_json(request)):
            yield outcome
