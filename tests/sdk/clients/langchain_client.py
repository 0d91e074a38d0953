"""LangChain's model of OpenAI: whole, streamed, and with a schema of pydantic."""

import json
import sys
from datetime import date
from typing import Literal

import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

(url,) = sys.argv[1:]
MESSAGES = [("system", "Answer in one sentence."), ("human", "Name a colour.")]


class Colour(BaseModel):
    """A colour with its origin."""

    name: str = Field(min_length=1)
    first_named: date | None
    family: Literal["warm", "cold"]
    shares: dict[str, float]


def chat(model: str) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="unused", max_retries=0, seed=7, stream_usage=True)


single = chat("single/DEV")
whole = single.invoke(MESSAGES)
chunks = [*single.stream(MESSAGES)]
colour = single.with_structured_output(Colour).invoke(MESSAGES)
try:
    refused = chat("nobody/NONE").invoke(MESSAGES)
except openai.NotFoundError as error:
    refused = error.code
found = {
    "whole": whole.content,
    "streamed": "".join(chunk.content for chunk in chunks),
    "tokens": [
        whole.usage_metadata["total_tokens"],
        sum(chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata),
    ],
    "colour": [*type(colour).model_fields],
    "refused": refused,
}
print(json.dumps(found))
