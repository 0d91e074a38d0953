"""Smolagents' agent of tool calls."""

from functools import partial

import arithmetic
from arithmetic import MODEL, run
from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first one.
        b: The second one.
    """
    return arithmetic.add(a, b)


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first one.
        b: The second one.
    """
    return arithmetic.multiply(a, b)


@tool
def divide(a: int, b: int) -> int:
    """Divide an integer by another one.

    Args:
        a: The dividend.
        b: The divisor.
    """
    return arithmetic.divide(a, b)


async def loop(stream: bool, url: str, task: str) -> str:
    model = OpenAIServerModel(MODEL, api_base=url, api_key="unused")
    agent = ToolCallingAgent([add, multiply, divide], model, stream_outputs=stream, verbosity_level=0)
    return agent.run(f'{task}\nfinal_answer({{"answer": "All is computed."}})')


run({"chat": partial(loop, False), "chat, streamed": partial(loop, True)})
