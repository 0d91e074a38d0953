import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.deliberation.outputs import Output, json_schema
from tests.integration.simulator.server_process import Fields, Simulator, running, simulating

CHAT = "/v1/chat/completions"
MODEL = "simulated-council-8b"
TASK = "# Task\nDesign a rate limiter for a multi-tenant HTTP API.\n\n# Who you are\nYou are a quality engineer."
ANSWER_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": json_schema(Output(kind="answer"))}}


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    with running("--seed", "5") as simulator:
        yield simulator


@pytest.fixture
async def client(shared: Simulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=shared.url, timeout=30) as client:
        await script(client, behaviour="normal", faults=[], duration_ms=None, ttft_ms=0, per_token_ms=0, tokens=None)
        await client.delete("/simulator/calls")
        yield client


def body(content: str = TASK, **fields: Any) -> Fields:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


async def ask(client: httpx.AsyncClient, path: str = CHAT, call: str = "", **fields: Any) -> Fields:
    response = await client.post(path, json=body(**fields), headers={"x-call-id": call} if call else {})
    assert response.status_code == 200, response.text
    return response.json()


async def text(client: httpx.AsyncClient, **fields: Any) -> str:
    return (await ask(client, **fields))["choices"][0]["message"]["content"]


async def stream(client: httpx.AsyncClient, **fields: Any) -> list[Fields]:
    async with client.stream("POST", CHAT, json=body(stream=True, **fields)) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def text_of(chunks: list[Fields], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def script(client: httpx.AsyncClient, **changes: Any) -> Fields:
    response = await client.post("/simulator/script", json=changes)
    assert response.status_code == 200, response.text
    return response.json()


async def test_with_keys_every_path_under_v1_needs_one_of_them() -> None:
    async with simulating("--api-key", "first-key", "--api-key", "second-key") as (_, client):

        async def status(key: str | None, path: str = "/v1/models") -> int:
            return (await client.get(path, headers={"authorization": f"Bearer {key}"} if key else {})).status_code

        assert [await status(key) for key in (None, "wrong", "first-key", "second-key")] == [401, 401, 200, 200]
        refused = await client.post(CHAT, json=body())
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"}), "as vLLM refuses it"
        assert await status(None, "/health") == 200
        shown = await script(client, api_keys=["third-key"])
        assert [await status(key) for key in ("first-key", "third-key")] == [401, 200], "keys can be rotated"
        assert "third-key" not in json.dumps(shown)


async def calls(client: httpx.AsyncClient, **query: str) -> Fields:
    return (await client.get("/simulator/calls", params=query)).json()


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        assert sample.labels["model_name"] == MODEL
        reason = sample.labels.get("finished_reason")
        found[f"{sample.name}{{{reason}}}" if reason else sample.name] = sample.value
    return found


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 10) -> None:
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(0.005)


async def test_the_ready_line_names_the_address_and_a_simulated_model(client: httpx.AsyncClient) -> None:
    async with simulating("--model", "llama-70b") as (simulator, other):
        assert simulator.ready_line.startswith("simulator ready http://127.0.0.1:")
        assert simulator.ready_line.endswith(" model=simulated-llama-70b")
        (card,) = (await other.get("/v1/models")).json()["data"]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == ("simulated-llama-70b", "simulator", 32_768)
    assert "simulated" in (await client.get("/version")).json()["version"]
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_continuous_usage_counts_up(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(client, max_tokens=5, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 4, 5, 5]


async def test_rejects_other_paths_and_methods_in_the_same_shape(client: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("GET", CHAT, 405), ("DELETE", "/health", 405)):
        response = await client.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (status, status)


async def test_processes_with_one_seed_write_the_same_in_any_order(client: httpx.AsyncClient) -> None:
    asked: list[Fields] = [
        {"seed": 1},
        {"seed": 2, "response_format": ANSWER_FORMAT},
        {"content": "Another question?"},
        {"seed": 1, "n": 2},
    ]
    first = [(await ask(client, **fields))["choices"] for fields in asked]
    async with simulating("--seed", "5") as (_, twin), simulating("--seed", "6") as (_, stranger):
        again = await asyncio.gather(*(ask(twin, **fields) for fields in reversed(asked)))
        assert [each["choices"] for each in reversed(again)] == first
        assert (await ask(stranger, **asked[0]))["choices"] != first[0]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_completion_takes_no_less_than_its_scripted_time(client: httpx.AsyncClient, *, streamed: bool) -> None:
    for changes, least_s in (
        ({"duration_ms": 150, "tokens": 32}, 0.150),
        ({"duration_ms": None, "ttft_ms": 60, "per_token_ms": 5, "tokens": 11}, 0.110),
    ):
        await script(client, **changes)
        started = time.monotonic()
        await (stream(client) if streamed else ask(client))
        assert time.monotonic() - started >= least_s


async def test_the_first_token_comes_in_its_own_time_before_the_rest(client: httpx.AsyncClient) -> None:
    await script(client, ttft_ms=40, per_token_ms=20, tokens=12)
    started = time.monotonic()
    arrived: list[float] = []
    async with client.stream("POST", CHAT, json=body(stream=True)) as response:
        async for line in response.aiter_lines():
            if '"delta":{"content"' in line:
                arrived.append(time.monotonic() - started)
    assert arrived[0] >= 0.040
    assert arrived[-1] >= 0.040 + 11 * 0.020
    assert arrived[-1] - arrived[0] >= 0.1, "the rest is not held back for the end"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_ends_its_generation_at_once(client: httpx.AsyncClient, *, streamed: bool) -> None:
    await script(client, duration_ms=20_000, tokens=1_000)
    took_s: list[float] = []
    for attempt in range(3):
        before = await metrics(client)
        request = asyncio.create_task(ask(client, stream=streamed, call=f"gone-{attempt}"))
        await until(lambda: running_is(client, 1))
        request.cancel()
        left = time.monotonic()
        await until(lambda: running_is(client, 0))
        took_s.append(time.monotonic() - left)
        after = await metrics(client)
        aborts = "vllm:request_success_total{abort}"
        assert after[aborts] - before[aborts] == 1
        assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] < 900
        assert (await calls(client))["calls"][f"gone-{attempt}"]["aborted"] == 1
    assert min(took_s) < 0.25
    counted = await calls(client)
    assert (counted["started"], counted["aborted"], counted["finished"]) == (3, 3, 0)


