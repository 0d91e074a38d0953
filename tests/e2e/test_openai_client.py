import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx2
import openai
import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from app.deliberation.strategies import STRATEGIES
from tests.e2e.conftest import SLOW, TASK, Stack

pytestmark = pytest.mark.e2e

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "openai_client.py")
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Answer in Python."},
    {"role": "user", "content": TASK},
]


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="unused", timeout=60) as client:
        yield client


def blocking(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="unused", timeout=60)


async def counted(stack: Stack, usage: CompletionUsage | None) -> None:
    assert usage is not None
    engine = await stack.engine_calls()
    assert (usage.prompt_tokens, usage.completion_tokens) == (engine["prompt_tokens"], engine["completion_tokens"])
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == engine.get("cached_tokens", 0)


async def test_models_are_listed_and_found(stack: Stack, client: openai.AsyncOpenAI) -> None:
    names = [model.id async for model in client.models.list()]
    roles = [role["name"] for role in (await stack.client.get("/roles")).json()["items"]]
    assert sorted(names) == sorted(f"{strategy}/{role}" for strategy in STRATEGIES for role in roles)
    assert (await client.models.retrieve("council/DEV")).object == "model"
    with pytest.raises(openai.NotFoundError) as refused:
        await client.models.retrieve("council/NOBODY")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_answers_and_its_usage_equals_the_engines_count(
    stack: Stack, client: openai.AsyncOpenAI, strategy: str
) -> None:
    raw = await client.chat.completions.with_raw_response.create(model=f"{strategy}/DEV", messages=MESSAGES, seed=7)
    found = raw.parse()
    read = await stack.read(raw.headers["x-deliberation-id"])
    assert read["status"] == "completed" and read["strategy"] == strategy and read["seed"] == 7
    assert found.id == f"chatcmpl-{read['id']}" and found.model == f"{strategy}/DEV"
    assert found.choices and all(choice.message.content for choice in found.choices)
    if read["verdict"]["content"] is not None:
        assert [choice.message.content for choice in found.choices] == [read["verdict"]["content"]]
    assert {choice.finish_reason for choice in found.choices} == {"stop"}
    assert "Answer in Python." in read["task"] and TASK in read["task"]
    assert found._request_id == raw.headers["x-request-id"]  # pyright: ignore[reportPrivateUsage] -- documented
    await counted(stack, found.usage)


class Step(BaseModel):
    title: str
    hours: float | None


class Plan(BaseModel):
    goal: str
    risk: Literal["low", "high"]
    steps: list[Step]
    agents: int = Field(ge=1, le=9)


@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if strategy != "execute"])
async def test_every_strategy_with_answers_gives_the_demanded_json(
    stack: Stack, client: openai.AsyncOpenAI, strategy: str
) -> None:
    found = await client.chat.completions.parse(model=strategy, messages=MESSAGES, seed=7, response_format=Plan)
    assert found.model == f"{strategy}/DEV"
    assert found.choices and all(isinstance(choice.message.parsed, Plan) for choice in found.choices)


async def test_the_client_without_a_loop_works_too(stack: Stack) -> None:
    def ask() -> Any:
        with blocking(stack) as client:
            return client.chat.completions.create(
                model="best_of_n/QA",
                messages=[{"role": "user", "content": [{"type": "text", "text": TASK}]}],
                temperature=0.2,
                max_completion_tokens=2_000,
                metadata={"suite": "e2e"},
                user="ann",
                extra_body={"deliberation": {"num_agents": 2, "requirements": ["linear time"]}},
                extra_headers={"X-Request-Id": "mine-7"},
            )

    found = await asyncio.to_thread(ask)
    assert found._request_id == "mine-7"
    read = await stack.read(found.deliberation["id"])
    assert read["task"] == TASK and len(read["agents"]) == 2 and read["role"] == "QA"
    assert read["agents"][0]["sampling"] == {"temperature": 0.2, "max_tokens": 2_000, "top_p": None}
    assert read["metadata"] == {"suite": "e2e", "user": "ann"}
    assert read["constraints"]["requirements"] == ["linear time"]
    await counted(stack, found.usage)


