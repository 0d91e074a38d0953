"""LlamaIndex's agent of functions, over both of OpenAI's APIs."""

from collections.abc import Callable
from functools import partial

from arithmetic import MODEL, add, divide, multiply, run
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses

CHAT = partial(OpenAILike, is_chat_model=True)
RESPONSES = partial(OpenAILikeResponses, context_window=128_000)


async def loop(model: Callable[..., FunctionCallingLLM], stream: bool, url: str, task: str) -> str:
    llm = model(model=MODEL, is_function_calling_model=True, api_base=url, api_key="unused", max_retries=0)
    agent = FunctionAgent(tools=[add, multiply, divide], llm=llm, streaming=stream)
    handler = agent.run(task)
    pieces = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]
    answer = str(await handler)
    assert not stream or "".join(pieces) == answer, pieces
    return answer


run(
    {
        "chat": partial(loop, CHAT, False),
        "chat, streamed": partial(loop, CHAT, True),
        "responses": partial(loop, RESPONSES, False),
        "responses, streamed": partial(loop, RESPONSES, True),
    }
)
