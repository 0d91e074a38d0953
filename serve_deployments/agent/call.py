"""One call from its request to its outcome.

An engine's answer passes five policies, a module each, from the outside in: `validation`, `retry`, `engine_choice`,
`hedge` and `attempt`. A check runs in the sandbox instead.
"""

import asyncio
from datetime import UTC, datetime

from app.deliberation.calls import Call, Check, FactProblem, StageRequest, Usage
from app.deliberation.decider import problem_of
from app.deliberation.errors import CallFailure, CallTimeout, DeliberationError
from app.deliberation.facts import CallFinished
from serve_deployments.agent.attempt import Attempts, CallContext, announce_attempt
from serve_deployments.agent.engine_choice import on_chosen_engine
from serve_deployments.agent.engine_wait import EngineWait
from serve_deployments.agent.retry import with_retries
from serve_deployments.agent.validation import valid_reply
from serve_deployments.engine.samples import SampleGroup
from serve_deployments.engine.wire import EngineReply

# Named as the model of a check, which asks no engine.
CHECKED_BY = "sandbox"


class CallRun:
    """A `call` that runs. Its replica sets `stopped`, the reason of a fact that stops it, and `stoppable`.

    While it is `stoppable` it has no outcome, and a stop cancels its task.
    """

    def __init__(
        self,
        context: CallContext,
        request: StageRequest,
        call: Call,
        attempts_before: int,
        unrecorded_at: datetime,
        group: SampleGroup | None = None,
    ) -> None:
        self._context = context
        self._request = request
        self.call = call
        # A check has no attempts to count, however often it was begun.
        before = attempts_before if call.check is None else 0
        self._attempts = Attempts(context, request, call, before, unrecorded_at, group)
        self._began_at = datetime.now(UTC)
        self.stoppable = False
        self.stopped: str | None = None

    async def outcome(self) -> CallFinished:
        """An answer that satisfies its schema, or the failure that remained after all attempts."""
        try:
            async with asyncio.timeout(self._left_s()):
                check = self.call.check
                reply = await (self._answer() if check is None else self._run_check(check))
        except TimeoutError:
            return self.failed(CallTimeout("no answer within the call's deadline"))
        except CallFailure as failure:
            return self.failed(failure)
        return self._finished(reply, None)

    async def _answer(self) -> EngineReply:
        context, attempts = self._context, self._attempts

        async def retried() -> EngineReply:
            return await with_retries(
                lambda: on_chosen_engine(context, attempts, self._engine_wait()),
                context.engines.retries,
                lambda: context.count("retries"),
                self._left_s,
            )

        return await valid_reply(self.call, retried, attempts.ignored_form)

    def _left_s(self) -> float:
        return (self._request.deadline_at - datetime.now(UTC)).total_seconds()

    def _engine_wait(self) -> EngineWait:
        context = self._context
        return EngineWait(
            context.engines, context.journal, self._request, self.call, timeout_s=context.engine_away_timeout_s
        )

    async def _run_check(self, check: Check) -> EngineReply:
        await announce_attempt(self._context.journal, self._request, self.call, CHECKED_BY, attempt=1)
        report = await self._context.sandbox.report(check, self._left_s())
        return EngineReply(text=report.model_dump_json(), finish_reason="stop", usage=Usage(), ttft_s=None)

    def failed(self, error: DeliberationError) -> CallFinished:
        """The outcome that records a failure instead of an answer."""
        return self._finished(None, problem_of(error))

    def _finished(self, reply: EngineReply | None, problem: FactProblem | None) -> CallFinished:
        now, attempts, ttft_s = datetime.now(UTC), self._attempts, reply and reply.ttft_s
        return CallFinished(
            deliberation_id=self._request.deliberation_id,
            ts=now,
            call_id=self.call.call_id,
            agent_id=self.call.agent_id,
            role=self.call.role,
            stage=self._request.stage,
            attempt=attempts.answered_by or max(1, attempts.number),
            text=reply and reply.text,
            problem=problem,
            finish_reason=reply and reply.finish_reason,
            model=attempts.model,
            engine=attempts.engine,
            structured=reply and reply.structured,
            usage=attempts.usage,
            usage_estimated=attempts.usage_estimated,
            duration_ms=round((now - self._began_at).total_seconds() * 1_000),
            ttft_ms=None if ttft_s is None else round(ttft_s * 1_000),
        )