async def running_is(client: httpx.AsyncClient, running: int) -> bool:
    return (await metrics(client))["vllm:num_requests_running"] == running


async def waiting_is(client: httpx.AsyncClient, waiting: int) -> bool:
    return (await metrics(client))["vllm:num_requests_waiting"] == waiting


async def test_requests_beyond_max_running_wait_in_order_or_leave() -> None:
    async with simulating("--max-running", "2", "--duration-ms", "20000") as (_, client):
        async with asyncio.TaskGroup() as group:
            first = [group.create_task(ask(client, call=f"first-{place}")) for place in range(2)]
            await until(lambda: running_is(client, 2))
            leaver = group.create_task(ask(client, call="leaver"))
            await until(lambda: waiting_is(client, 1))
            patient = group.create_task(ask(client, call="patient", max_tokens=1))
            await until(lambda: waiting_is(client, 2))
            assert (await client.get("/load")).json() == {"server_load": 4}
            leaver.cancel()
            await until(lambda: waiting_is(client, 1))
            first[0].cancel()
            await until(lambda: waiting_is(client, 0))
            assert await running_is(client, 2)
            first[1].cancel()
            patient.cancel()
        await until(lambda: running_is(client, 0))
        counted = await calls(client)
    assert (counted["started"], counted["aborted"]) == (4, 4)


async def test_metrics_and_the_ledger_count_the_tokens_of_usage(client: httpx.AsyncClient) -> None:
    before = await metrics(client)
    whole = [
        await ask(client, call="a"),
        await ask(client, call="a", max_tokens=3),
        await ask(client, call="b,c"),
    ]
    await client.post(CHAT, json=body(max_tokens=0), headers={"x-call-id": "d"})
    after, counted = await metrics(client), await calls(client, detail="1")
    for name, metric in (("prompt_tokens", "prompt_tokens"), ("completion_tokens", "generation_tokens")):
        expected = sum(each["usage"][name] for each in whole)
        assert after[f"vllm:{metric}_total"] - before[f"vllm:{metric}_total"] == expected == counted[name]
    for reason, expected in (("stop", 2), ("length", 1), ("abort", 0)):
        ended = f"vllm:request_success_total{{{reason}}}"
        assert after[ended] - before[ended] == expected
    for histogram in ("e2e_request_latency", "time_to_first_token"):
        assert after[f"vllm:{histogram}_seconds_count"] - before[f"vllm:{histogram}_seconds_count"] == 3
    by_call = {call: (each["started"], each["finished"], each["failed"]) for call, each in counted["calls"].items()}
    assert by_call == {"a": (2, 2, 0), "b": (1, 1, 0), "c": (1, 1, 0), "d": (1, 0, 1)}
    assert (counted["requests"], counted["finished"], counted["failed"]) == (4, 3, 1)
    assert [prompt["call_ids"] for prompt in counted["prompts"]] == [["a"], ["a"], ["b", "c"]]
    assert counted["prompts"][0]["messages"] == body()["messages"]
    assert "prompts" not in await calls(client)
    assert (await client.delete("/simulator/calls")).status_code == 200
    assert (await calls(client))["requests"] == 0


