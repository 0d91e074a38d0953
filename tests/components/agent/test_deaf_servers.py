"""Answers to a tool server that asks its client, and reads nothing."""

import asyncio

from serve_deployments.tools.tolerance import ANSWERS_WAITING_MAX, Answers
from tests.conditions import until


async def test_few_answers_wait_for_a_server_that_reads_none() -> None:
    begun, reads = 0, asyncio.Event()

    async def write(*_: object) -> None:
        nonlocal begun
        begun += 1
        await reads.wait()

    answer = Answers().few(write)
    async with asyncio.TaskGroup() as group:
        for number in range(ANSWERS_WAITING_MAX + 10):
            group.create_task(answer(number))
        await until(lambda: begun == ANSWERS_WAITING_MAX)
        await answer("one more is dropped at once")
        reads.set()
    assert begun == ANSWERS_WAITING_MAX
    await answer("the server reads again")
    assert begun == ANSWERS_WAITING_MAX + 1
