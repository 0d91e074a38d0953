"""Answers of a schema: loops that end with one, over chat completions and Responses."""

from functools import partial

from ag2 import Agent as Ag2Agent
from ag2.config import OpenAIConfig, OpenAIResponsesConfig
from agents import Agent as SdkAgent
from agents import (
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from arithmetic import MODEL, Sum, add, run
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_openai import ChatOpenAI
from magentic import OpenaiChatModel, prompt
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.output import OutputSpec
from pydantic_ai.providers.openai import OpenAIProvider


async def agents_sdk(model: type[OpenAIChatCompletionsModel | OpenAIResponsesModel], url: str, task: str) -> Sum:
    served = model(MODEL, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0))
    agent = SdkAgent("arithmetic", tools=[function_tool(add)], output_type=Sum, model=served)
    return (await Runner.run(agent, task)).final_output


async def pydantic_ai(model: type[Model], output: OutputSpec[Sum], url: str, task: str) -> Sum:
    served = model(MODEL, provider=OpenAIProvider(base_url=url, api_key="unused"))
    return (await Agent(served, tools=[add], output_type=output).run(task)).output


async def langchain(responses: bool, form: ProviderStrategy[Sum] | ToolStrategy[Sum], url: str, task: str) -> Sum:
    served = ChatOpenAI(model=MODEL, base_url=url, api_key="unused", max_retries=0, use_responses_api=responses)
    state = await create_agent(served, [add], response_format=form).ainvoke({"messages": [("user", task)]})
    return state["structured_response"]


async def ag2(config: type[OpenAIConfig | OpenAIResponsesConfig], url: str, task: str) -> Sum:
    asked = config(model=MODEL, base_url=url, api_key="unused", max_retries=0)
    return await (await Ag2Agent("arithmetic", config=asked, tools=[add], response_schema=Sum).ask(task)).content()


async def magentic(url: str, task: str) -> Sum:
    @prompt("{said}", model=OpenaiChatModel(MODEL, base_url=url, api_key="unused"))
    async def computed(said: str) -> Sum: ...

    return await computed(task)


set_tracing_disabled(True)
run(
    {
        "Agents SDK, chat": partial(agents_sdk, OpenAIChatCompletionsModel),
        "Agents SDK, responses": partial(agents_sdk, OpenAIResponsesModel),
        "Pydantic AI by a tool, chat": partial(pydantic_ai, OpenAIChatModel, Sum),
        "Pydantic AI by a tool, responses": partial(pydantic_ai, PydanticResponsesModel, Sum),
        "Pydantic AI by a schema, chat": partial(pydantic_ai, OpenAIChatModel, NativeOutput(Sum)),
        "Pydantic AI by a schema, responses": partial(pydantic_ai, PydanticResponsesModel, NativeOutput(Sum)),
        "LangChain by a tool, chat": partial(langchain, False, ToolStrategy(Sum)),
        "LangChain by a tool, responses": partial(langchain, True, ToolStrategy(Sum)),
        "LangChain by a schema, chat": partial(langchain, False, ProviderStrategy(Sum)),
        "LangChain by a schema, responses": partial(langchain, True, ProviderStrategy(Sum)),
        "AG2, chat": partial(ag2, OpenAIConfig),
        "AG2, responses": partial(ag2, OpenAIResponsesConfig),
        "Magentic without a loop, chat": magentic,
    }
)
