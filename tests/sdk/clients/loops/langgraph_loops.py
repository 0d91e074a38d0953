"""LangGraph's prebuilt agent, and LangChain's, which runs on LangGraph; over both of OpenAI's APIs."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from arithmetic import MODEL, add, divide, multiply, run
from langchain.agents import create_agent
from langchain.agents.middleware import ToolCallRequest, wrap_tool_call
from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, create_react_agent

TOOLS = [add, multiply, divide]
Made = Callable[..., CompiledStateGraph]


def model(url: str, *, responses: bool) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=url, api_key="unused", max_retries=0, use_responses_api=responses)


@wrap_tool_call
async def told(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
    try:
        return await handler(request)
    except ZeroDivisionError as error:
        return ToolMessage(str(error), tool_call_id=request.tool_call["id"], status="error")


def prebuilt(url: str, *, responses: bool) -> CompiledStateGraph:
    return create_react_agent(model(url, responses=responses), ToolNode(TOOLS, handle_tool_errors=True))


def agent(url: str, *, responses: bool) -> CompiledStateGraph:
    return create_agent(model(url, responses=responses), TOOLS, system_prompt="Compute.", middleware=[told])


async def whole(made: Made, responses: bool, url: str, task: str) -> str:
    state = await made(url, responses=responses).ainvoke({"messages": [("user", task)]})
    return state["messages"][-1].text


async def streamed(made: Made, responses: bool, url: str, task: str) -> str:
    pieces = []
    asked = {"messages": [("user", task)]}
    async for message, _ in made(url, responses=responses).astream(asked, stream_mode="messages"):
        if isinstance(message, AIMessageChunk):
            pieces.append(message.text)
    return "".join(pieces)


run(
    {
        "chat": partial(whole, prebuilt, False),
        "chat, streamed": partial(streamed, prebuilt, False),
        "responses": partial(whole, prebuilt, True),
        "responses, streamed": partial(streamed, prebuilt, True),
        "chat by LangChain": partial(whole, agent, False),
        "responses by LangChain, streamed": partial(streamed, agent, True),
    }
)
