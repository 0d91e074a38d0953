"""LlamaIndex's agent of functions."""

from functools import partial

from arithmetic import MODEL, add, divide, multiply, run
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.llms.openai_like import OpenAILike


async def loop(stream: bool, url: str, task: str) -> str:
    served = {"api_base": url, "api_key": "unused", "max_retries": 0}
    llm = OpenAILike(model=MODEL, is_chat_model=True, is_function_calling_model=True, **served)
    agent = FunctionAgent(tools=[add, multiply, divide], llm=llm, streaming=stream)
    handler = agent.run(task)
    pieces = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]
    answer = str(await handler)
    assert not stream or "".join(pieces) == answer, pieces
    return answer


run({"chat": partial(loop, False), "chat, streamed": partial(loop, True)})
