"""`python -m serve_deployments.agent.trial` asks each engine for a short answer, and prints what a worker would know.

Its output is a JSON list with the description of each role, as `AgentStatus` reads it.
"""

import asyncio
import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

import structlog

from app.deliberation.calls import Call, ChatMessage
from app.deliberation.engine_troubles import EngineTrouble
from app.deliberation.errors import DeliberationError
from app.deliberation.outputs import Output
from app.deliberation.roles import Role
from app.process_settings import default_engines, load_roles
from serve_deployments.arguments import WorkerArgs, with_engines
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import Meter
from serve_deployments.engine.state import EngineState, KeyRefused

# A model that is slower is no fault.
_ANSWER_WITHIN_S = 2.0
_MAX_TOKENS = 64
# Above 0, so that the priority is sent, and unlike that of batch work.
_PRIORITY = 1


async def _try(name: str, role: Role, asked: set[tuple[str, str | None]]) -> dict[str, Any]:
    """Describe a role's engines after a trial of each, but of those that were `asked` for the same model before."""
    engines = Engines(role.engines, fallback=role.fallback)
    engines.concurrency, engines.model = role.concurrency, role.model
    await engines.probe()
    troubles = await asyncio.gather(*(_trouble(engines, engine, role.model, asked) for engine in engines.engines))
    described = [engine.described(time.monotonic(), role.model) for engine in engines.engines]
    await engines.close()
    tried = [
        engine if trouble is None else {**engine, "trouble": trouble.model_dump(mode="json")}
        for engine, trouble in zip(described, troubles, strict=True)
    ]
    return {"replica": "trial", "role": name, "engines": tried}


async def _trouble(
    engines: Engines, engine: EngineState, named: str | None, asked: set[tuple[str, str | None]]
) -> EngineTrouble | None:
    """Ask for one short answer in a form; returns why the engine refuses, None where its state says it already."""
    if (engine.spec.url, named or engine.own_model) in asked or engine.silent_since is not None:
        return None
    asked.add((engine.spec.url, named or engine.own_model))
    call = Call(
        call_id="trial",
        agent_id="trial",
        role="TRIAL",
        messages=(ChatMessage(role="user", content="Answer with the word yes."),),
        output=Output(kind="answer"),
        temperature=0.0,
        max_tokens=_MAX_TOKENS,
        seed=0,
    )
    meter = Meter()
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            model = await engines.model_of(engine, named)
            await engines.complete(
                engine,
                call,
                model,
                seed=0,
                trace="trial.1",
                on_text=None,
                meter=meter,
                salt="trial",
                priority=_PRIORITY,
            )
    except (KeyRefused, TimeoutError):
        return None
    except DeliberationError as error:
        if engine.trouble(time.monotonic()) is not None:
            return None
        cause = engine.failure.cause if engine.failure.words else "refusal"
        return EngineTrouble.of(cause, datetime.now(UTC), engine.failure.words or str(error))
    return None


async def _main() -> None:
    # Its output is the description alone, which has every fault.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    args = WorkerArgs()
    default = default_engines(args.engine_urls)
    roles = {name: with_engines(role, default, args.model) for name, role in load_roles(args.roles_file).items()}
    asked = set[tuple[str, str | None]]()
    print(json.dumps(await asyncio.gather(*(_try(name, role, asked) for name, role in roles.items()))))


if __name__ == "__main__":
    asyncio.run(_main())
