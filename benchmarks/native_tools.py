"""`python -m benchmarks.native_tools --engine-url URL --dataset bfcl:CATEGORY`: an engine's own tool calling.

The engine is asked for the same calls as a council is by `deliberate bench quality`, but with `tools` in OpenAI's form,
and without this product. So the two figures say whether that form is better than the schema of an action.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from app.cli.bench.dataset import read_dataset
from app.cli.bench.questions import Question
from app.deliberation.facts import Action, ActionCall

AT_ONCE = 4
MAX_TOKENS = 1_024


def body(model: str, question: Question, tool_choice: str) -> Mapping[str, Any]:
    turns, tools = question.asked["conversation"], question.asked["actions"]["tools"]
    return {
        "model": model,
        "messages": [{"role": turn["role"], "content": turn["text"]} for turn in turns],
        "tools": [{"type": "function", "function": tool} for tool in tools],
        "tool_choice": tool_choice,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }


def action_of(message: Mapping[str, Any]) -> Action | None:
    """The action in an answer; None where the arguments of a call are no object."""
    calls = list[ActionCall]()
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
            calls.append(ActionCall(name=call["function"]["name"], arguments=arguments))
        except ValueError:
            return None
    return Action(calls=tuple(calls)) if calls else Action(reply=message.get("content") or "")


async def measured(url: str, questions: Sequence[Question], tool_choice: str) -> tuple[int, int]:
    """How many answers are right, and how many call a tool."""
    free = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=3_600) as engine:
        model = (await engine.get("/v1/models")).raise_for_status().json()["data"][0]["id"]

        async def ask(question: Question) -> Action | None:
            async with free:
                answer = await engine.post("/v1/chat/completions", json=body(model, question, tool_choice))
            return action_of(answer.raise_for_status().json()["choices"][0]["message"])

        actions = await asyncio.gather(*map(ask, questions))
    right = [
        action is not None and question.is_right(action.model_dump_json())
        for question, action in zip(questions, actions, strict=True)
    ]
    return sum(right), sum(action is None or bool(action.calls) for action in actions)


def main() -> None:
    parser = argparse.ArgumentParser(description="An engine's own tool calling, without this product")
    parser.add_argument("--engine-url", required=True)
    parser.add_argument("--dataset", required=True, help="As for `deliberate bench quality`, with actions")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tool-choice", choices=("auto", "required"), default="auto")
    given = parser.parse_args()
    questions = read_dataset(given.dataset, given.limit)
    right, calling = asyncio.run(measured(given.engine_url, questions, given.tool_choice))
    print(f"{right} of {len(questions)} right; {calling} call a tool")


if __name__ == "__main__":
    main()
