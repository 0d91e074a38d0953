"""Magentic's chain of a prompt, which always streams."""

from arithmetic import MODEL, add, divide, multiply, run
from magentic import OpenaiChatModel, prompt_chain


async def loop(url: str, task: str) -> str:
    @prompt_chain("{said}", [add, multiply, divide], OpenaiChatModel(MODEL, base_url=url, api_key="unused"))
    async def computed(said: str) -> str: ...

    return await computed(task)


run({"chat, streamed": loop})
