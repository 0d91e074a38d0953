"""Accepts a reply as an answer if it satisfies its call's schema."""

import json
from collections.abc import Awaitable, Callable

import structlog

from app.deliberation.calls import Call
from app.deliberation.errors import InvalidOutput
from app.deliberation.outputs import parse_output
from serve_deployments.engine.wire import EngineReply

QUOTED_CHARS_MAX = 80
_REMEDY = (
    "The engine must honour `response_format` with a JSON Schema, as vLLM, SGLang and llama.cpp's server do; a model "
    "that reasons needs the engine's reasoning parser."
)

log = structlog.get_logger(__name__)


async def valid_reply(call: Call, ask: Callable[[], Awaitable[EngineReply]]) -> EngineReply:
    """A valid reply; after an invalid one `ask` is awaited once more, which uses another seed.

    Raises InvalidOutput when the second reply is invalid too.
    """
    try:
        return _validated(call, await ask())
    except InvalidOutput as invalid:
        # The error quotes the reply, and no answer is logged.
        log.info("output_invalid", call_id=call.call_id, error=str(invalid.__cause__ or "cut off"))
    return _validated(call, await ask())


def _validated(call: Call, reply: EngineReply) -> EngineReply:
    if reply.finish_reason == "length":
        detail = f"the answer was cut off at max_tokens={call.max_tokens}; raise sampling.max_tokens, or ask for less"
        raise InvalidOutput(detail)
    try:
        parse_output(call.output, reply.text)
    except InvalidOutput as fault:
        raise InvalidOutput(f"{fault}; {_beginning(reply.text)}. {_REMEDY}") from fault
    return reply


def _beginning(text: str) -> str:
    """How a reply begins, on one line."""
    begin = " ".join(text[: 2 * QUOTED_CHARS_MAX].split())[:QUOTED_CHARS_MAX]
    return f"the reply begins {json.dumps(begin, ensure_ascii=False)}" if begin else "the reply is empty"
