import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import uvicorn

from app.archive.database.migrate import migrate
from app.deliberation.facts import Fact, View
from app.main import DrainingServer, create_app
from app.routes.connections import BoundedProtocol
from app.settings import Settings
from app.sse import Frame, SseDecoder
from app.streaming.feed import Feed
from tests.components.routes.served import copying
from tests.conditions import until
from tests.fakes import FakeClock, InMemoryJournal
from tests.story import Story

TENANT = "default"


@dataclass
class Gateway:
    client: httpx.AsyncClient
    journal: InMemoryJournal
    feed: Feed
    server: DrainingServer
    serving: asyncio.Task[None]

    async def write(self, *events: Fact | View) -> None:
        for event in events:
            if event.type in ("call.started", "call.delta"):
                await self.journal.publish_view(TENANT, event)  # pyright: ignore[reportArgumentType]
            else:
                await self.journal.append(TENANT, event)  # pyright: ignore[reportArgumentType]

    def id_of(self, place: int = -1) -> str:
        return f"{self.journal.epoch}-{self.journal.records[place].sequence}"

    async def page(self, deliberation_id: str, **query: Any) -> httpx.Response:
        return await self.client.get(
            f"/deliberations/{deliberation_id}/events", params=query, headers={"Accept": "application/json"}
        )

    @asynccontextmanager
    async def watching(
        self, deliberation_id: str, last_event_id: str | None = None, **query: Any
    ) -> AsyncGenerator[AsyncGenerator[Frame, None], None]:
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        path = f"/deliberations/{deliberation_id}/events"
        async with asyncio.timeout(10), self.client.stream("GET", path, params=query, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async with aclosing(frames_of(response)) as frames:
                yield frames

    @asynccontextmanager
    async def watching_several(
        self, *ids: str, last_event_id: str | None = None, **query: Any
    ) -> AsyncGenerator[AsyncGenerator[Frame, None], None]:
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        params: dict[str, Any] = {"deliberation": list(ids), **query}
        async with (
            asyncio.timeout(10),
            self.client.stream("GET", "/events", params=params, headers=headers) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async with aclosing(frames_of(response)) as frames:
                yield frames

    async def page_of_several(self, *ids: str, **query: Any) -> httpx.Response:
        params: dict[str, Any] = {"deliberation": list(ids), **query}
        return await self.client.get("/events", params=params, headers={"Accept": "application/json"})

    async def watched(self, deliberation_id: str, last_event_id: str | None = None, **query: Any) -> list[Frame]:
        async with self.watching(deliberation_id, last_event_id, **query) as frames:
            return [frame async for frame in frames]


async def frames_of(response: httpx.Response) -> AsyncGenerator[Frame, None]:
    decoder = SseDecoder()
    async for chunk in response.aiter_bytes():
        for frame in decoder.feed(chunk):
            yield frame


async def following(frames: AsyncIterator[Frame], count: int) -> list[Frame]:
    return [await anext(frames) for _ in range(count)]


@asynccontextmanager
async def listening(
    journal: InMemoryJournal | None = None, *, lists: bool = False, **settings: Any
) -> AsyncGenerator[Gateway, None]:
    with TemporaryDirectory() as directory:
        if lists:
            settings["database_url"] = f"sqlite:///{directory}/archive.db"
            await migrate(settings["database_url"])
        async with _listening(journal, **settings) as made:
            archive = made.server.lifespan.state["deliberations"].archive
            if lists:
                copying(made.client, made.journal, archive, FakeClock())
            yield made


@asynccontextmanager
async def _listening(journal: InMemoryJournal | None, **settings: Any) -> AsyncGenerator[Gateway, None]:
    journal = journal or InMemoryJournal()
    app = create_app(Settings(**settings), journal=journal, clock=FakeClock())
    http: Any = partial(BoundedProtocol, app.state.connections)
    config = uvicorn.Config(
        app, port=0, lifespan="on", http=http, ws="none", log_config=None, timeout_graceful_shutdown=5
    )
    server = DrainingServer(config, app, 0.0)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        yield Gateway(client, journal, server.lifespan.state["feed"], server, serving)
    server.handle_exit(signal.SIGTERM, None)
    await serving


def whole(story: Story) -> list[Fact | View]:
    first, second = story.agents
    return [
        story.accepted(),
        story.opened(),
        story.started(first),
        story.delta(first, 0, "re"),
        story.started(second),
        story.delta(first, 2, "d"),
        story.finished(first, "red"),
        story.delta(second, 0, "blue"),
        story.finished(second, "blue"),
        story.closed(),
        story.completed(),
    ]


def types(frames: list[Frame]) -> list[str]:
    return [frame.event if frame.data else "-" for frame in frames]
