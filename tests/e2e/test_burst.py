import asyncio
from collections import Counter

import pytest

from app.deliberation.facts import event_type
from app.deliberation.ports import Record
from tests.e2e.conftest import TASK, Stack

pytestmark = pytest.mark.e2e

# A starved machine ends a deliberation in seconds, and its queue still ends within half of this deadline.
BODY = {"task": TASK, "strategy": "single", "constraints": {"timeout_seconds": 1_200}}


async def test_a_burst_of_a_thousand_is_accepted_and_completes_after_sequential_work(stack: Stack) -> None:
    await stack.script(duration_ms=500)
    for _ in range(20):
        response = await stack.client.post("/deliberations", json=BODY, headers={"Prefer": "wait=30"})
        assert response.status_code == 200
    ends: dict[str, str] = {}

    def take(record: Record) -> None:
        ends[record.tokens[2]] = event_type(record.data)

    subscription = await stack.journal.subscribe(["deliberations.*.*.end"], take)
    responses = await asyncio.gather(*(stack.client.post("/deliberations", json=BODY) for _ in range(1_000)))
    assert Counter(response.status_code for response in responses) == {202: 1_000}
    accepted = {response.json()["id"] for response in responses}
    async with asyncio.timeout(240):
        while not accepted <= ends.keys():
            await asyncio.sleep(0.1)
    assert Counter(ends[each] for each in accepted) == {"deliberation.completed": 1_000}
    await subscription.close()
