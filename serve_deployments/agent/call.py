"""A call from its request to its outcome. The methods of `CallRun` stand in the order in which an answer passes them.

`outcome` → `_answer` (tools first; again after an invalid reply) → `_retried` → `_on_an_engine` (the pool chooses it) →
`_hedged` → `_attempt` → `_send`. A check runs in the sandbox instead.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import random
from typing import Protocol

import structlog

from app.deliberation.calls import Call, Check, FactProblem, StageRequest, Usage
from app.deliberation.choice.anonymity import call_seed
from app.deliberation.decider import problem_of
from app.deliberation.engine_troubles import CAUSES
from app.deliberation.errors import (
    AnswerWithheld,
    CallFailure,
    CallTimeout,
    DeliberationError,
    EngineUnavailable,
    InvalidOutput,
)
from app.deliberation.facts import CallDelta, CallFinished, CallStarted, CallWaiting, ToolUsed, UnreachableEngine
from app.deliberation.ports import Journal
from app.deliberation.roles import Role
from app.deliberation.specification import ToolAllowance
from app.log.text_viewers import TextViewers
from app.observability import conventions as names
from app.observability.trace_context import SpanRef, active_span, new_span_id
from app.observability.traces import RecordedSpan, Tracer
from serve_deployments.agent.inputs import Inputs
from serve_deployments.agent.outcome_check import OutcomeCheck
from serve_deployments.agent.tool_loop import ToolLoop
from serve_deployments.agent.tool_span import tool_span
from serve_deployments.agent.validation import valid_reply
from serve_deployments.engine.client import Engines
from serve_deployments.engine.reachability import Outage
from serve_deployments.engine.replies import EngineReply, Meter
from serve_deployments.engine.state import EngineFull, EngineState, EngineUnreachable, RetryLater
from serve_deployments.engine.tool_calls import ToolTurn
from serve_deployments.sandbox.checks import Sandbox
from serve_deployments.tools.toolbox import GrantedTools

# Named as the model of a check, which asks no engine.
CHECKED_BY = "sandbox"
ATTEMPTS_MAX = 3
RETRY_WAIT_MIN_S = 0.1
RETRY_WAIT_MAX_S = 5.0
OUTAGE_CHECK_S = 0.5
# With the 2 s of a connection that is attempted meanwhile, viewers see it at least every five seconds.
REPORT_INTERVAL_S = 3.0
# A call with a short deadline gives up before it, so that its deliberation ends with the cause.
DEADLINE_SHARE = 0.8
SALT_CHARACTERS = 32
FRAME_S = 0.05
# A delta stays below the log's limit of a megabyte, even if JSON escapes each character.
DELTA_CHARS_MAX = 65_536

log = structlog.get_logger(__name__)


class NoEngineReachable(EngineUnavailable):
    """No engine of a call could be connected to for as long as the call waits: the call is not retried."""


class CallContext(Protocol):
    """The interface of a replica for its calls."""

    role: Role
    engines: Engines
    sandbox: Sandbox
    inputs: Inputs
    stream_deltas: bool
    viewers: TextViewers
    engine_away_timeout_s: float
    tracer: Tracer | None

    @property
    def journal(self) -> Journal: ...

    def count(self, what: str) -> None: ...

    def count_use(self, used: ToolUsed) -> None: ...

    def toolboxes(self, request: StageRequest, call: Call) -> Sequence[GrantedTools]:
        """The tools that a call may use, from each of their servers; of two with one name the first is used."""
        ...


def cache_salt(tenant: str) -> str:
    """The salt that keeps a tenant's cached prefixes in an engine apart; no secret, because clients never choose it."""
    return hashlib.sha256(f"deliberation-gateway cache_salt {tenant}".encode()).hexdigest()[:SALT_CHARACTERS]


async def announce_attempt(journal: Journal, request: StageRequest, call: Call, model: str, attempt: int) -> None:
    """Publish `call.started`, by which a successor counts the attempts."""
    started = CallStarted(
        deliberation_id=request.deliberation_id,
        ts=datetime.now(UTC),
        call_id=call.call_id,
        agent_id=call.agent_id,
        role=call.role,
        model=model,
        attempt=attempt,
    )
    await journal.publish_view(request.tenant, started, until=request.deadline_at)


