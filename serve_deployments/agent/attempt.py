"""One request to one engine for a call: announced, sent, counted."""

import asyncio
import hashlib
import time
from datetime import UTC, datetime
from typing import Protocol

from app.deliberation.calls import Call, Usage
from app.deliberation.choice.anonymity import call_seed
from app.deliberation.errors import CallFailure
from app.deliberation.facts import CallStarted
from app.deliberation.ports import Journal
from app.deliberation.roles import Role
from serve_deployments.agent.deltas import DeltaPublisher
from serve_deployments.agent.outcome_check import OutcomeCheck
from serve_deployments.agent.stage_request import StageRequest
from serve_deployments.engine.client import Engines, EngineState, EngineUnreachable
from serve_deployments.engine.wire import EngineReply, Meter
from serve_deployments.sandbox.checks import Sandbox

SALT_CHARACTERS = 32


class CallContext(Protocol):
    """The interface of a replica for its calls."""

    role: Role
    engines: Engines
    sandbox: Sandbox
    slots: asyncio.Semaphore
    stream_deltas: bool
    engine_patience_s: float

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

    `number` counts from `before`, the attempts of earlier replicas. `answered_by` is the attempt that brought the
    reply; two may run at once.
    """

    def __init__(
        self, context: CallContext, request: StageRequest, call: Call, before: int, unrecorded_at: datetime
    ) -> None:
        self.call = call
        self.number = before
        self.answered_by: int | None = None
        self.model: str | None = None
        self.engine: str | None = None
        self.failed_engines: list[EngineState] = []
        self._context = context
        self._request = request
        self._outcome_check = OutcomeCheck(context.journal, request, call, unrecorded_at)
        self._salt = cache_salt(request.tenant)
        self._usage = Usage()
        self._unsent = 0

    @property
    def usage(self) -> Usage:
        """Tokens and requests so far: requests that broke off count, requests that reached no engine do not."""
        return self._usage.model_copy(update={"calls": self.number - self._unsent})

    async def on(self, engine: EngineState) -> EngineReply:
        """Make one attempt. Raises CallFailure, and CallCancelled when another replica has recorded the outcome."""
        began_s = time.monotonic()
        try:
            with self._context.engines.requesting(engine):
                reply = await self._send(engine)
        except CallFailure:
            self.failed_engines.append(engine)
            raise
        self._context.engines.hedges.answered(self.call.output.kind, time.monotonic() - began_s)
        return reply

    async def _send(self, engine: EngineState) -> EngineReply:
        call, request, context = self.call, self._request, self._context
        model = await context.engines.model_of(engine, call.model or context.role.model)
        await self._outcome_check.require_absent()
        self.model, self.engine = model, engine.address
        self.number += 1
        attempt = self.number
        await announce_attempt(context.journal, request, call, model, attempt)
        deltas = DeltaPublisher(context.journal, request, call, attempt) if context.stream_deltas else None
        meter = Meter()
        try:
            reply = await context.engines.complete(
                engine,
                call,
                model,
                seed=call.seed if attempt == 1 else call_seed(call.seed, call.call_id, attempt),
                trace=f"{request.deliberation_id}.{call.call_id}.{attempt}",
                on_text=deltas.add if deltas else None,
                meter=meter,
                salt=self._salt,
                before_sending=self._outcome_check.require_absent,
            )
        except EngineUnreachable:
            self._unsent += 1
            raise
        finally:
            self._outcome_check.expire()
            self._usage += meter.usage
        if deltas:
            await deltas.flush()
        # Of two attempts at once, the one that answers.
        self.model, self.engine, self.answered_by = model, engine.address, attempt
        return reply
