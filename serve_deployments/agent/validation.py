"""Accepts a reply as an answer if it satisfies its call's schema, or holds one JSON object that does."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from app.deliberation.calls import Call
from app.deliberation.errors import InvalidOutput
from app.deliberation.outputs import parse_output
from serve_deployments.engine.replies import EngineReply

QUOTED_CHARS_MAX = 80
# Each place at which an object may begin costs a look at the rest of the text.
PLACES_MAX = 16
_REMEDY = (
    "The engine must honour `response_format` with a JSON Schema, as vLLM, SGLang and llama.cpp's server do, or its "
    "model must follow a schema in the prompt; a model that reasons needs the engine's reasoning parser."
)
_BEGINNING = re.compile(r"\{")


def valid_reply(call: Call, reply: EngineReply, ignored_form: Callable[[EngineReply], None]) -> EngineReply:
    """The reply, with the text of the answer alone; `ignored_form` gets one that is no JSON. Raises InvalidOutput."""
    if reply.finish_reason == "length":
        detail = f"the answer was cut off at max_tokens={call.max_tokens}; raise sampling.max_tokens, or ask for less"
        raise InvalidOutput(detail)
    try:
        parse_output(call.output, reply.text)
    except InvalidOutput as fault:
        # Some servers answer a prompt that does not fit with no text at all: that says nothing about the form.
        if reply.text.strip() and not _is_json(reply.text):
            ignored_form(reply)
            if (found := _object_within(call, reply.text)) is not None:
                return replace(reply, text=found)
        raise InvalidOutput(f"{fault}; {_beginning(reply.text)}. {_REMEDY}") from fault
    return reply


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _object_within(call: Call, text: str) -> str | None:
    """The last object within a text that satisfies the call's schema: a model thinks first, and answers then."""
    for found in reversed(list(_objects(text))):
        try:
            parse_output(call.output, found)
        except InvalidOutput:
            continue
        return found
    return None


def _objects(text: str) -> Iterator[str]:
    """The JSON objects that stand in a text, none of them within another, from a bounded number of places."""
    decoder, end = json.JSONDecoder(), 0
    for place in [found.start() for found in _BEGINNING.finditer(text)][:PLACES_MAX]:
        if place < end:
            continue
        try:
            _, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        yield text[place:end]


def _beginning(text: str) -> str:
    begin = " ".join(text[: 2 * QUOTED_CHARS_MAX].split())[:QUOTED_CHARS_MAX]
    return f"the reply begins {json.dumps(begin, ensure_ascii=False)}" if begin else "the reply is empty"
