import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from app.deliberation.strategies import STRATEGIES
from tests.e2e.conftest import SLOW, TASK, Stack

pytestmark = pytest.mark.e2e

ASKED: dict[str, Any] = {"input": TASK, "instructions": "Answer in Python."}
DETAILED: Any = {"summary": "detailed"}


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="unused", timeout=60) as client:
        yield client


async def deliberation_of(stack: Stack, response: Response) -> dict[str, Any]:
    return await stack.read(response.id.removeprefix("resp_"))


async def polled(client: openai.AsyncOpenAI, response: Response) -> Response:
    async with asyncio.timeout(90):
        while response.status in ("queued", "in_progress"):
            await asyncio.sleep(0.1)
            response = await client.responses.retrieve(response.id)
    return response


def numbers(events: list[ResponseStreamEvent]) -> list[int]:
    return [event.sequence_number for event in events]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_answers_with_the_full_bill(
    stack: Stack, client: openai.AsyncOpenAI, strategy: str
) -> None:
    found = await client.responses.create(
        model=f"{strategy}/DEV", **ASKED, reasoning=DETAILED, metadata={"suite": "e2e"}
    )
    read, engine = await deliberation_of(stack, found), await stack.engine_calls()
    assert (found.status, found.model, found.error) == ("completed", f"{strategy}/DEV", None)
    assert (found.instructions, found.metadata) == ("Answer in Python.", {"suite": "e2e"})
    if read["verdict"]["content"] is not None:
        assert found.output_text == read["verdict"]["content"]
    assert found.output_text and found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (
        engine["prompt_tokens"],
        engine["completion_tokens"],
    )
    assert found.usage.input_tokens_details.cached_tokens == engine.get("cached_tokens", 0)
    stages = [item for item in found.output if item.type == "reasoning"]
    assert stages and all(item.status == "completed" and len(item.summary) >= 3 for item in stages)


def test_the_client_without_a_loop_answers_and_streams(running: Stack) -> None:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", timeout=60) as client:
        options: Any = {"deliberation": {"seed": 7, "num_agents": 2}}
        whole = client.responses.create(model="best_of_n/DEV", **ASKED, extra_body=options)
        with client.responses.stream(model="best_of_n/DEV", **ASKED, extra_body=options) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
    assert streamed.output_text == whole.output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


