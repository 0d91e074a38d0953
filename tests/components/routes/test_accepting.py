"""A burst of connections is accepted in a few turns of the loop."""

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack

import uvicorn
import uvloop
from fastapi import FastAPI

from app.main import ACCEPTED_AT_ONCE, DrainingServer
from tests.conditions import until

CONNECTIONS = 128


class Turns(asyncio.Protocol):
    """Counts, by the loop's turn, the connections that were made."""

    turn = 0
    made = Counter[int]()

    def __init__(self, **_of_uvicorn: object) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made[Turns.turn] += 1
        transport.close()


async def accepted() -> Counter[int]:
    config = uvicorn.Config(FastAPI(), port=0, http=Turns, ws="none", lifespan="off", log_config=None)  # pyright: ignore[reportArgumentType] -- called
    server = DrainingServer(config, FastAPI(), 0)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)

    async def count() -> None:
        while True:
            Turns.turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    address = server.servers[0].sockets[0].getsockname()
    with ExitStack() as opened:
        # The kernel completes these while the loop runs nothing.
        for _ in range(CONNECTIONS):
            opened.enter_context(socket.create_connection(address))
        await until(lambda: Turns.made.total() == CONNECTIONS)
    counting.cancel()
    server.should_exit = True
    await serving
    return Turns.made


def test_a_turn_of_the_loop_accepts_several_connections() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        made = runner.run(accepted())
    assert made.total() == CONNECTIONS
    assert len(made) <= 2 * CONNECTIONS / ACCEPTED_AT_ONCE
