"""OpenAI's client over the gateway's routes, without a network; `tests/e2e/test_openai_responses.py` has the stack."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar, cast

import httpx2
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from app.deliberation.facts import Cancelled
from tests.components.facades.chatting import accepted_in, cancelled_in
from tests.components.facades.endings import writing
from tests.components.routes.served import APP, Served
from tests.conditions import until

Answer = TypeVar("Answer")
DETAILED: Any = {"summary": "detailed"}


@pytest.fixture
async def client(gateway: Served) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
        await APP({**scope, "state": dict(cast(Any, gateway.gateway))}, receive, send)

    transport = httpx2.ASGITransport(app=with_state)
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="unused", http_client=http) as client,
    ):
        yield client


async def played(
    gateway: Served, asking: Coroutine[Any, Any, Answer], play: Callable[[Served, str], Any] = Served.play
) -> Answer:
    before = len(accepted_in(gateway))
    waiting = asyncio.create_task(asking)
    await until(lambda: len(accepted_in(gateway)) > before)
    await play(gateway, accepted_in(gateway)[-1].deliberation_id)
    return await waiting


async def test_a_response_and_its_stream(gateway: Served, client: openai.AsyncOpenAI) -> None:
    found = await played(gateway, client.responses.create(model="council/DEV", input="Name a colour."))
    assert isinstance(found, Response) and found.status == "completed" and found.output_text
    assert found.usage is not None and found.usage.output_tokens_details.reasoning_tokens > 0
    assert [item.type for item in found.output] == ["reasoning"] * 4 + ["message"]
    again = [event async for event in await client.responses.retrieve(found.id, stream=True)]
    assert [event.sequence_number for event in again] == [*range(len(again))]
    assert again[-1].type == "response.completed" and again[-1].response == found
    rest = await client.responses.retrieve(found.id, stream=True, starting_after=again[5].sequence_number)
    assert [event async for event in rest] == again[6:]


async def test_the_streaming_helper_gathers_the_response(gateway: Served, client: openai.AsyncOpenAI) -> None:
    async def gather() -> Any:
        asked: dict[str, Any] = {"model": "council/DEV", "input": "Name a colour.", "reasoning": DETAILED}
        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            return kinds, await stream.get_final_response()

    kinds, gathered = await played(gateway, gather())
    assert kinds[:2] == ["response.created", "response.queued"] and kinds[-1] == "response.completed"
    assert gathered.output_text and all(len(item.summary) > 3 for item in gathered.output if item.type == "reasoning")
    async with client.responses.stream(response_id=gathered.id, starting_after=5) as resumed:
        numbers = [event.sequence_number async for event in resumed]
        assert numbers == [*range(6, len(kinds))]


async def test_background_work_is_polled_cancelled_and_deleted(gateway: Served, client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(model="council/DEV", input="Name a colour.", background=True)
    assert begun.status == "queued" and (await client.responses.retrieve(begun.id)).background is True
    with pytest.raises(openai.ConflictError):
        await client.with_options(max_retries=0).responses.delete(begun.id)
    cancelling = asyncio.create_task(client.responses.cancel(begun.id))
    await until(lambda: len(cancelled_in(gateway)) == 1)
    id = begun.id.removeprefix("resp_")
    await gateway.append(Cancelled(deliberation_id=id, ts=gateway.clock.now()))
    assert (await cancelling).status == "cancelled"
    await client.responses.delete(begun.id)
    with pytest.raises(openai.APIStatusError) as gone:
        await client.responses.retrieve(begun.id)
    assert gone.value.status_code == 410


class Number(BaseModel):
    n: int


async def test_a_model_of_the_client_is_the_answers_form(gateway: Served, client: openai.AsyncOpenAI) -> None:
    asking = client.responses.parse(model="single/DEV", input="A number.", text_format=Number)
    assert (await played(gateway, asking, writing({"n": 3}))).output_parsed == Number(n=3)


async def test_a_conversation_goes_on_and_its_input_is_paged(gateway: Served, client: openai.AsyncOpenAI) -> None:
    first = await played(gateway, client.responses.create(model="single/DEV", input="Name a colour."))
    more = client.responses.create(model="single/DEV", input="Another.", previous_response_id=first.id)
    second = await played(gateway, more)
    items = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=1)]
    texts = [getattr(part, "text", "") for item in items if item.type == "message" for part in item.content]
    assert texts == ["Name a colour.", first.output_text, "Another."]


async def test_rejections_are_the_clients_own_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model="gpt-6", input="Hi.")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="council", input="Hi.", conversation="conv_1")
    assert refused.value.param == "conversation"