async def test_a_stream_resumes_after_any_number(stack: Stack, client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="council/DEV", **ASKED, reasoning=DETAILED, stream=True)
    live = [event async for event in stream]
    assert numbers(live) == [*range(len(live))]
    assert live[0].type == "response.created" and live[-1].type == "response.completed"
    id = live[-1].response.id
    for after in (0, len(live) // 2, len(live) - 2):
        again = await client.responses.retrieve(id, stream=True, starting_after=after)
        assert [event async for event in again] == live[after + 1 :]
    async with client.responses.stream(response_id=id, starting_after=5) as resumed:
        assert numbers([event async for event in resumed]) == [*range(6, len(live))]
        assert (await resumed.get_final_response()).output_text == live[-1].response.output_text


async def test_background_work_is_polled_and_is_not_its_clients(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.script(**SLOW)
    stream = await client.responses.create(model="council/DEV", **ASKED, background=True, stream=True)
    first = await anext(aiter(stream))
    assert first.type == "response.created" and first.response.background is True
    await stream.close()
    found = await polled(client, first.response)
    read = await deliberation_of(stack, found)
    assert found.status == read["status"] == "completed" and found.output_text == read["verdict"]["content"]


async def test_background_work_is_cancelled_and_deleted(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.script(**{**SLOW, "duration_ms": 60_000})
    begun = await client.responses.create(model="council/DEV", **ASKED, background=True)
    assert begun.status in ("queued", "in_progress")
    with pytest.raises(openai.ConflictError):
        await client.with_options(max_retries=0).responses.delete(begun.id)
    stopped = await client.responses.cancel(begun.id)
    assert stopped.status == "cancelled" and (await client.responses.cancel(begun.id)).status == "cancelled"
    await client.responses.delete(begun.id)
    with pytest.raises(openai.APIStatusError) as gone:
        await client.responses.retrieve(begun.id)
    assert (gone.value.status_code, gone.value.code) == (410, "gone")


async def test_a_client_that_leaves_the_foreground_cancels(stack: Stack, client: openai.AsyncOpenAI) -> None:
    await stack.script(**{**SLOW, "duration_ms": 60_000})
    stream = await client.responses.create(model="council/DEV", **ASKED, stream=True)
    first = await anext(aiter(stream))
    assert first.type == "response.created"
    await stream.close()
    await stack.until(first.response.id.removeprefix("resp_"), status="cancelled")


async def test_a_conversation_goes_on_from_an_earlier_response(stack: Stack, client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="single/DEV", **ASKED)
    second = await client.responses.create(
        model="single/DEV", input="And in linear time?", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id and second.instructions is None
    items = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
    texts = [getattr(part, "text", None) for item in items if item.type == "message" for part in item.content]
    assert texts == [TASK, first.output_text, "And in linear time?"]


class Plan(BaseModel):
    goal: str
    risk: Literal["low", "high"]


async def test_the_answer_is_the_demanded_json(stack: Stack, client: openai.AsyncOpenAI) -> None:
    found = await client.responses.parse(model="council/DEV", **ASKED, text_format=Plan)
    assert isinstance(found.output_parsed, Plan)


async def test_rejections_and_failures_raise_the_clients_own_errors(stack: Stack, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model="gpt-6", **ASKED)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as tools:
        tool: Any = {"type": "web_search"}
        await client.responses.create(model="council/DEV", **ASKED, tools=[tool])
    assert tools.value.param == "tools[0]"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_nothing")
    await stack.script(faults=["bad-request"])
    with pytest.raises(openai.InternalServerError) as failed:
        await client.responses.create(model="best_of_n/DEV", **ASKED)
    assert (failed.value.status_code, failed.value.code) == (502, "no_answers")
    background = await polled(client, await client.responses.create(model="best_of_n/DEV", **ASKED, background=True))
    assert background.status == "failed" and background.error is not None and background.error.code == "no_answers"


async def test_a_stream_goes_on_with_the_same_numbers_after_the_gateways_sigkill(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    await stack.script(**SLOW)
    asked: dict[str, Any] = {"model": "council/DEV", **ASKED, "reasoning": DETAILED}
    stream = await client.responses.create(**asked, background=True, stream=True)
    seen: list[ResponseStreamEvent] = []
    pid = stack.child("gateway")["pid"]
    with suppress(openai.APIConnectionError):
        async for event in stream:
            seen.append(event)
            if event.type == "response.reasoning_summary_part.done" and stack.child("gateway")["pid"] == pid:
                os.kill(pid, signal.SIGKILL)
    assert seen[0].type == "response.created" and seen[-1].type != "response.completed"
    await stack.until_ready()
    assert stack.child("gateway")["pid"] != pid
    id = seen[0].response.id
    rest = await client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    seen += [event async for event in rest]
    assert numbers(seen) == [*range(len(seen))] and seen[-1].type == "response.completed"
    whole = await client.responses.retrieve(id, stream=True)
    assert [event async for event in whole] == seen


async def test_one_seed_and_one_engine_give_one_verdict_and_one_bill_over_rest_chat_and_responses(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    seeded: Any = {"deliberation": {"seed": 11}}
    rest = await stack.until(await stack.submit(role="DEV", strategy="council", seed=11), status="completed")
    message: Any = {"role": "user", "content": TASK}
    chat = await client.chat.completions.create(model="council/DEV", messages=[message], seed=11)
    response = await client.responses.create(model="council/DEV", input=TASK, extra_body=seeded)
    assert rest["verdict"]["content"] == chat.choices[0].message.content == response.output_text
    assert chat.usage is not None and response.usage is not None
    bills = {
        (rest["usage"]["prompt_tokens"], rest["usage"]["completion_tokens"]),
        (chat.usage.prompt_tokens, chat.usage.completion_tokens),
        (response.usage.input_tokens, response.usage.output_tokens),
    }
    assert len(bills) == 1
