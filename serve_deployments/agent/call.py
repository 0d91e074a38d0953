"""One call on its way to an outcome: attempts, other engines, hedges, deltas, or a check in the sandbox."""

import asyncio
import hashlib
import time
from datetime import UTC, datetime
from typing import Protocol

import stamina
import structlog
from pydantic import AwareDatetime

from app.deliberation.calls import Call, Check, FactProblem, Usage
from app.deliberation.choice.anonymity import call_seed
from app.deliberation.engine import problem_of
from app.deliberation.errors import (
    CallCancelled,
    CallFailure,
    CallTimeout,
    DeliberationError,
    InvalidOutput,
    JournalUnavailable,
)
from app.deliberation.facts import CallDelta, CallFinished, CallStarted, prefix
from app.deliberation.outputs import parse_output
from app.deliberation.ports import Journal
from app.deliberation.roles import Role
from app.deliberation.specification import Value
from serve_deployments.engine.client import EngineAway, Engines, EngineState, RetryLater
from serve_deployments.engine.wire import EngineReply, Meter
from serve_deployments.sandbox.checks import Sandbox

ATTEMPTS_MAX = 3
FRAME_S = 0.05
RETRY_WAIT_MAX_S = 5.0
# That nothing was recorded is known for so long: who has waited or hung since may have been given up, and another
# replica have the answer already. A log that is never as quick as this is believed after some looks.
UNRECORDED_FOR_S = 0.5
LOOKS_MAX = 5
LOOK_RETRY_S = 0.2
SALT_CHARACTERS = 32
# What stands where a model would when no engine is asked.
CHECKED_BY = "sandbox"

log = structlog.get_logger(__name__)


class StageRequest(Value, frozen=True):
    """Calls of one role in one stage.

    `asked_at` is when it was sent: whoever hangs reads it late. `resumed` says that some may have been made or recorded
    before; `accepted_sequence` is the place of the deliberation's acceptance in the stream.
    """

    tenant: str
    deliberation_id: str
    stage: int
    calls: tuple[Call, ...]
    asked_at: AwareDatetime
    deadline_at: AwareDatetime
    resumed: bool
    accepted_sequence: int = 0


class DeltaPublisher:
    """Publishes an attempt's text as it grows: the first piece at once, later ones gathered into frames of 50 ms."""

    def __init__(self, journal: Journal, request: StageRequest, call: Call, attempt: int) -> None:
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


def cache_salt(tenant: str) -> str:
    """By what an engine keeps a tenant's cached prefixes apart from others': not its name, and the same everywhere.

    No secret is needed: what counts is who may choose it, and that is nobody but the replica.
    """
    return hashlib.sha256(f"deliberation-gateway cache_salt {tenant}".encode()).hexdigest()[:SALT_CHARACTERS]


class CallContext(Protocol):
    """Who makes calls, and with what: a replica."""

    role: Role
    engines: Engines
    sandbox: Sandbox
    slots: asyncio.Semaphore
    stream_deltas: bool

    @property
    def journal(self) -> Journal:
        """The log."""
        ...

    def count(self, what: str) -> None:
        """Count something that operators want to know."""
        ...


