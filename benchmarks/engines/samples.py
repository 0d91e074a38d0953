"""`vote` without approaches, each wave in one request with `n` and in single requests, by turns on the same simulator.

    python -m benchmarks.engines.samples [--agents 9] [--at-once 1] [--rounds 10]

One wave asks all agents. Texts and times are simulated: the figures are requests, tokens and the product's own time.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import httpx

from app.deliberation.calls import Call, StageRequest, Usage
from app.deliberation.facts import CallFinished, decode
from app.deliberation.roles import EngineSpec, Role
from app.deliberation.specification import Sampling
from app.deliberation.strategies import STRATEGIES
from benchmarks.prefix import specification
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal

ROLE = "DEV"
DEADLINE_S = 120.0
CONCURRENCY = 1_024


@dataclass
class Figures:
    """What a way of asking costs; times are seconds from a stage's beginning, one entry for each deliberation."""

    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    counted: Usage = field(default_factory=Usage)
    first_s: list[float] = field(default_factory=list[float])
    last_s: list[float] = field(default_factory=list[float])
    texts: dict[str, str | None] = field(default_factory=dict[str, str | None])


def calls(number: int, agents: int) -> Sequence[Call]:
    """The first wave of a vote in which all agents are asked the same."""
    asked = specification(number, "vote", agents, [ROLE] * agents)
    sampling = Sampling(temperature=0.8, max_tokens=1_024)
    members = tuple(agent.model_copy(update={"sampling": sampling}) for agent in asked.agents)
    parameters = {"stop": "none", "approaches": False}
    strategy = STRATEGIES["vote"].run(asked.model_copy(update={"agents": members, "parameters": parameters}))
    return next(strategy).calls


async def measure(url: str, agents: int, at_once: int, rounds: int) -> dict[str, Figures]:
    """The figures of both ways, `n` and `single`."""
    found = {"n": Figures(), "single": Figures()}
    async with httpx.AsyncClient(base_url=url) as control:
        for turn in range(2 * rounds):
            way = ("n", "single", "single", "n")[turn % 4]
            await control.delete("/simulator/calls")
            numbers = range(turn // 2 * at_once, (turn // 2 + 1) * at_once)
            await _round(url, way == "n", numbers, agents, found[way])
            served = (await control.get("/simulator/calls")).raise_for_status().json()
            found[way].requests += served["requests"]
            found[way].counted += Usage(
                prompt_tokens=served["prompt_tokens"],
                completion_tokens=served["completion_tokens"],
                cached_tokens=served["cached_tokens"],
            )
    return found


async def _round(url: str, together: bool, numbers: Sequence[int], agents: int, figures: Figures) -> None:
    engines = Engines([EngineSpec(url=url)])
    engines.engines[0].takes_n = together
    await engines.probe()
    journal: Any = InMemoryJournal()
    replica = AgentReplica(
        ROLE, Role(persona="p", concurrency=CONCURRENCY), engines, journal, stream_deltas=True, engine_away_timeout_s=30
    )
    now = datetime.now(UTC)
    stages = [
        StageRequest(
            tenant="default",
            deliberation_id=f"d{number}",
            stage=1,
            calls=tuple(calls(number, agents)),
            asked_at=now,
            deadline_at=now + timedelta(seconds=DEADLINE_S),
            resumed=False,
        )
        for number in numbers
    ]
    await asyncio.gather(*map(replica.run_stage, stages))
    for stage in stages:
        facts = [decode(record.data) for record in await journal.facts("default", stage.deliberation_id)]
        ended = [fact for fact in facts if isinstance(fact, CallFinished)]
        figures.usage = sum((fact.usage for fact in ended), figures.usage)
        figures.texts |= {f"{fact.deliberation_id}.{fact.call_id}": fact.text for fact in ended}
        figures.first_s.append((min(fact.ts for fact in ended) - now).total_seconds())
        figures.last_s.append((max(fact.ts for fact in ended) - now).total_seconds())
    await engines.close()


def main() -> None:
    """Print both ways as a table."""
    from tests.integration.simulator.test_simulator_server import running

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=9)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with running("--seed", "3", "--ttft-ms", "50", "--per-token-ms", "3", "--jitter", "0.2") as simulator:
        found = asyncio.run(measure(simulator.url, options.agents, options.at_once, options.rounds))
    print("way     requests  calls  prompt  completion  first answer ms  last answer ms")
    for way, each in found.items():
        usage, first_ms, last_ms = each.usage, 1_000 * median(each.first_s), 1_000 * median(each.last_s)
        print(
            f"{way:6}  {each.requests:8}  {usage.calls:5}  {usage.prompt_tokens:6}  {usage.completion_tokens:10}  "
            f"{first_ms:15.0f}  {last_ms:14.0f}"
        )


if __name__ == "__main__":
    main()
