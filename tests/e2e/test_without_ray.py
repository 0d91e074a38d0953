"""Stacks without Ray. A package `ray` that fails stands first on the path, so no process can import Ray."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conditions import until
from tests.e2e.conftest import DELIBERATE, FAST, ONE_ROLE, SLOW, TASK, Stack, own_stack

pytestmark = pytest.mark.e2e

COUNCILS = 8


@pytest.fixture(scope="module")
def without_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("without-ray")
    (place / "path" / "ray").mkdir(parents=True)
    (place / "path" / "ray" / "__init__.py").write_text("raise ImportError('Ray is not to be imported')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(place / "path"), os.environ.get("PYTHONPATH")])))
        yield place / "data"


@pytest.fixture(scope="module")
async def stack(without_ray: Path) -> AsyncIterator[Stack]:
    async with own_stack(without_ray, "--agents", "nats", "--roles", str(ONE_ROLE)) as stack:
        yield stack


@pytest.fixture(scope="module")
async def local(without_ray: Path) -> AsyncIterator[Stack]:
    async with own_stack(without_ray.with_name("local"), "--agents", "local", "--roles", str(ONE_ROLE)) as stack:
        yield stack


@pytest.fixture(params=["stack", "local"])
def either(request: pytest.FixtureRequest) -> Stack:
    return request.getfixturevalue(request.param)


async def test_a_council_reaches_a_verdict(either: Stack) -> None:
    stack = either
    await stack.script(**FAST)
    response = await stack.client.post("/deliberations", json={"task": TASK, "seed": 7}, headers={"Prefer": "wait=60"})
    council = response.json()
    assert council["status"] == "completed" and council["degraded"] is None and len(council["verdict"]["ranking"]) == 3
    async with asyncio.timeout(30):
        # A part that has just started, on a busy machine, answers late.
        while True:
            installation = (await stack.client.get("/status")).json()
            if all(fault["severity"] == "info" for fault in installation["findings"]):
                break
            await asyncio.sleep(0.2)
    assert [agent["role"] for agent in installation["agents"]] == ["DEV"]
    assert installation["versions"]["replicas"][0]["ray"] is None and installation["applications"] == []
    assert (await stack.client.get("/roles/DEV")).json()["live"]["replicas"] == 1
    assert "ray" not in {process.name for process in (stack.data_dir / "logs").iterdir()}


async def test_one_process_streams_texts_and_a_cancellation_closes_the_engines_connections(local: Stack) -> None:
    await local.script(**SLOW | {"duration_ms": 60_000})
    (await local.engine.delete("/simulator/calls")).raise_for_status()
    deliberation_id = await local.submit()
    written = set[str]()
    async with local.client.stream("GET", f"/deliberations/{deliberation_id}/events", timeout=60) as events:
        async for line in events.aiter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if event.get("type") == "call.delta":
                written.add(event["call_id"])
            if len(written) == 3:
                break
    cancel = f"/deliberations/{deliberation_id}/cancel"
    response = await local.client.post(cancel, json={"reason": "enough"}, headers={"Prefer": "wait=20"})
    assert response.json()["status"] == "cancelled", response.text
    assert {call["call_id"] for call in response.json()["cancellation"]["cut"]} == written
    async with asyncio.timeout(10):
        while (await local.engine_calls())["aborted"] < 3:
            await asyncio.sleep(0.02)


@contextmanager
def worker(stack: Stack) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, **stack.of_log("worker"), "VLLM_URL": stack.ready["engine_urls"][0]}
    environment |= {"ROLES_FILE": str(ONE_ROLE), "WORKER_PORT": "0"}
    command = [str(DELIBERATE), "worker", "--role", "DEV", "--concurrency", "16"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert any("worker_working" in line for line in process.stdout)
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)


async def test_of_four_workers_two_are_killed_and_nothing_is_lost(stack: Stack) -> None:
    await stack.script(**SLOW)
    (await stack.engine.delete("/simulator/calls")).raise_for_status()
    with ExitStack() as started:
        workers = [started.enter_context(worker(stack)) for _ in range(3)]
        ids = [await stack.submit(seed=seed) for seed in range(COUNCILS)]
        async with asyncio.timeout(60):
            while (await stack.engine_calls())["started"] < 4 * COUNCILS:
                await asyncio.sleep(0.02)
        killed = stack.child("worker")["pid"]
        for pid in (killed, workers[0].pid):
            os.kill(pid, signal.SIGKILL)
        before = {f"{each}.{call_id}" for each in ids for call_id in await stack.recorded(each)}
        assert len(before) >= COUNCILS
        for each in ids:
            found = await stack.until(each, status="completed")
            assert found["degraded"] is None and len(found["verdict"]["ranking"]) == 3
        asked = (await stack.engine_calls())["calls"]
        assert {call for call in before if asked[call]["started"] != 1} == set()
        assert {f"{each}.{call_id}" for each in ids for call_id in await stack.recorded(each)} <= asked.keys()
        ends = [record async for record in stack.journal.read("deliberations.*.*.end", 0)]
        assert len({record.subject for record in ends}) == len(ends)
        await until(lambda: stack.child("worker")["pid"] != killed)


ADD = {"type": "object", "properties": {name: {"type": "integer"} for name in "ab"}, "required": ["a", "b"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add two integers.", "parameters": ADD}}
KILLED = ("gateway", "coordinator", "worker")


async def decided(stack: Stack, messages: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """The completion of a turn; asked again under its key while parts are away."""
    body = {"model": "vote/DEV", "messages": messages, "tools": [TOOL]}
    async with asyncio.timeout(120):
        while True:
            with suppress(httpx.TransportError):
                headers = {"Idempotency-Key": key}
                answer = await stack.client.post("/v1/chat/completions", json=body, headers=headers, timeout=60)
                if answer.status_code == 200:
                    return answer.json()
                assert answer.status_code in (502, 503), answer.text
            await asyncio.sleep(0.1)


async def test_each_turn_of_an_agents_loop_is_decided_once_though_a_part_is_killed_in_it(stack: Stack) -> None:
    await stack.script(**SLOW)
    said = "\n".join(f'add({{"a": {turn}, "b": 1}})' for turn in range(len(KILLED)))
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Make these calls.\n{said}"}]
    for turn, child in enumerate(KILLED):
        await stack.until_ready()
        (await stack.engine.delete("/simulator/calls")).raise_for_status()
        asking = asyncio.create_task(decided(stack, messages, f"turn-{turn}"))
        async with asyncio.timeout(30):
            while (await stack.engine_calls())["requests"] == 0:
                await asyncio.sleep(0.02)
        os.kill(stack.child(child)["pid"], signal.SIGKILL)
        first = await asking
        (call,) = first["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": turn, "b": 1}
        again = await decided(stack, messages, f"turn-{turn}")
        assert again == first, "the ids of calls are those of the first answer"
        facts = await stack.journal.facts("default", first["deliberation"]["id"])
        ended = [record.subject for record in facts if record.subject.endswith(".end")]
        finished = [record.subject for record in facts if record.subject.endswith(".finished")]
        assert len(ended) == 1 and len(finished) == len(set(finished))
        # Requests that a killed worker had sent are paid, and made once more.
        paid = first["deliberation"]["calls"]
        assert paid == len(finished) or (child == "worker" and paid <= 2 * len(finished))
        result = {"role": "tool", "tool_call_id": call["id"], "content": str(turn + 1)}
        messages += [first["choices"][0]["message"], result]
    await stack.until_ready()
    last = await decided(stack, messages, "last")
    assert last["choices"][0]["finish_reason"] == "stop"