class CallRun:
    """One call on its way to a recorded outcome."""

    def __init__(
        self, caller: CallContext, request: StageRequest, call: Call, attempts_before: int, unrecorded_at: datetime
    ) -> None:
        self._caller = caller
        # When it was last known that no outcome is recorded; None once it may be.
        self._unrecorded_at: datetime | None = unrecorded_at
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
        self._salt = cache_salt(request.tenant)
        # Whether it is under way, and why a fact stops it, from the moment when one does.
        self.begun = False
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

    async def _ran(self, check: Check) -> EngineReply:
        """A sandbox's report instead of an engine's answer."""
        await self._started(CHECKED_BY, attempt=1)
        within_s = (self._request.deadline_at - datetime.now(UTC)).total_seconds()
        report = await self._caller.sandbox.report(check, within_s)
        return EngineReply(text=report.model_dump_json(), finish_reason="stop", usage=Usage(), ttft_s=None)

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
        # A successor counts the attempts by it.
        await self._caller.journal.publish_view(self._request.tenant, started, until=self._request.deadline_at)

    async def _answered(self) -> EngineReply:
        """A valid answer; an invalid one is asked for once more, with another seed."""
        completion = await self._completed()
        try:
            return self._checked(completion)
        except InvalidOutput as invalid:
            log.info("output_invalid", call_id=self._call.call_id, error=str(invalid))
        return self._checked(await self._completed())

    def _checked(self, completion: EngineReply) -> EngineReply:
        if completion.finish_reason == "length":
            raise InvalidOutput(f"the answer was cut off at max_tokens={self._call.max_tokens}")
        parse_output(self._call.output, completion.text)
        return completion

    async def _completed(self) -> EngineReply:
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
        self._caller.count("retries")
        if not isinstance(error, RetryLater):
            return again
        # What an overloaded engine refuses comes again no faster than the budget of retries allows.
        return max(float(again), self._caller.engines.retries.wait_s(time.monotonic()))

    async def _requested(self) -> EngineReply:
        async with self._caller.slots:
            while True:
                engine = await self._caller.engines.chosen(self._failed_engines)
                try:
                    return await self._hedged(engine)
                except EngineAway as away:
                    # Nothing was sent: its circuit is open now, and whoever may be asked next is waited for.
                    log.info("engine_away", call_id=self._call.call_id, error=str(away))

    async def _still_needed(self) -> None:
        """Raise CallCancelled when somebody else has recorded the outcome.

        Asked before an attempt begins, and once more when its request is written: whoever was stopped in between, and
        given up, must not have an engine do again what is done.
        """
        if await self._stands():
            raise CallCancelled("somebody else has recorded its outcome meanwhile")

    async def _stands(self) -> bool:
        """Whether another replica has recorded the outcome while this one tried, waited or hung.

        What was known of it holds for a moment, also what a slow log has told. A log that is away is waited for: nobody
        could record an answer without it, and one may be recorded already.
        """
        subject = f"{prefix(self._request.tenant, self._request.deliberation_id)}.call.{self._call.call_id}.finished"
        looks = 0
        while looks < LOOKS_MAX and not self._surely_unrecorded():
            looked_at = datetime.now(UTC)
            try:
                if await self._caller.journal.last([subject]):
                    return True
            except JournalUnavailable:
                await asyncio.sleep(LOOK_RETRY_S)
                continue
            self._unrecorded_at = looked_at
            looks += 1
        return False

    def _surely_unrecorded(self) -> bool:
        if self._unrecorded_at is None:
            return False
        # The coordinator's clock may be ahead of this one: what it knew in the future is no knowledge here.
        return 0 <= (datetime.now(UTC) - self._unrecorded_at).total_seconds() < UNRECORDED_FOR_S

    async def _hedged(self, engine: EngineState) -> EngineReply:
        """The engine's completion; where the role hedges and the engine is slow, another one's, if that is sooner."""
        hedges = self._caller.engines.hedges
        after_s = hedges.after_s(self._call.output.kind) if self._caller.role.hedge else None
        if after_s is None:
            return await self._timed(engine)
        asked = {asyncio.get_running_loop().create_task(self._timed(engine))}
        try:
            done, _ = await asyncio.wait(asked, timeout=after_s)
            other = None if done else self._caller.engines.choose([*self._failed_engines, engine])
            if other is not None and other is not engine and hedges.take():
                self._caller.count("hedges")
                asked.add(asyncio.get_running_loop().create_task(self._timed(other)))
            waiting = asked
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # Both may have ended at once: a failure does not hide the other's answer.
                first = min(done, key=lambda task: task.exception() is not None)
                if not waiting or first.exception() is None:
                    return first.result()
        finally:
            for task in asked:
                task.cancel()
            # Waited for, so that what the slower one had cost is counted.
            await asyncio.gather(*asked, return_exceptions=True)

    async def _timed(self, engine: EngineState) -> EngineReply:
        began_s = time.monotonic()
        try:
            with self._caller.engines.turn(engine):
                completion = await self._requested_of(engine)
        except CallFailure:
            self._failed_engines.append(engine)
            raise
        self._caller.engines.hedges.answered(self._call.output.kind, time.monotonic() - began_s)
        return completion

    async def _requested_of(self, engine: EngineState) -> EngineReply:
        call, request, journal = self._call, self._request, self._caller.journal
        model = await self._caller.engines.model_of(engine, call.model or self._caller.role.model)
        await self._still_needed()
        self._model, self._engine = model, engine.url
        self._attempt += 1
        attempt = self._attempt
        await self._started(model, attempt)
        deltas = DeltaPublisher(journal, request, call, attempt) if self._caller.stream_deltas else None
        seed = call.seed if attempt == 1 else call_seed(call.seed, call.call_id, attempt)
        trace = f"{request.deliberation_id}.{call.call_id}.{attempt}"
        meter = Meter()
        try:
            completion = await self._caller.engines.complete(
                engine,
                call,
                model,
                seed=seed,
                trace=trace,
                on_text=deltas.take if deltas else None,
                meter=meter,
                salt=self._salt,
                before_sending=self._still_needed,
            )
        except EngineAway:
            self._unsent += 1
            raise
        finally:
            # From now on somebody else may record it: whoever tries once more looks again.
            self._unrecorded_at = None
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
