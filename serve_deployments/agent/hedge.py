"""Hedges: asks a second engine when the first one is slow."""

import asyncio

from serve_deployments.agent.attempt import Attempts, CallContext
from serve_deployments.engine.state import EngineState
from serve_deployments.engine.wire import EngineReply


async def hedged(context: CallContext, attempts: Attempts, engine: EngineState) -> EngineReply:
    """The reply of `engine`; where the role hedges and it is slow, the sooner reply of it and a second engine."""
    engines, kind = context.engines, attempts.call.output.kind
    after_s = engines.hedges.after_s(kind) if context.role.hedge else None
    if after_s is None:
        return await attempts.on(engine)
    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(attempts.on(engine))}
    try:
        done, _ = await asyncio.wait(tasks, timeout=after_s)
        other = None if done else engines.choose(attempts.deliberation, [*attempts.failed_engines, engine])
        if other is not None and other is not engine and engines.hedges.take():
            context.count("hedges")
            tasks.add(loop.create_task(attempts.on(other)))
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
