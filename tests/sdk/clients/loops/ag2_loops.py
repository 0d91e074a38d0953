"""AG2's agent, over both of OpenAI's APIs."""

from functools import partial

from ag2 import Agent
from ag2.config import OpenAIConfig, OpenAIResponsesConfig
from arithmetic import MODEL, add, divide, multiply, run


async def loop(config: type[OpenAIConfig | OpenAIResponsesConfig], stream: bool, url: str, task: str) -> str:
    asked = config(model=MODEL, base_url=url, api_key="unused", streaming=stream, max_retries=0)
    return (await Agent("arithmetic", config=asked, tools=[add, multiply, divide]).ask(task)).body


run(
    {
        "chat": partial(loop, OpenAIConfig, False),
        "chat, streamed": partial(loop, OpenAIConfig, True),
        "responses": partial(loop, OpenAIResponsesConfig, False),
        "responses, streamed": partial(loop, OpenAIResponsesConfig, True),
    }
)