@pytest.mark.parametrize(
    ("fault", "status", "retry_after"),
    [("rate-limit", 429, "1"), ("error", 500, None), ("unavailable", 503, "1"), ("bad-request", 400, None)],
)
async def test_a_refusing_fault_hits_once_and_the_retry_works(
    client: httpx.AsyncClient, fault: str, status: int, retry_after: str | None
) -> None:
    await script(client, faults=[f"{fault}:first=1:match=^hit-me"])
    assert await text(client, call="leave-me", max_tokens=2)
    response = await client.post(CHAT, json=body(), headers={"x-call-id": "hit-me"})
    assert (response.status_code, response.json()["error"]["code"]) == (status, status)
    assert response.headers.get("retry-after") == retry_after
    assert await text(client, call="hit-me", max_tokens=2)
    counted = (await calls(client))["calls"]["hit-me"]
    assert (counted["started"], counted["failed"], counted["finished"]) == (2, 1, 1)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_broken_stream_breaks_in_the_middle(client: httpx.AsyncClient, *, streamed: bool) -> None:
    await script(client, faults=["broken-stream:first=1"])
    received = ""
    with pytest.raises(httpx.RemoteProtocolError):
        async with client.stream("POST", CHAT, json=body(stream=streamed), headers={"x-call-id": "x"}) as response:
            assert response.status_code == 200
            async for piece in response.aiter_text():
                received += piece
    assert '"content":' in received
    assert "[DONE]" not in received
    assert (await calls(client))["calls"]["x"]["failed"] == 1
    assert await text(client, call="x")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stalled_or_hanging_answer_waits_until_the_client_leaves(
    client: httpx.AsyncClient, *, streamed: bool
) -> None:
    for fault in ("hang", "stall"):
        await script(client, faults=[f"{fault}:first=1"])
        request = asyncio.create_task(ask(client, stream=streamed, call=fault))
        await until(lambda: running_is(client, 1))
        request.cancel()
        await until(lambda: running_is(client, 0))
        assert (await calls(client))["calls"][fault]["aborted"] == 1


async def test_faults_change_the_text_and_the_finish_reason(client: httpx.AsyncClient) -> None:
    whole = await ask(client, response_format=ANSWER_FORMAT)
    await script(client, faults=["bad-json:first=1", "truncate:first=2", "empty:first=3"])
    spoilt, cut, empty = [await ask(client, response_format=ANSWER_FORMAT) for _ in range(3)]
    with pytest.raises(json.JSONDecodeError):
        json.loads(spoilt["choices"][0]["message"]["content"])
    assert spoilt["choices"][0]["finish_reason"] == "stop"
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] // 2
    assert (empty["choices"][0]["message"]["content"], empty["usage"]["completion_tokens"]) == ("", 0)
    await script(client, faults=["empty"])
    assert text_of(await stream(client)) == ""


async def test_the_script_can_be_read_and_a_wrong_change_leaves_it(client: httpx.AsyncClient) -> None:
    changed = await script(client, behaviour="poor", ttft_ms=1, faults=["error:0.5"])
    assert (changed["behaviour"], changed["ttft_ms"], changed["faults"]) == ("poor", 1, ["error:0.5"])
    for wrong in ({"behaviour": "kind"}, {"faults": ["nonsense"]}, {"unknown": 1}):
        response = await client.post("/simulator/script", json=wrong)
        assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(wrong)))
    assert (await client.get("/simulator/script")).json() == changed


async def test_sigterm_lets_a_running_answer_end_and_exits_well() -> None:
    async with simulating("--duration-ms", "500") as (simulator, client):
        answer = asyncio.create_task(ask(client))
        await until(lambda: running_is(client, 1))
        simulator.process.send_signal(signal.SIGTERM)
        assert (await answer)["choices"][0]["finish_reason"] == "stop"
        assert simulator.process.wait(timeout=10) == 0


async def test_sigterm_does_not_wait_for_work_that_never_ends() -> None:
    async with simulating("--fault", "hang") as (simulator, client):
        answer = asyncio.create_task(ask(client))
        await until(lambda: running_is(client, 1))
        simulator.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(simulator.process.wait, 15) == 0
        answer.cancel()


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--fault", "nonsense"], 2, "rate-limit"),
        (["--behaviour", "kind"], 2, "excellent"),
        (["--host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1"),
    ],
)
def test_rejects_a_wrong_command_line(options: list[str], status: int, said: str) -> None:
    command = [sys.executable, "-m", "serve_deployments.simulator", "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == status
    assert said in ended.stderr


async def test_without_controls_no_client_reads_prompts_or_scripts_faults() -> None:
    async with simulating("--no-controls") as (_, client):
        assert (await client.get("/v1/models")).status_code == 200
        for path in ("/simulator/calls?detail=true", "/simulator/script"):
            assert (await client.get(path)).status_code == 404
