"""Official clients send files and pictures, and a long conversation, to a real stack."""

import base64
from typing import Any

import httpx
import openai
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState
from ag_ui.core import ImageInputContent, InputContentDataSource, RunAgentInput, TextInputContent, UserMessage
from mcp import Client, StdioServerParameters
from mcp_types import BlobResourceContents, EmbeddedResource, TextResourceContents

from tests.components.facades.ag_ui_inputs import run_input
from tests.components.inputs.files import picture
from tests.e2e.conftest import DELIBERATE, Stack

pytestmark = pytest.mark.e2e

PNG, NOTES = picture("PNG"), b"Sales of March: 12.\n"
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def client_of(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="unused", timeout=120, max_retries=0)


async def kinds_of(stack: Stack, deliberation_id: str) -> list[str]:
    """The kinds of the files that a completed deliberation has read, in the order of its evidence."""
    read = await stack.read(deliberation_id)
    assert read["status"] == "completed", read
    return [evidence["file"]["kind"] for evidence in read["evidence"]]


async def test_openais_client_uploads_a_file_and_asks_about_a_picture(stack: Stack) -> None:
    async with client_of(stack) as client:
        notes = await client.files.create(file=("notes.txt", NOTES), purpose="user_data")
        assert (await client.files.content(notes.id)).content == NOTES
        parts: Any = [
            {"type": "text", "text": "Compare"},
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "file", "file": {"file_id": notes.id}},
        ]
        messages: Any = [{"role": "user", "content": parts}]
        chat = await client.chat.completions.create(model="single/DEV", messages=messages)
        assert chat.choices[0].message.content
        assert await kinds_of(stack, chat.id.removeprefix("chatcmpl-")) == ["picture", "text"]

        asked: Any = [{"type": "input_image", "image_url": URL}, {"type": "input_file", "file_id": notes.id}]
        response = await client.responses.create(model="single/DEV", input=[{"role": "user", "content": asked}])
        assert response.output_text
        assert await kinds_of(stack, response.id.removeprefix("resp_")) == ["picture", "text"]


def turns(words: int) -> Any:
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": f"{n}: " + "word " * words} for n in range(199)]
    return [*said, {"role": "user", "content": "And the last word?"}]


async def test_200_turns_that_fit_complete_with_the_tokens_that_the_engine_counts(stack: Stack) -> None:
    async with client_of(stack) as client:
        chat = await client.chat.completions.create(model="single/DEV", messages=turns(60))
        response = await client.responses.create(model="single/DEV", input=turns(60))
    assert chat.usage is not None and response.usage is not None
    assert (await stack.read(response.id.removeprefix("resp_")))["task_file"] is not None
    counted = (await stack.engine_calls())["prompt_tokens"]
    assert chat.usage.prompt_tokens + response.usage.input_tokens == counted


async def test_200_turns_beyond_the_engines_context_are_refused_before_any_call(stack: Stack) -> None:
    async with client_of(stack) as client:
        with pytest.raises(openai.BadRequestError, match="the engines of role DEV take 32,768") as refused:
            await client.chat.completions.create(model="single/DEV", messages=turns(400))
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    assert (await stack.engine_calls())["calls"] == {}


async def test_an_a2a_client_sends_a_picture(stack: Stack) -> None:
    parts = [Part(text="What is it?"), Part(raw=PNG, media_type="image/png", filename="plan.png")]
    message = Message(message_id="m-1", role=Role.ROLE_USER, parts=parts)
    async with httpx.AsyncClient(timeout=70) as http:
        client = await ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create_from_url(stack.url)
        (event,) = [event async for event in client.send_message(SendMessageRequest(message=message))]
    assert event.task.status.state == TaskState.TASK_STATE_COMPLETED
    assert await kinds_of(stack, event.task.id) == ["picture"]


async def test_an_mcp_client_embeds_a_picture_and_a_text(stack: Stack) -> None:
    blob = BlobResourceContents(uri="file:///plan.png", mime_type="image/png", blob=base64.b64encode(PNG).decode())
    text = TextResourceContents(uri="file:///notes.txt", text=NOTES.decode())
    resources = [EmbeddedResource(resource=contents).model_dump(by_alias=True) for contents in (blob, text)]
    stdio = StdioServerParameters(command=str(DELIBERATE), args=["mcp", "--url", stack.url])
    for server in (f"{stack.url}/mcp", stdio):
        async with Client(server) as client:
            asked = {"task": "What is it?", "strategy": "single", "resources": resources}
            result = await client.call_tool("deliberate", asked)
        assert not result.is_error, result.content
        assert await kinds_of(stack, result.structured_content["id"]) == ["picture", "text"]


async def test_ag_uis_types_carry_a_picture(stack: Stack) -> None:
    source = InputContentDataSource(value=base64.b64encode(PNG).decode(), mime_type="image/png")
    content: Any = [TextInputContent(text="What is it?"), ImageInputContent(source=source)]
    sent = RunAgentInput.model_validate(run_input(run="picture", messages=[]) | {"tools": [], "context": []})
    sent.messages = [UserMessage(id="m1", content=content)]
    body = sent.model_dump(mode="json", by_alias=True, exclude_none=True)
    answer = await stack.client.post("/ag-ui", json=body, timeout=70)
    assert answer.status_code == 200 and '"RUN_FINISHED"' in answer.text, answer.text
    assert await kinds_of(stack, answer.headers["x-deliberation-id"]) == ["picture"]
