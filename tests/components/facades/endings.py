"""Ends of deliberations that a façade's test plays."""

import json
from collections.abc import Awaitable, Callable
from decimal import Decimal

from app.deliberation.calls import Call, FactProblem, Usage, UsageCost
from app.deliberation.errors import InvalidOutput
from app.deliberation.facts import Accepted, CallFinished, Failed, decode
from app.deliberation.readings import read_output
from tests.components.facades.chatting import (
    End,
)
from tests.components.routes.served import Served, played

COST = Usage(
    prompt_tokens=30,
    completion_tokens=7,
    cached_tokens=16,
    calls=1,
    cost=UsageCost(amount=Decimal("0.000123"), currency="EUR"),
)


def as_recorded(call: Call, reply: str) -> str:
    """What an agent records of a reply; an empty text, which is no answer, for an invalid one."""
    try:
        return read_output(call.output, reply).text
    except InvalidOutput:
        return ""


def writing(text: object) -> Callable[[Served, str], Awaitable[None]]:
    async def end(gateway: Served, deliberation_id: str) -> None:
        records = await gateway.journal.facts("default", deliberation_id)
        accepted = decode(records[0].data)
        assert isinstance(accepted, Accepted)
        answer = json.dumps({"reasoning": "r", "answer": text, "confidence": 5})
        for fact in played(accepted, now=gateway.clock.now, write=lambda call: as_recorded(call, answer)):
            await gateway.append(fact.model_copy(update={"usage": COST}) if isinstance(fact, CallFinished) else fact)

    return end


def failing(code: str, detail: str) -> End:
    async def fail(gateway: Served, deliberation_id: str) -> None:
        problem = FactProblem(code=code, detail=detail, retryable=False)
        await gateway.append(Failed(deliberation_id=deliberation_id, ts=gateway.clock.now(), problem=problem))

    return fail