class CallRun:
    """A call that runs. Its replica sets `stopped`, the reason of a fact that stops it.

    While it is `stoppable` it has no outcome, and a stop cancels its task. Attempts are numbered from
    `attempts_before`, those of earlier replicas. At `unrecorded_at` the log held no outcome.
    """

    def __init__(
        self,
        context: CallContext,
        request: StageRequest,
        call: Call,
        attempts_before: int,
        unrecorded_at: datetime,
    ) -> None:
        self.request = request
        self.call = call
        self.stoppable = False
        self.stopped: str | None = None
        self._context = context
        self._began_at = datetime.now(UTC)
        # Calls of one deliberation share the beginning of their prompts.
        self._deliberation = f"{request.tenant}.{request.deliberation_id}"
        self._salt = cache_salt(request.tenant)
        self._outcome_check = OutcomeCheck(context.journal, request, call, unrecorded_at)
        # A check has no attempts to count, however often it was begun.
        self._before = self._number = attempts_before if call.check is None else 0
        self._failed_engines: list[EngineState] = []
        self._usage, self._usage_estimated = Usage(), False
        self._model: str | None = None
        self._engine: str | None = None
        # The attempt that brought the reply; two may run at once.
        self._answered_by: int | None = None
        self._shows_schema = False
        self._tools: ToolLoop | None = None
        self._turn: ToolTurn | None = None

    async def outcome(self) -> CallFinished:
        try:
            async with asyncio.timeout(self._left_s()):
                self.call = await self._context.inputs.resolved(self.request.tenant, self.call)
                check = self.call.check
                reply = await (self._answer() if check is None else self._run_check(check))
        except TimeoutError:
            return self.failed(CallTimeout("no answer within the call's deadline"))
        except CallFailure as failure:
            return self.failed(failure)
        return self._finished(reply, None)

    def _left_s(self) -> float:
        return (self.request.deadline_at - datetime.now(UTC)).total_seconds()

    async def _run_check(self, check: Check) -> EngineReply:
        await announce_attempt(self._context.journal, self.request, self.call, CHECKED_BY, attempt=1)
        began_at, error = datetime.now(UTC), "cancelled"
        try:
            report = await self._context.sandbox.report(check, self.request.tenant, self._left_s())
            error = None
        except CallFailure as failure:
            error = failure.code
            raise
        finally:
            self._trace_check(check, began_at, error)
        return EngineReply(text=report.model_dump_json(), finish_reason="stop", usage=Usage(), ttft_s=None)

    def _trace_check(self, check: Check, began_at: datetime, error: str | None) -> None:
        agent = active_span.get()
        if self._context.tracer is None or agent is None:
            return
        span = RecordedSpan(
            name=names.SANDBOX,
            ref=SpanRef(agent.trace_id, new_span_id()),
            parent_id=agent.span_id,
            began_at=began_at,
            ended_at=datetime.now(UTC),
            attributes={names.CALL_ID: self.call.call_id, names.CHECKS: len(check.tests)},
            error=error,
        )
        self._context.tracer.record(span)

    async def _answer(self) -> EngineReply:
        """A valid reply. After an invalid one all attempts are made once more, with another seed.

        The second prompt shows the schema too: an engine may ignore `response_format` without a word. Where the call
        has tools, the model uses them first.
        """
        if self.call.tools is not None and (reply := await self._with_tools(self.call.tools)) is not None:
            return reply
        try:
            return await valid_reply(self.call, await self._retried())
        except InvalidOutput as invalid:
            # The error quotes the reply, and no answer is logged.
            log.info("output_invalid", call_id=self.call.call_id, error=str(invalid.__cause__ or "cut off"))
        self._shows_schema = True
        return await valid_reply(self.call, await self._retried())

    async def _with_tools(self, allowance: ToolAllowance) -> EngineReply | None:
        context = self._context
        granted = context.toolboxes(self.request, self.call)
        self._tools = ToolLoop(
            context.journal, self.request, self.call, allowance, granted, self._left_s, self._count_use
        )

        async def ask(turn: ToolTurn) -> EngineReply:
            self._turn = turn
            return await self._retried()

        reply = await self._tools.run(ask)
        self._turn = self._tools.answering
        return reply

    def _count_use(self, used: ToolUsed) -> None:
        self._context.count_use(used)
        tracer, agent = self._context.tracer, active_span.get()
        if tracer is not None and agent is not None:
            tracer.record(tool_span(used, agent, content=tracer.captures_content))

    async def _retried(self) -> EngineReply:
        """The first reply of at most three attempts; raises the last CallFailure.

        Retried are 408, 429, 5xx, broken or silent streams and unreadable replies. Other refusals (4xx) are final, and
        so is the end of a call's wait for engines that cannot be connected to. A wait that an engine told is no
        attempt. An answer that one engine's model withholds is asked of another engine, if there is one.
        """
        number = 1
        while True:
            try:
                return await self._on_an_engine()
            except NoEngineReachable:
                raise
            except CallFailure as error:
                told = isinstance(error, RetryLater) and error.after_s > 0
                others = isinstance(error, AnswerWithheld) and set(self._context.engines.engines) - {
                    *self._failed_engines
                }
                if not (error.retryable or others) or (number == ATTEMPTS_MAX and not told):
                    raise
                # Here, where the error ends with its handler: a kept error holds the frames that raised it.
                await self._back_off(error, number)
            self._context.count("retries")
            number += not told

    async def _back_off(self, failure: CallFailure, number: int) -> None:
        """Wait before a retry, exponentially longer with each `number`; a Retry-After is waited for by the engines.

        After a 429 or 503 the call waits too until the retry budget allows a retry. The refusal is raised if the call
        has less time left.
        """
        wait_s = min(RETRY_WAIT_MAX_S, RETRY_WAIT_MIN_S * 2 ** (number - 1) + random())
        if not isinstance(failure, RetryLater):
            await asyncio.sleep(wait_s)
            return
        engines, budget = self._context.engines, self._context.engines.retries
        # The pool waits for Retry-After; a very short value does not make the call ask sooner than without the header.
        wait_s = max(0.0, wait_s - failure.after_s, budget.withdraw(time.monotonic()))
        made = False
        try:
            if max(wait_s, engines.told_to_wait_s()) >= self._left_s():
                raise failure
            await asyncio.sleep(wait_s)
            made = True
        finally:
            # Refused, stopped or out of time before its retry.
            if not made:
                budget.refund()

    async def _on_an_engine(self) -> EngineReply:
        """The reply of an engine that can be reached, preferably one that has not failed this call.

        Engines that cannot be reached cost no attempt; raises CallFailure.
        """
        engines, outage = self._context.engines, _OutageWatch(self._context, self.request, self.call)
        while True:
            if (told_s := engines.told_to_wait_s()) >= (left_s := self._left_s()):
                detail = (
                    f"every engine of the role told to wait for {told_s:.0f} s, and the call has {left_s:.0f} s left"
                )
                raise RetryLater(detail, told_s)
            engine, next_check_s = None, await outage.check()
            with suppress(TimeoutError):
                async with asyncio.timeout(next_check_s):
                    engine = await engines.wait_for_engine(
                        self._deliberation, self._failed_engines, self.request.priority, self.request.tenant
                    )
            if engine is None:
                continue
            try:
                return await self._hedged(engine)
            except EngineUnreachable as unreachable:
                # Nothing was sent, and the engine's circuit is open now: choose again.
                log.info("engine_avoided", call_id=self.call.call_id, error=str(unreachable))

    async def _hedged(self, engine: EngineState) -> EngineReply:
        """The reply of `engine`; where the role hedges and it is slow, the sooner reply of it and a second engine."""
        engines = self._context.engines
        after_s = engines.hedges.after_s(self.call.output.kind) if self._context.role.hedge else None
        if after_s is None:
            return await self._attempt(engine)
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._attempt(engine))}
        try:
            done, _ = await asyncio.wait(tasks, timeout=after_s)
            other = None if done else engines.choose(self._deliberation, [*self._failed_engines, engine])
            if other is not None and other is not engine and engines.hedges.acquire():
                self._context.count("hedges")
                tasks.add(loop.create_task(self._attempt(other)))
            pending = tasks
            while True:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                # Both may have ended at once: a failure does not hide the other's reply.
                first = min(done, key=lambda task: task.exception() is not None)
                if not pending or first.exception() is None:
                    return first.result()
        finally:
            for task in tasks:
                task.cancel()
            # Awaited, so that the cost of the slower one is counted.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attempt(self, engine: EngineState) -> EngineReply:
        """The reply to one request. Raises CallFailure, and CallCancelled when another replica recorded the outcome."""
        began_s = time.monotonic()
        try:
            with self._context.engines.requesting(engine, self.request.tenant):
                reply = await self._send(engine)
            if reply.withheld:
                raise AnswerWithheld(f"{engine.label}: {reply.withheld}")
        except EngineFull:
            raise
        except CallFailure:
            self._failed_engines.append(engine)
            raise
        self._context.engines.hedges.answered(self.call.output.kind, time.monotonic() - began_s)
        return reply

    async def _send(self, engine: EngineState) -> EngineReply:
        call, request, context = self.call, self.request, self._context
        model = await context.engines.model_of(engine, call.model or context.role.model)
        await self._outcome_check.require_absent()
        self._model, self._engine = model, engine.address
        self._number += 1
        attempt = self._number
        await announce_attempt(context.journal, request, call, model, attempt)
        deltas = _DeltaPublisher(context, request, call, attempt) if context.stream_deltas else None
        seed = call.seed if attempt == 1 else call_seed(call.seed, call.call_id, attempt)
        trace = f"{request.deliberation_id}.{call.call_id}.{attempt}"
        meter, sent, began_s = Meter(), 1, time.monotonic()
        try:
            reply = await context.engines.complete(
                engine,
                call,
                model,
                seed=seed,
                trace=trace,
                on_text=deltas.add if deltas else None,
                meter=meter,
                salt=self._salt,
                priority=request.priority,
                before_sending=self._outcome_check.require_absent,
                shows_schema=self._shows_schema,
                turn=self._turn,
                is_watched=deltas.is_watched if deltas else None,
            )
        except EngineUnreachable:
            sent = 0
            # A successor counts the numbers as requests: the next attempt gets this number, unless a hedge has the next
            # number.
            if self._number == attempt:
                self._number -= 1
            raise
        finally:
            self._outcome_check.expire()
            spent = meter.usage.model_copy(update={"calls": sent})
            self._usage += spent.at(engine.spec.prices) if sent else spent
            engine.usage += spent
            self._usage_estimated |= meter.estimated
        engine.answered(reply, spent, time.monotonic() - began_s)
        if deltas:
            await deltas.flush()
        self._model, self._engine, self._answered_by = model, engine.address, attempt
        return reply

    def failed(self, error: DeliberationError) -> CallFinished:
        finished = self._finished(None, problem_of(error))
        reason = error.finish_reason if isinstance(error, InvalidOutput) else None
        return finished.model_copy(update={"finish_reason": reason})

    def _finished(self, reply: EngineReply | None, problem: FactProblem | None) -> CallFinished:
        now, ttft_s = datetime.now(UTC), reply and reply.ttft_s
        tools = self._tools
        return CallFinished(
            deliberation_id=self.request.deliberation_id,
            ts=now,
            call_id=self.call.call_id,
            agent_id=self.call.agent_id,
            role=self.call.role,
            stage=self.request.stage,
            attempt=self._answered_by or max(1, self._number),
            text=reply and reply.text,
            problem=problem,
            finish_reason=reply and reply.finish_reason,
            model=self._model,
            engine=self._engine,
            structured=reply and reply.structured,
            lenient=reply.lenient if reply else (),
            # Of earlier replicas' requests only their number is known. Requests that reached no engine do not count.
            usage=self._usage + Usage(calls=self._before, tool_uses=tools.used if tools else 0),
            usage_estimated=self._usage_estimated,
            duration_ms=round((now - self._began_at).total_seconds() * 1_000),
            ttft_ms=None if ttft_s is None else round(ttft_s * 1_000),
            tools_away=tools.away if tools else (),
        )


