"""OpenAI's Agents SDK, over both of its models."""

from functools import partial

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from arithmetic import MODEL, add, divide, multiply, run
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

TOOLS = [function_tool(tool) for tool in (add, multiply, divide)]
Model = type[OpenAIChatCompletionsModel | OpenAIResponsesModel]


def agent(model: Model, url: str) -> Agent:
    client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
    settings = ModelSettings(parallel_tool_calls=True, include_usage=True)
    said = "Compute with the tools."
    return Agent("arithmetic", instructions=said, tools=TOOLS, model=model(MODEL, client), model_settings=settings)


async def whole(model: Model, url: str, task: str) -> str:
    return (await Runner.run(agent(model, url), task)).final_output


async def after_the_last_response(model: Model, url: str, task: str) -> str:
    """Each turn names the response before it, and sends what is new."""
    return (await Runner.run(agent(model, url), task, auto_previous_response_id=True)).final_output


async def streamed(model: Model, url: str, task: str) -> str:
    result = Runner.run_streamed(agent(model, url), task)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    assert "".join(pieces) == result.final_output, (pieces, result.final_output)
    return result.final_output


set_tracing_disabled(True)
run(
    {
        "chat": partial(whole, OpenAIChatCompletionsModel),
        "chat, streamed": partial(streamed, OpenAIChatCompletionsModel),
        "responses": partial(whole, OpenAIResponsesModel),
        "responses, streamed": partial(streamed, OpenAIResponsesModel),
        "responses after their previous ones": partial(after_the_last_response, OpenAIResponsesModel),
    }
)
