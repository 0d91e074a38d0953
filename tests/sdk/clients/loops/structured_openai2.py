"""Answers of a schema by instructor, LlamaIndex and Strands."""

from functools import partial

import instructor
from arithmetic import MODEL, Sum, add, run
from instructor import Mode
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel


def asking(mode: Mode, url: str) -> instructor.AsyncInstructor:
    return instructor.from_openai(AsyncOpenAI(base_url=url, api_key="unused", max_retries=0), mode=mode)


async def whole(mode: Mode, url: str, task: str) -> Sum:
    asked = [{"role": "user", "content": task}]
    return await asking(mode, url).create(model=MODEL, response_model=Sum, messages=asked, max_retries=0)


async def partly(mode: Mode, url: str, task: str) -> Sum:
    asked = [{"role": "user", "content": task}]
    parts = asking(mode, url).create_partial(model=MODEL, response_model=Sum, messages=asked)
    return [part async for part in parts][-1]


def llm(url: str, by_schema: bool) -> OpenAILike:
    served = {"api_base": url, "api_key": "unused", "max_retries": 0, "should_use_structured_outputs": by_schema}
    return OpenAILike(model=MODEL, is_chat_model=True, is_function_calling_model=True, **served)


async def predicted(by_schema: bool, url: str, task: str) -> Sum:
    return await llm(url, by_schema).astructured_predict(Sum, PromptTemplate("{said}"), said=task)


async def after_a_loop(by_schema: bool, url: str, task: str) -> Sum:
    return (await FunctionAgent(tools=[add], llm=llm(url, by_schema), output_cls=Sum).run(task)).get_pydantic_model(Sum)


async def strands(model: type[OpenAIModel | OpenAIResponsesModel], url: str, task: str) -> Sum:
    served = model(client_args={"base_url": url, "api_key": "unused", "max_retries": 0}, model_id=MODEL)
    agent = Agent(served, tools=[tool(add)], callback_handler=None)
    return (await agent.invoke_async(task, structured_output_model=Sum)).structured_output


run(
    {
        "instructor by a tool without a loop, chat": partial(whole, Mode.TOOLS),
        "instructor by a tool without a loop, chat, streamed": partial(partly, Mode.TOOLS),
        "instructor by a schema without a loop, chat": partial(whole, Mode.JSON_SCHEMA),
        "instructor by a tool without a loop, responses": partial(whole, Mode.RESPONSES_TOOLS),
        "LlamaIndex by a tool without a loop, chat": partial(predicted, False),
        "LlamaIndex by a schema without a loop, chat": partial(predicted, True),
        "LlamaIndex by a tool, chat": partial(after_a_loop, False),
        "LlamaIndex by a schema, chat": partial(after_a_loop, True),
        "Strands, chat": partial(strands, OpenAIModel),
        "Strands, responses": partial(strands, OpenAIResponsesModel),
    }
)
