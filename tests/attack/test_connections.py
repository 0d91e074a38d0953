import asyncio
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.attack.attacker import ENDLESS
from tests.attack.bystanders import OTHERS_WAIT_MS, POUR_S, REFUSED_WITHIN_BYTES, attacker, line_of, others

IDLE = 20_000
# Each process may open no more than its descriptors allow.
IDLE_A_PROCESS = 10_000


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_head_without_end_is_refused_and_others_are_served(
    gateway_port: int, kind: str, record_property: Callable[[str, object], None]
) -> None:
    async with others(gateway_port, record_property) as waits:
        pouring = attacker("pour", gateway_port, kind, POUR_S)
        sent, refused, tried = await line_of(pouring)
    pouring.wait()
    record_property("heads refused", refused)
    record_property("most bytes taken", sent)
    assert refused == tried > 0
    assert sent <= REFUSED_WITHIN_BYTES
    assert sorted(waits)[int(len(waits) * 0.99)] < OTHERS_WAIT_MS


async def test_heads_half_sent_are_closed_in_fifteen_seconds(
    gateway_port: int, record_property: Callable[[str, object], None]
) -> None:
    began = time.perf_counter()
    opened = [await asyncio.open_connection("127.0.0.1", gateway_port) for _ in range(200)]
    for _, writer in opened:
        writer.write(b"GET / HTTP/1.1\r\nHost: loc")
    async with asyncio.timeout(15), asyncio.TaskGroup() as group:
        trickling = group.create_task(trickle([writer for _, writer in opened[:100]]))
        answers = await asyncio.gather(*(reader.read() for reader, _ in opened))
        trickling.cancel()
    record_property("all closed after s", round(time.perf_counter() - began, 1))
    assert all(b'"head_timeout"' in answer for answer in answers)
    for _, writer in opened:
        writer.close()


async def trickle(writers: list[asyncio.StreamWriter]) -> None:
    while True:
        for writer in writers:
            writer.write(b"x")
        await asyncio.sleep(1)


async def test_idle_connections_beyond_the_descriptors_block_no_client(
    gateway_port: int, record_property: Callable[[str, object], None]
) -> None:
    holders: list[subprocess.Popen[bytes]] = []
    try:
        async with others(gateway_port, record_property) as waits:
            for number in range(IDLE // IDLE_A_PROCESS):
                holders.append(attacker("idle", gateway_port, IDLE_A_PROCESS, f"127.0.1.{number + 1}"))
            for holder in holders:
                assert await line_of(holder) == [IDLE_A_PROCESS]
            asked = len(waits)
            while len(waits) < asked + 50:
                await asyncio.sleep(0.05)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
    assert max(waits[-50:]) < OTHERS_WAIT_MS
