"""Replies that an engine may send, valid or not: each leads to a deliberation that ends.

It can be read, archived, cancelled at any fact, and deleted.

python -m tests.fuzz.evil_replies --count 20000
"""

import argparse
import asyncio
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, cast
from unittest.mock import patch

import httpx
import structlog

from app.admission.backlog import Backlog
from app.api.resource import resource
from app.archive.database.rows import Written, row_of
from app.catalog.index import Catalog
from app.deliberation.announcements import announcement
from app.deliberation.facts import CallFinished, Fact, decode, encode
from app.deliberation.roles import EngineSpec, Role
from app.deliberation.strategies import STRATEGIES
from app.lifecycle.context_fit import ContextFit
from app.lifecycle.deliberations import Deliberations
from app.lifecycle.files import FileLimits, Files
from serve_deployments.agent import call as calls
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.fakes import FakeClock, InMemoryJournal, Reply, ScriptedAgents
from tests.fuzz.replies import Pieces, reply
from tests.integration.agent.scripted_engine import ANSWER
from tests.integration.agent.stage_runs import call, request
from tests.story import Story

VALUES: list[Any] = [
    None, True, 0, -1, 0.5, 1e308, int("9" * 400), "", "x", "\ud83d", "\x00", "stop", "9" * 3_000, [], {}, {"": {}},
]  # fmt: skip
TEXTS = [
    ANSWER,
    "{}",
    "[" * 500,
    "<think>" + ANSWER,
    '{"answer": ' * 200,
    ANSWER.replace("80", "9" * 400),
    "\ud83d" + ANSWER,
]


def _mutated(draw: Random, value: Any) -> Any:
    """A JSON value with one of its parts replaced."""
    if not value or draw.random() < 0.2 or not isinstance(value, dict | list):
        return draw.choice(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw.choice(keys)
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = _mutated(draw, value[key])
    return changed


def evil(seed: int) -> tuple[int, dict[str, str], list[bytes]]:
    """Status, headers and pieces of a reply by its seed."""
    draw = Random(seed)
    if draw.random() < 0.2:
        return draw.choice([200, 200, 400, 429, 500, 503]), *reply(seed)
    message = {
        "role": "assistant",
        "content": draw.choice(TEXTS),
        "reasoning": draw.choice([None, "r"]),
        "refusal": None,
    }
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage, "error": None}
    delta = {"choices": [{"index": 0, "delta": message, "finish_reason": "stop"}], "usage": usage}
    for _ in range(draw.randint(0, 3)):
        whole, delta = _mutated(draw, whole), _mutated(draw, delta)
    body = json.dumps(whole) if draw.random() < 0.4 else f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n"
    content = bytearray(body.encode())
    for _ in range(draw.choice([0, 0, 0, 1, 5])):
        content[draw.randrange(len(content))] = draw.randrange(256)
    headers = {"Content-Type": draw.choice(["application/json", "text/event-stream", "text/html"])}
    if draw.random() < 0.1:
        headers |= {"Retry-After": draw.choice(["0", "0.001", "x", "9999999"])}
    cut = draw.randint(0, len(content))
    return draw.choice([200] * 9 + [500]), headers, [bytes(content[:cut]), bytes(content[cut:])]


async def _live(outcome: CallFinished, cancelled_after: int) -> None:
    """End a deliberation with this outcome of its only call, then one that is cancelled; raises what is wrong."""
    assert decode(encode(outcome)) == outcome
    assert outcome.usage.prompt_tokens < 10**6 and outcome.usage.completion_tokens < 10**6
    agents = ScriptedAgents(lambda _: Reply(text=outcome.text, problem=outcome.problem, usage=outcome.usage))
    version = STRATEGIES["single"].version
    facts = agents.deliberate([Story("d1", size=1).accepted(strategy="single", strategy_version=version)])
    clock, journal = FakeClock(), InMemoryJournal()
    service = Deliberations(
        journal,
        clock,
        Catalog(clock, Backlog(clock, 1, {}), retention_s=60),
        roles={},
        strategies=STRATEGIES,
        files=Files(journal, journal.inputs, clock, FileLimits(1 << 20, 1 << 20)),
        context_fit=ContextFit(journal, {}, STRATEGIES, lambda _: None),
        kept_s=lambda _: 60,
        timeout_s=60,
        draining=lambda: False,
    )
    for begun in (facts, facts[:cancelled_after]):
        for fact in begun:
            await journal.append("default", fact)
        state = await service.cancel("default", (await service.find("default", "d1")).state, "enough")
        known = [cast("Fact", decode(record.data)) for record in await journal.facts("default", "d1")]
        for fact in agents.deliberate(known)[len(known) :]:
            await journal.append("default", fact)
        state = await service.load("default", "d1")
        assert state.end is not None
        json.loads(resource(state, epoch="e", retention_s=60).model_dump_json())
        announcement("default", state.end, state).model_dump_json()
        row_of(Written("default", "d1", datetime.now(UTC), state, await journal.facts("default", "d1")), 1)
        await service.delete("default", "d1")
        assert [record.tokens[-1] for record in journal.records] == ["deleted"]
        journal.records.clear()


async def play(seeds: Sequence[int], report: Callable[[str], None] = print) -> int:
    """Play each reply to an agent and read what comes of it; returns the number of faults."""
    faults, now = 0, (200, dict[str, str](), list[bytes]())

    def answer(asked: httpx.Request) -> httpx.Response:
        if asked.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(now[0], headers=now[1], stream=Pieces(now[2]))

    for seed in seeds:
        now = evil(seed)
        engines = Engines([EngineSpec(url="http://engine")], transport=httpx.MockTransport(answer))
        journal = InMemoryJournal()
        agent = AgentReplica(
            "DEV", Role(persona="p"), engines, journal, stream_deltas=bool(seed % 2), engine_away_timeout_s=1
        )
        try:
            async with asyncio.timeout(20):
                with patch.object(calls, "RETRY_WAIT_MAX_S", 0.0):
                    await agent.run_stage(request((call(),), deadline_s=10))
            (outcome,) = (each for record in journal.records if isinstance(each := decode(record.data), CallFinished))
            assert outcome.problem is None or "internal error" not in outcome.problem.detail, outcome.problem
            await _live(outcome, 1 + seed % 4)
        except Exception:
            faults += 1
            report(f"seed {seed}: {traceback.format_exc(limit=-2)}")
        await engines.close()
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--from-seed", type=int, default=0)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began_s = time.monotonic()
    faults = asyncio.run(play(range(arguments.from_seed, arguments.from_seed + arguments.count)))
    rate = arguments.count / (time.monotonic() - began_s)
    print(f"{arguments.count} replies, {faults} faults, {rate:.0f} replies/s")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
