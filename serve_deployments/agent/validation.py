"""Accepts a reply as an answer if it satisfies its call's schema."""

from collections.abc import Awaitable, Callable

import structlog

from app.deliberation.calls import Call
from app.deliberation.errors import InvalidOutput
from app.deliberation.outputs import parse_output
from serve_deployments.engine.wire import EngineReply

log = structlog.get_logger(__name__)


async def valid_reply(call: Call, ask: Callable[[], Awaitable[EngineReply]]) -> EngineReply:
    """A valid reply; after an invalid one `ask` is awaited once more, which uses another seed.

    Raises InvalidOutput when the second reply is invalid too.
    """
    try:
        return _validated(call, await ask())
    except InvalidOutput as invalid:
        log.info("output_invalid", call_id=call.call_id, error=str(invalid))
    return _validated(call, await ask())


def _validated(call: Call, reply: EngineReply) -> EngineReply:
    if reply.finish_reason == "length":
        raise InvalidOutput(f"the answer was cut off at max_tokens={call.max_tokens}")
    parse_output(call.output, reply.text)
    return reply
