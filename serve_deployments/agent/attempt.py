"""One request to one engine for a call: announced, sent, counted."""

import hashlib
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Protocol

from app.deliberation.calls import Call, StageRequest, Usage
from app.deliberation.choice.anonymity import call_seed
from app.deliberation.errors import CallFailure
from app.deliberation.facts import CallStarted
from app.deliberation.ports import Journal
from app.deliberation.roles import Role
from serve_deployments.agent.deltas import DeltaPublisher
from serve_deployments.agent.outcome_check import OutcomeCheck
from serve_deployments.agent.slots import PrioritySlots
from serve_deployments.engine.client import Engines
from serve_deployments.engine.samples import Sample, SampleGroup
from serve_deployments.engine.state import EngineFull, EngineState, EngineUnreachable
from serve_deployments.engine.streamed_reply import StreamedChoice
from serve_deployments.engine.wire import EngineReply, Meter
from serve_deployments.sandbox.checks import Sandbox

SALT_CHARACTERS = 32


class CallContext(Protocol):
    """The interface of a replica for its calls."""

    role: Role
    engines: Engines
    sandbox: Sandbox
    slots: PrioritySlots
    stream_deltas: bool
    engine_away_timeout_s: float

    @property
    def journal(self) -> Journal:
        """The log."""
        ...

    def count(self, what: str) -> None:
        """Count a retry or a hedge for operators."""
        ...


def cache_salt(tenant: str) -> str:
    """Keeps a tenant's cached prefixes in an engine apart. It need not be secret, because clients never choose it."""
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


class Attempts:
    """The attempts of one call: how many, on which engines, and what they cost together.

    `number` counts from `before`, the attempts of earlier replicas; one that reached no engine gives its number back.
    `answered_by` is the attempt that brought the reply; two may run at once. Calls of one `deliberation`, with its
    tenant, share the beginning of their prompts. The first one may share a request with the `group` of identical calls.
    """

    def __init__(
        self,
        context: CallContext,
        request: StageRequest,
        call: Call,
        before: int,
        unrecorded_at: datetime,
        group: SampleGroup | None = None,
    ) -> None:
        self.call = call
        self._group = group
        self.deliberation = f"{request.tenant}.{request.deliberation_id}"
        self.priority = request.priority
        self.number = self._before = before
        self.answered_by: int | None = None
        self.model: str | None = None
        self.engine: str | None = None
        self.usage_estimated = False
        self.failed_engines: list[EngineState] = []
        self._context = context
        self._request = request
        self._outcome_check = OutcomeCheck(context.journal, request, call, unrecorded_at)
        self._salt = cache_salt(request.tenant)
        self._usage = Usage()
        self._answering: EngineState | None = None

    @property
    def usage(self) -> Usage:
        """Tokens, requests and cost so far: requests that broke off count, requests that reached no engine do not.

        Nothing is known of the cost of earlier replicas' requests.
        """
        return self._usage + Usage(calls=self._before)

    def ignored_form(self, reply: EngineReply) -> None:
        """Record that the last reply was no JSON."""
        if self._answering is not None and self.model is not None and reply.structured is not None:
            self._answering.ignores_form(self.model, reply.structured)

    async def on(self, engine: EngineState) -> EngineReply:
        """Make one attempt. Raises CallFailure, and CallCancelled when another replica has recorded the outcome."""
        began_s = time.monotonic()
        try:
            with self._context.engines.requesting(engine):
                reply = await self._send(engine)
        except EngineFull:
            raise
        except CallFailure:
            self.failed_engines.append(engine)
            raise
        self._context.engines.hedges.answered(self.call.output.kind, time.monotonic() - began_s)
        return reply

    async def _send(self, engine: EngineState) -> EngineReply:
        call, request, context = self.call, self._request, self._context
        group = self._group if self.number == 0 and context.stream_deltas else None
        with nullcontext() if group is None else group.coming():
            model = await context.engines.model_of(engine, call.model or context.role.model)
            await self._outcome_check.require_absent()
            self.model, self.engine = model, engine.address
            self.number += 1
            attempt = self.number
            await announce_attempt(context.journal, request, call, model, attempt)
        deltas = DeltaPublisher(context.journal, request, call, attempt) if context.stream_deltas else None
        seed = call.seed if attempt == 1 else call_seed(call.seed, call.call_id, attempt)
        trace = f"{request.deliberation_id}.{call.call_id}.{attempt}"
        meter, shared, sent, reply = Meter(), Meter(), 1, None
        try:
            if group and deltas:
                choice = StreamedChoice(call, trace, deltas.add, shared)
                sample = Sample(
                    engine, model, seed, choice, self._salt, self.priority, self._outcome_check.require_absent
                )
                reply = await group.reply(sample)
            reply = reply or await context.engines.complete(
                engine,
                call,
                model,
                seed=seed,
                trace=trace,
                on_text=deltas.add if deltas else None,
                meter=meter,
                salt=self._salt,
                priority=self.priority,
                before_sending=self._outcome_check.require_absent,
            )
        except EngineUnreachable:
            sent = 0
            # A successor counts the numbers as requests: the next attempt gets this one, unless a hedge has the next.
            if self.number == attempt:
                self.number -= 1
            raise
        finally:
            self._outcome_check.expire()
            spent = (shared.usage + meter.usage).model_copy(update={"calls": sent})
            self._usage += spent.at(engine.spec.prices) if sent else spent
            self.usage_estimated |= shared.estimated or meter.estimated
        if deltas:
            await deltas.flush()
        # Of two attempts at once, the one that answers.
        self.model, self.engine, self.answered_by = model, engine.address, attempt
        self._answering = engine
        return reply