class _OutageWatch:
    """Bounds the wait of a call that can connect to none of its engines, and reports it to viewers.

    The wait begins with the construction, and ends after `engine_away_timeout_s` without a connection. `DEADLINE_SHARE`
    of the time left when the outage begins bounds it too.
    """

    def __init__(self, context: CallContext, request: StageRequest, call: Call) -> None:
        self._context, self._request, self._call = context, request, call
        self._began_s = time.monotonic()
        self._deadline_s = self._began_s + (request.deadline_at - datetime.now(UTC)).total_seconds()
        self._report_due_s = 0.0

    async def check(self) -> float:
        """Report to viewers that no engine can be connected to; returns the seconds until the next check.

        Raises NoEngineReachable when the timeout is over.
        """
        outages = self._context.engines.outages()
        if not outages:
            return OUTAGE_CHECK_S
        now_s = time.monotonic()
        since_s = max(self._began_s, *(outage.since_s for _, outage in outages))
        timeout_s = min(self._context.engine_away_timeout_s, DEADLINE_SHARE * (self._deadline_s - since_s))
        left_s = since_s + timeout_s - now_s
        waiting = self._waiting(outages, left_s)
        if left_s <= 0:
            raise NoEngineReachable(f"no connection within {timeout_s:.3g} s: {waiting.detail}")
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + REPORT_INTERVAL_S
            await self._context.journal.publish_view(self._request.tenant, waiting)
        return min(left_s, OUTAGE_CHECK_S)

    def _waiting(self, outages: Sequence[tuple[EngineState, Outage]], left_s: float) -> CallWaiting:
        now = datetime.now(UTC)
        engines = tuple(
            UnreachableEngine(url=engine.address, since=outage.since, cause=outage.words) for engine, outage in outages
        )
        remedy = CAUSES[outages[0][1].cause].remedy
        return CallWaiting(
            deliberation_id=self._request.deliberation_id,
            ts=now,
            call_id=self._call.call_id,
            agent_id=self._call.agent_id,
            role=self._call.role,
            engines=engines,
            gives_up_at=now + timedelta(seconds=left_s),
            detail=f"{'; '.join(map(str, engines))}; {remedy[0].lower()}{remedy[1:].rstrip('.')}",
        )


class _DeltaPublisher:
    """Publishes an attempt's text as it grows: the first piece at once, later pieces in frames of 50 ms.

    Without a viewer it keeps the text. The first viewer gets it whole, with the next piece.
    """

    def __init__(self, context: CallContext, request: StageRequest, call: Call, attempt: int) -> None:
        self._journal = context.journal
        self._viewers = context.viewers
        self._request = request
        self._call = call
        self._attempt = attempt
        self._offset = 0
        self._pending: list[str] = []
        self._due_s = 0.0

    def is_watched(self) -> bool:
        return self._viewers.has(self._request.tenant, self._request.deliberation_id)

    async def add(self, text: str) -> None:
        self._pending.append(text)
        if asyncio.get_running_loop().time() >= self._due_s:
            await self.flush()

    async def flush(self) -> None:
        if not self._pending or not self.is_watched():
            return
        text = "".join(self._pending)
        self._pending.clear()
        for begin in range(0, len(text), DELTA_CHARS_MAX):
            await self._publish(text[begin : begin + DELTA_CHARS_MAX])
        self._due_s = asyncio.get_running_loop().time() + FRAME_S

    async def _publish(self, text: str) -> None:
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
        await self._journal.publish_view(self._request.tenant, delta)
