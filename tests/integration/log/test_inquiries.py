"""Inquiries over a real server: who asks waits for no other's answer."""

import asyncio
from typing import Any

from app.log.journal import JetStreamJournal
from tests.conditions import server_has_read
from tests.conftest import NatsServer

SUBJECT = "control.role.SLOW"


async def test_an_inquiry_is_answered_while_another_one_waits(nats_server: NatsServer) -> None:
    """As of a replica that waits for its engine, which hangs."""
    asked, goes_on = list[bytes](), asyncio.Event()

    async def describe(data: bytes) -> dict[str, Any]:
        asked.append(data)
        if data == b"probe":
            await goes_on.wait()
        return {"data": data.decode()}

    replica = await JetStreamJournal.connect(nats_server.url, name="replica")
    gateway = await JetStreamJournal.connect(nats_server.url, name="gateway")
    await replica.answer(SUBJECT, describe)
    # The subscription has reached the server before the first inquiry does.
    await server_has_read(replica.client)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = [group.create_task(gateway.inquire(SUBJECT, b"probe", timeout_s=20)) for _ in range(3)]
        while not asked:
            await asyncio.sleep(0.01)
        assert await gateway.inquire(SUBJECT, timeout_s=10) == [{"data": ""}]
        goes_on.set()
    assert [task.result() for task in waiting] == [[{"data": "probe"}]] * 3
    await gateway.close()
    await replica.close()
