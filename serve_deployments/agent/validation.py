"""Accepts a reply as an answer if an object in it satisfies its call's form."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from app.deliberation.calls import Call
from app.deliberation.errors import InvalidOutput
from app.deliberation.readings import read_output
from serve_deployments.engine.replies import EngineReply

QUOTED_CHARS_MAX = 80
# A longer text, or one of a client's schema, may take longer than other calls on the event loop should wait.
ON_LOOP_CHARS_MAX = 4_096
# One at a time: threads share the interpreter with the event loop, and each keeps the memory that it has used.
_READER = ThreadPoolExecutor(1, "reading")
_REMEDY = (
    "The engine must honour `response_format` with a JSON Schema, as vLLM, SGLang and llama.cpp's server do; declare "
    "`structured: prompt` for one that does not, whose model must follow a schema in the prompt."
)


async def valid_reply(call: Call, reply: EngineReply) -> EngineReply:
    """The reply, with the text of the answer alone and what was read leniently. Raises InvalidOutput.

    Where an engine puts everything into the field of reasoning, the answer is read there.
    """
    cut_off, misplaced = reply.finish_reason == "length", not reply.text.strip() and bool(reply.reasoning)
    text = reply.reasoning if misplaced else reply.text
    read = partial(read_output, call.output, text, cut_off=cut_off)
    on_loop = not call.output.answer_schema and len(text) <= ON_LOOP_CHARS_MAX
    try:
        reading = read() if on_loop else await asyncio.get_running_loop().run_in_executor(_READER, read)
    except InvalidOutput as fault:
        where = "the engine wrote into the field of reasoning alone: " if misplaced else ""
        invalid = InvalidOutput(reply.remark or f"{where}{fault}; {_beginning(text)}. {_REMEDY}")
        invalid.finish_reason = reply.finish_reason
        raise invalid from fault
    lenient = {*reading.lenient, *reply.lenient, *(("thinking",) if misplaced else ())}
    return replace(reply, text=reading.text, lenient=tuple(sorted(lenient)))


def _beginning(text: str) -> str:
    begin = " ".join(text[: 2 * QUOTED_CHARS_MAX].split())[:QUOTED_CHARS_MAX]
    return f"the reply begins {json.dumps(begin, ensure_ascii=False)}" if begin else "the reply is empty"
