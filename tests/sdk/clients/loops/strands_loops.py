"""Strands' agent, whose models always stream, over both of OpenAI's APIs."""

from functools import partial

from arithmetic import MODEL, add, divide, multiply, run
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel

TOOLS = [tool(made) for made in (add, multiply, divide)]


async def loop(model: type[OpenAIModel | OpenAIResponsesModel], url: str, task: str) -> str:
    served = {"base_url": url, "api_key": "unused", "max_retries": 0}
    agent = Agent(model(client_args=served, model_id=MODEL), tools=TOOLS, callback_handler=None)
    return str(await agent.invoke_async(task)).strip()


run({"chat, streamed": partial(loop, OpenAIModel), "responses, streamed": partial(loop, OpenAIResponsesModel)})
