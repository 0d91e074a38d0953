"""Haystack's agent."""

from functools import partial

from arithmetic import MODEL, add, divide, multiply, run
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

TOOLS = [create_tool_from_function(tool) for tool in (add, multiply, divide)]

Generator = type[OpenAIChatGenerator | OpenAIResponsesChatGenerator]


async def loop(generator: Generator, stream: bool, url: str, task: str) -> str:
    asked = generator(api_key=Secret.from_token("unused"), model=MODEL, api_base_url=url, max_retries=0)
    pieces = []

    async def collected(chunk: StreamingChunk) -> None:
        pieces.append(chunk.content)

    agent = Agent(chat_generator=asked, tools=TOOLS, streaming_callback=collected if stream else None)
    answer = (await agent.run_async(messages=[ChatMessage.from_user(task)]))["last_message"].text
    assert not stream or "".join(pieces).endswith(answer), pieces
    return answer


run(
    {
        "chat": partial(loop, OpenAIChatGenerator, False),
        "chat, streamed": partial(loop, OpenAIChatGenerator, True),
        "responses": partial(loop, OpenAIResponsesChatGenerator, False),
        "responses, streamed": partial(loop, OpenAIResponsesChatGenerator, True),
    }
)
