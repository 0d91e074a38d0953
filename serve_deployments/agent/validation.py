"""Accepts a reply as an answer if an object in it satisfies its call's form."""

import asyncio
import json
from dataclasses import replace
from functools import partial

from app.deliberation.calls import Call
from app.deliberation.errors import InvalidOutput
from app.deliberation.readings import read_output
from serve_deployments.engine.replies import EngineReply

QUOTED_CHARS_MAX = 80
# A longer text, or one of a client's schema, may take longer than other calls on the event loop should wait.
ON_LOOP_CHARS_MAX = 4_096
_REMEDY = (
    "The engine must honour `response_format` with a JSON Schema, as vLLM, SGLang and llama.cpp's server do; declare "
    "`structured: prompt` for one that does not, whose model must follow a schema in the prompt."
)


async def valid_reply(call: Call, reply: EngineReply) -> EngineReply:
    """The reply, with the text of the answer alone and what was read leniently. Raises InvalidOutput."""
    cut_off = reply.finish_reason == "length"
    read = partial(read_output, call.output, reply.text, cut_off=cut_off)
    on_loop = not call.output.answer_schema and len(reply.text) <= ON_LOOP_CHARS_MAX
    try:
        reading = read() if on_loop else await asyncio.to_thread(read)
    except InvalidOutput as fault:
        if cut_off:
            detail = (
                f"the answer was cut off at max_tokens={call.max_tokens}; raise sampling.max_tokens, or ask for less"
            )
            raise InvalidOutput(detail) from None
        raise InvalidOutput(f"{fault}; {_beginning(reply.text)}. {_REMEDY}") from fault
    return replace(reply, text=reading.text, lenient=reading.lenient)


def _beginning(text: str) -> str:
    begin = " ".join(text[: 2 * QUOTED_CHARS_MAX].split())[:QUOTED_CHARS_MAX]
    return f"the reply begins {json.dumps(begin, ensure_ascii=False)}" if begin else "the reply is empty"
