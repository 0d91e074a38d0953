"""Mutated replies of an engine, read by an agent and by OpenAI's client: what the latter reads, the former records.

python -m tests.fuzz.replies --count 20000
"""

import argparse
import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

import httpx
import openai

from app.deliberation.errors import CallFailure
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import EngineReply, Meter
from tests.integration.engine.streamed_replies import CALL

URL = "http://engine"
WORDS = [
    "the",
    "wörd",
    "日本",
    "😀",
    "\\n",
    "\n",
    '"',
    "{",
    "\u2028",
    "\u0085",
    " ",
    "a\tb",
    "data:",
    "[DONE]",
    "é" * 9,
]
OTHER_EVENTS = [
    {"type": "ping"},
    {"choices": []},
    {"choices": None},
    {"id": "x", "object": "chat.completion.chunk"},
    {"choices": [{"index": 0, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": None}]},
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"index": 0, "delta": {"content": ""}, "content_filter_results": {}, "logprobs": None}]},
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}},
    {"usage": {"prompt_tokens": None}},
    {"error": None, "choices": []},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": [], "refusal": None}}]},
]
# One difference is by choice: behind a byte order mark, which the standard drops, OpenAI's client loses an event.
_BOM = b"\xef\xbb\xbf"


class Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def _chunk(draw: Random, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    for name, value in (("id", "x"), ("error", None), ("usage", None), ("model", "m"), ("service_tier", None)):
        if draw.random() < 0.3:
            chunk[name] = value
    return chunk


def reply(seed: int, *, marked: bool = True) -> tuple[dict[str, str], list[bytes]]:
    """The headers and pieces of one reply, drawn by its seed: valid, or cut, or with what engines add.

    `marked`: some begin with a byte order mark.
    """
    draw = Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(0, 5))) for _ in range(draw.randint(1, 8))]
    events = [_chunk(draw, {"content": text}) for text in texts]
    events += [_chunk(draw, {}, draw.choice(["stop", "stop", "length", "eos"]))] if draw.random() < 0.9 else []
    for _ in range(draw.choice([0, 0, 1, 3])):
        events.insert(draw.randint(0, len(events)), draw.choice(OTHER_EVENTS))
    ascii_only, end = draw.random() < 0.5, draw.choice(["\n", "\n", "\r\n", "\r"])
    colon = draw.choice(["data: ", "data:"])
    blocks = [f"{colon}{json.dumps(event, ensure_ascii=ascii_only)}{end}{end}" for event in events]
    blocks += [f"{colon}[DONE]{end}{end}"] if draw.random() < 0.85 else []
    for _ in range(draw.choice([0, 0, 0, 2])):
        ping = f"event: ping{end}data: {{}}{end}{end}"
        added = draw.choice(
            [f": comment{end}{end}", f"data:{end}{end}", f"id: 7{end}", f"retry: 10{end}{end}", end, ping]
        )
        blocks.insert(draw.randint(0, len(blocks)), added)
    begins_marked = draw.random() < 0.05
    body = "".join(blocks).encode()
    if draw.random() < 0.15:
        body = body[: draw.randint(0, len(body))]
    body = (_BOM if begins_marked and marked else b"") + body
    headers = {"Content-Type": "text/event-stream"}
    if draw.random() < 0.05:
        headers["Content-Encoding"], body = "gzip", gzip.compress(body)
    elif draw.random() < 0.05:
        headers["Content-Encoding"] = draw.choice(["none", "utf-8", "identity", ""])
    borders = sorted(draw.randint(0, len(body)) for _ in range(draw.choice([0, 1, 5, len(body)])))
    return headers, [body[a:b] for a, b in zip([0, *borders], [*borders, len(body)], strict=True)]


async def read_by_client(client: openai.AsyncOpenAI) -> str | None:
    """The whole text as OpenAI's client reads it; None for an incomplete one."""
    text, finished = "", False
    try:
        messages: Any = [{"role": "user", "content": "x"}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        async for chunk in stream:
            for choice in (getattr(chunk, "choices", None) or [])[:1]:
                text += (choice.delta.content or "") if getattr(choice, "delta", None) else ""
                finished |= bool(choice.finish_reason)
    except (openai.OpenAIError, httpx.HTTPError, ValueError):
        return None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if finished else None


async def read_by_agent(engines: Engines) -> tuple[str | None, str]:
    async def ignore(_: str) -> None: ...

    engine = engines.engines[0]
    try:
        read: EngineReply = await engines.complete(
            engine, CALL, "m", seed=1, trace="d.c.1", on_text=ignore, meter=Meter(), salt=""
        )
    except CallFailure as failure:
        return None, str(failure)
    return read.text, ""


async def compare(seeds: Sequence[int], report: Callable[[str], None] = print) -> tuple[int, int]:
    """Read each reply by both; returns how many OpenAI's client completed, and how many of these differ."""
    now: tuple[dict[str, str], list[bytes]] = {}, []

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=now[0], stream=Pieces(now[1]))

    transport = httpx.MockTransport(answer)
    engines = Engines([EngineSpec(url=URL, model="m")], transport=transport)
    engines.engines[0].extended = False
    client = openai.AsyncOpenAI(
        base_url=URL, api_key="x", max_retries=0, http_client=httpx.AsyncClient(transport=transport)
    )
    complete = different = 0
    for seed in seeds:
        now = reply(seed, marked=False)
        expected = await read_by_client(client)
        now = reply(seed)
        if expected is None:
            continue
        complete += 1
        text, failure = await read_by_agent(engines)
        if text != expected:
            different += 1
            report(f"seed {seed}: OpenAI's client read {expected!r}, an agent {text!r} {failure}")
    await client.close()
    await engines.close()
    return complete, different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--from-seed", type=int, default=0)
    arguments = parser.parse_args()
    seeds = range(arguments.from_seed, arguments.from_seed + arguments.count)
    complete, different = asyncio.run(compare(seeds))
    print(f"{arguments.count} replies: OpenAI's client completed {complete}, and an agent read {different} otherwise")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
