"""Traces of the whole stack, as an OpenTelemetry collector receives them, also while processes are killed.

TRACED_COUNCILS=200 pytest -s tests/e2e/test_traces.py
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.components.webhooks.receiving import receiving
from tests.conditions import until
from tests.e2e.conftest import FAST, ONE_ROLE, TASK, Stack, own_stack
from tests.otlp import Collector, attributes, collector

pytestmark = pytest.mark.e2e

COUNCILS = int(os.environ.get("TRACED_COUNCILS", "30"))


@pytest.fixture(scope="module")
def collected() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
async def traced(collected: Collector, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in collected.environment.items():
            patch.setenv(name, value)
        data_dir: Path = tmp_path_factory.mktemp("traced")
        async with own_stack(data_dir, "--agents", "nats", "--roles", str(ONE_ROLE)) as stack:
            yield stack


async def _asked(stack: Stack, **body: Any) -> str:
    """Submit work until a gateway accepts it: a killed one is away for a moment."""
    key = {"Idempotency-Key": os.urandom(8).hex()}
    while True:
        try:
            response = await stack.client.post("/deliberations", json={"task": TASK, **body}, headers=key)
        except httpx.TransportError:
            response = None
        if response is not None and response.status_code == 202:
            return response.json()["id"]
        await asyncio.sleep(0.05)


def _of(collected: Collector, name: str, deliberation_id: str) -> list[Any]:
    return [span for span in collected.named(name) if attributes(span).get("gen_ai.conversation.id") == deliberation_id]


async def test_a_council_is_one_trace_from_its_request_to_its_chats(traced: Stack, collected: Collector) -> None:
    await traced.script(**FAST)
    client_span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with receiving() as receiver:
        webhook = {"url": receiver.url(), "events": ["deliberation.completed"]}
        body = {"task": TASK, "seed": 7, "webhook": webhook}
        headers = {"traceparent": client_span, "Prefer": "wait=60"}
        found = (await traced.client.post("/deliberations", json=body, headers=headers)).json()
        assert found["status"] == "completed"
        await until(lambda: bool(collected.named("webhook") and _of(collected, "invoke_workflow", found["id"])), 20)
    trace = bytes.fromhex(client_span[3:35])
    await until(lambda: bool(_of(collected, "POST", found["id"])), 20)
    await until(lambda: len(collected.named("chat")) >= found["usage"]["calls"], 20)
    spans = [span for span in collected.spans.values() if span.trace_id == trace]
    kinds = Counter(span.name.partition(" ")[0] for span in spans)
    calls = await traced.recorded(found["id"])
    assert kinds["POST"] == kinds["invoke_workflow"] == kinds["webhook"] == 1
    assert kinds["invoke_agent"] == kinds["chat"] == len(calls) == (await traced.engine_calls())["requests"]
    assert {span.parent_span_id.hex() for span in spans if span.name.startswith(("POST", "invoke_workflow"))} == {
        client_span[36:52]
    }
    parents = {span.span_id: span.name.partition(" ")[0] for span in spans}
    nested = {(span.name.partition(" ")[0], parents.get(span.parent_span_id)) for span in spans}
    assert ("chat", "invoke_agent") in nested and ("webhook", "invoke_workflow") in nested
    assert {("invoke_agent", "propose"), ("propose", "invoke_workflow"), ("invoke_agent", "score")} <= nested
    assert all(TASK.encode() not in body for body in collected.bodies)


async def _kill(stack: Stack, name: str) -> None:
    """Kill a process of the stack; return once the supervisor has started another one."""
    killed = stack.child(name)["pid"]
    os.kill(killed, signal.SIGKILL)
    await until(lambda: stack.child(name)["pid"] not in (None, killed), 30)


async def _until_acknowledged(stack: Stack) -> None:
    """Wait until nothing ended would be recorded once more by a successor of the coordinator."""
    async with asyncio.timeout(20):
        while True:
            consumers = (await stack.client.get("/status")).json()["consumers"]
            if not any(each["unacknowledged"] for each in consumers if each["name"] == "coordinator"):
                return
            await asyncio.sleep(0.05)


async def _councils_with_kills(stack: Stack, collected: Collector, *names: str) -> list[str]:
    """Ask a share of the councils before each kill, two of each process; return the ids once all have spans."""
    await stack.until_ready()
    await stack.script(duration_ms=300, faults=[], behaviour="normal")
    await _until_acknowledged(stack)
    collected.forget()
    (await stack.engine.delete("/simulator/calls")).raise_for_status()
    kills, ids = names * 2, list[str]()
    for place, name in enumerate(kills):
        started = (await stack.engine_calls())["started"]
        ids += [await _asked(stack, seed=seed, num_agents=3) for seed in range(place, COUNCILS, len(kills))]
        async with asyncio.timeout(60):
            while (await stack.engine_calls())["started"] <= started:
                await asyncio.sleep(0.02)
        await _kill(stack, name)
    for each in ids:
        await stack.until(each, status="completed")
    await until(lambda: all(_of(collected, "invoke_workflow", each) for each in ids), 60)
    return ids


def _assert_whole(collected: Collector, ids: list[str]) -> None:
    assert [span.name for span in collected.orphans()] == []
    workflows = [_of(collected, "invoke_workflow", each) for each in ids]
    assert {len(spans) for spans in workflows} == {1}
    assert len({spans[0].trace_id for spans in workflows}) == len(ids)
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano > 0 for span in collected.spans.values())
    kinds = Counter(span.name.partition(" ")[0] for span in collected.spans.values())
    print(f"{len(ids)} councils, as many traces; no orphan among {kinds.total()} spans: {dict(kinds)}")


async def test_kills_of_all_but_the_agents_leave_each_council_one_whole_trace(
    traced: Stack, collected: Collector
) -> None:
    ids = await _councils_with_kills(traced, collected, "coordinator", "gateway", "webhooks", "archive", "nats")
    requests = (await traced.engine_calls())["requests"]
    await until(lambda: len(collected.named("chat")) >= requests, 20)
    _assert_whole(collected, ids)
    assert len(collected.named("chat")) == requests


async def test_killed_agents_take_their_own_chats_alone(traced: Stack, collected: Collector) -> None:
    ids = await _councils_with_kills(traced, collected, "worker")
    _assert_whole(collected, ids)
    chats = Counter(attributes(span)["deliberation.call_id"] for span in collected.named("chat"))
    assert 0 < sum(chats.values()) <= (await traced.engine_calls())["requests"]
    repeated = [span for span in collected.named("chat") if attributes(span)["deliberation.attempt"] > 1]
    assert repeated and all(span.links for span in repeated)
