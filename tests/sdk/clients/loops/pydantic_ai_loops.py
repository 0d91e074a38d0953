"""Pydantic AI, over both of its models of OpenAI."""

from functools import partial

import arithmetic
from arithmetic import MODEL, add, multiply, run
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

Model = type[OpenAIChatModel | OpenAIResponsesModel]


def divide(a: int, b: int) -> int:
    """Divide an integer by another one."""
    try:
        return arithmetic.divide(a, b)
    except ZeroDivisionError as error:
        raise ModelRetry(str(error)) from error


def agent(model: Model, url: str) -> Agent:
    provider = OpenAIProvider(base_url=url, api_key="unused")
    said = "Compute with the tools."
    return Agent(model(MODEL, provider=provider), instructions=said, tools=[add, multiply, divide])


async def whole(model: Model, url: str, task: str) -> str:
    return (await agent(model, url).run(task)).output


async def streamed(model: Model, url: str, task: str) -> str:
    async with agent(model, url).run_stream(task) as result:
        pieces = [piece async for piece in result.stream_text(delta=True)]
        return "".join(pieces)


run(
    {
        "chat": partial(whole, OpenAIChatModel),
        "chat, streamed": partial(streamed, OpenAIChatModel),
        "responses": partial(whole, OpenAIResponsesModel),
        "responses, streamed": partial(streamed, OpenAIResponsesModel),
    }
)
