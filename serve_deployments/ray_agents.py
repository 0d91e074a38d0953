"""The agents of a role in Ray Serve: one handle call per stage."""

import asyncio
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.deliberation.calls import StageRequest
from app.deliberation.ports import AgentsLost

Handle = DeploymentHandle[Any]


class RayAgents:
    """`ports.Agents` over a deployment's handle, whose reply says that the replica lives and has finished."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def run(self, request: StageRequest) -> None:
        try:
            response = self._handle.run_stage.remote(request.__pydantic_serializer__.to_json(request))
            # Shielded: when the outcomes are heard first, Ray need not cancel a request that is about to return.
            # Facts stop the calls of a stage that closes without them.
            await asyncio.shield(response)
        except (RayError, RayServeException) as error:
            raise AgentsLost(repr(error)[:300]) from error
        except asyncio.CancelledError as error:
            # Ray raises it for a call that it cancelled itself; only our own cancellation ends this task.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise AgentsLost(repr(error)) from error
