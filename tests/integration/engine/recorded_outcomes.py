"""The outcomes of recorded replies, and those that hold an answer."""

from app.deliberation.facts import CallFinished
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import PERSONA, call, outcomes, request
from tests.integration.engine.raw_engine import RawEngine

ANSWERED = (
    "1a 2a 2b 2c 2e 2f 3a 4a 4b 5a 6a 8a 8c 9 13a 13b 13e 13f 15 16a 18a 20a 20c 20d 21a 32a 33a 33d 33e 33f "
    "tool-call tool-call-object encoded-twice content-object choice-text status-201 reason-null-text reason-twice "
    "harmony harmony-bare encoding-none usage-in-choice cache-hits failed-generation error-at-the-end"
).split()


async def outcome_of(engine: RawEngine, path: str = "/v1", *, max_tokens: int = 512, **spec: str) -> CallFinished:
    engines = Engines([EngineSpec.model_validate({"url": engine.url + path, "model": "m", **spec})])
    agent = AgentReplica(
        "DEV", Role(persona=PERSONA), engines, InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=5
    )
    asked = call().model_copy(update={"max_tokens": max_tokens, "top_p": 0.9})
    try:
        (outcome,) = await outcomes(agent, request((asked,), deadline_s=25))
    finally:
        await engines.close()
    return outcome