async def test_a_stream_gives_the_same_text_and_the_usage_last(stack: Stack, client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="council/DEV", messages=MESSAGES, seed=11)
    (await stack.engine.delete("/simulator/calls")).raise_for_status()
    stream = await client.chat.completions.create(
        model="council/DEV", messages=MESSAGES, seed=11, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    told = [choice.delta.model_extra or {} for chunk in chunks for choice in chunk.choices]
    assert [each["reasoning_content"].partition("\n")[0] for each in told if each][:2] == [
        "**propose**", "3 of 3 outcomes counted (closed: all)."
    ]  # fmt: skip
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["stop"]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    await counted(stack, chunks[-1].usage)
    assert {chunk.id for chunk in chunks} != {whole.id} and len({chunk.id for chunk in chunks}) == 1


async def test_the_streaming_helper_gathers_the_same(stack: Stack, client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="independent/DEV", messages=MESSAGES, n=2) as stream:
        async for _ in stream:
            pass
        gathered = await stream.get_final_completion()
    read = await stack.read(gathered.id.removeprefix("chatcmpl-"))
    assert [choice.message.content for choice in gathered.choices] == [p["content"] for p in read["proposals"]]


async def test_rejections_raise_the_clients_own_errors(stack: Stack, client: openai.AsyncOpenAI) -> None:
    ask = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        await ask(model="gpt-4o", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await ask(model="council/DEV", messages=MESSAGES, n=2)
    assert (bad.value.param, bad.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as tools:
        tool: Any = {"type": "custom", "custom": {"name": "f"}}
        await ask(model="council/DEV", messages=MESSAGES, tools=[tool])
    assert tools.value.param == "tools[0]" and tools.value.request_id
    assert (await stack.engine_calls())["requests"] == 0


async def test_the_client_does_not_retry_a_missed_deadline(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.script(**{**SLOW, "duration_ms": 60_000})
    soon: Any = {"deliberation": {"timeout_seconds": 1, "num_agents": 1}}
    with pytest.raises(openai.InternalServerError) as late:
        await client.chat.completions.create(model="single/DEV", messages=MESSAGES, extra_body=soon)
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
    read = await stack.read(late.value.response.headers["x-deliberation-id"])
    assert read["status"] == "timeout"
    assert (await stack.engine_calls())["started"] == 1
    with pytest.raises(openai.APIError) as streamed:
        async for _ in await client.chat.completions.create(
            model="single/DEV", messages=MESSAGES, extra_body=soon, stream=True
        ):
            pass
    assert streamed.value.code == "deadline_exceeded"


async def test_engines_that_fail_are_an_error_and_never_an_answer(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.script(faults=["bad-request"])
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model="best_of_n/DEV", messages=MESSAGES)
    assert (failed.value.status_code, failed.value.code) == (502, "no_answers")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_gives_up_stops_the_deliberation(
    stack: Stack, client: openai.AsyncOpenAI, streamed: bool
) -> None:
    """However it gives up: here by its own time-out, or by closing a stream that has begun."""
    await stack.script(**{**SLOW, "duration_ms": 60_000})
    marked: dict[str, Any] = {"model": "council/DEV", "messages": MESSAGES, "metadata": {"leaves": str(streamed)}}
    if streamed:
        stream = await client.chat.completions.create(**marked, stream=True)
        assert (await anext(aiter(stream))).choices[0].delta.role == "assistant"
        await stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=httpx2.Timeout(1.0), max_retries=0).chat.completions.create(**marked)
    listed = await stack.client.get("/deliberations", params={"metadata.leaves": str(streamed), "after": "now"})
    (found,) = listed.json()["items"]
    read = await stack.until(found["id"], status="cancelled")
    assert read["status_reason"] == "the client left"


async def test_an_idempotency_key_reconnects_a_client_to_its_deliberation(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    await stack.script(**{**SLOW, "duration_ms": 2_000})
    key = {"Idempotency-Key": "come-back"}
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=httpx2.Timeout(0.5), max_retries=0).chat.completions.create(
            model="single/DEV", messages=MESSAGES, extra_headers=key
        )
    found = await client.chat.completions.create(model="single/DEV", messages=MESSAGES, extra_headers=key)
    assert found.choices[0].message.content
    await counted(stack, found.usage)


async def test_the_example_prints_the_answer_and_its_usage(stack: Stack) -> None:
    command = [sys.executable, EXAMPLE, TASK, "--url", stack.url, "--model", "best_of_n/DEV", "--agents", "2"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    async with asyncio.timeout(60):
        printed, err = (said.decode() for said in await process.communicate())
    assert process.returncode == 0, err
    read = await stack.read(err.split()[2])
    assert printed.strip() == read["verdict"]["content"].strip()
    usage = read["usage"]
    assert f"{usage['prompt_tokens']} prompt and {usage['completion_tokens']} completion tokens" in err
