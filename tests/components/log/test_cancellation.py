"""A cancellation that comes together with an answer of the server is not lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from app.log.connection import LogClient


class Answered:
    """In place of nats-py's own requests: each waits as those do for the answer that `answer` gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answer = asyncio.get_running_loop().create_future()

        async def wait(*_: Any) -> Any:
            return await asyncio.wait_for(self._answer, 10)

        for name in ("request", "flush"):
            monkeypatch.setattr(Client, name, wait)

    def answer(self, failure: Exception | None) -> None:
        if failure is None:
            self._answer.set_result(Msg(LogClient(), "answer"))
        else:
            self._answer.set_exception(failure)


@pytest.mark.parametrize("ask", [lambda client: client.request("subject"), lambda client: client.flush()])
@pytest.mark.parametrize("failure", [None, TimeoutError("late")])
async def test_a_cancellation_in_the_moment_of_the_answer_ends_the_task(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[LogClient], Any], failure: Exception | None
) -> None:
    answered, went_on = Answered(monkeypatch), asyncio.Event()

    async def work() -> None:
        await ask(LogClient())
        went_on.set()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    answered.answer(failure)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on.is_set()


async def test_a_request_in_the_cleanup_of_a_cancelled_task_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, begun, found = Answered(monkeypatch), asyncio.Event(), list[Msg]()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            found.append(await LogClient().request("subject"))

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    answered.answer(None)

    with pytest.raises(asyncio.CancelledError):
        await task
    assert [message.subject for message in found] == ["answer"]
