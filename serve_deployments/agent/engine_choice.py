"""Chooses the engine for a request."""

import asyncio
from contextlib import suppress

import structlog

from serve_deployments.agent.attempt import Attempts, CallContext
from serve_deployments.agent.engine_wait import EngineWait
from serve_deployments.agent.hedge import hedged
from serve_deployments.engine.state import EngineUnreachable
from serve_deployments.engine.wire import EngineReply

log = structlog.get_logger(__name__)


async def on_chosen_engine(context: CallContext, attempts: Attempts, wait: EngineWait) -> EngineReply:
    """The reply of an engine that can be reached, preferably one that has not failed this call.

    Waits for a slot of the role first. Engines that cannot be reached cost no attempt; raises CallFailure.
    """
    async with context.slots.held(attempts.priority):
        # The same at every check, so that a call keeps its place.
        order = (attempts.priority, wait.began_s)
        while True:
            engine, next_check_s = None, await wait.check()
            with suppress(TimeoutError):
                async with asyncio.timeout(next_check_s):
                    engine = await context.engines.wait_for_engine(
                        attempts.deliberation, attempts.failed_engines, order
                    )
            if engine is None:
                continue
            try:
                return await hedged(context, attempts, engine)
            except EngineUnreachable as unreachable:
                # Nothing was sent, and the engine's circuit is open now: choose again.
                log.info("engine_avoided", call_id=attempts.call.call_id, error=str(unreachable))
