import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Self, TypeVar, cast

import structlog
import uvicorn
from starlette.types import Receive, Scope, Send
from typer.testing import CliRunner, Result

from app.cli import cli
from app.deliberation.errors import JournalUnavailable
from tests.components.routes.served import ANSWERING, APP, ARCHIVE_PATHS, SENDER, Served, served
from tests.fakes import InMemoryJournal

T = TypeVar("T")
REPLIES = {**ANSWERING, "control.webhooks": [SENDER]}


class RealGateway:
    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._logging = structlog.get_config()
        # Its log would stand in the output of the commands.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(30), "the gateway did not start"

    async def _serve(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with served(journal=InMemoryJournal(replies=dict(REPLIES)), lists=True, **self._settings) as self._served:
            state = dict(cast(Any, self._served.gateway))

            async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
                if scope.get("path") in ARCHIVE_PATHS:
                    with suppress(JournalUnavailable):
                        await self._served.copied()
                await APP({**scope, "state": state}, receive, send)

            self.server = uvicorn.Server(uvicorn.Config(with_state, log_level="critical", lifespan="off"))
            self._ready.set()
            await self.server.serve([listener])

    def do(self, work: Callable[[Served], Awaitable[T]]) -> T:
        async def done() -> T:
            return await work(self._served)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(30)

    def ended(self, **body: object) -> str:
        async def play(gateway: Served) -> str:
            id = await gateway.accepted(**body)
            await gateway.play(id)
            return id

        return self.do(play)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join()
        self._loop.close()
        structlog.configure(**self._logging)


runner = CliRunner()


def invoke(gateway: RealGateway, *arguments: str, width: int = 200) -> Result:
    return runner.invoke(cli, [*arguments, "--url", gateway.url], env={"COLUMNS": str(width)})
