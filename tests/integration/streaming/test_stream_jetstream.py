import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import httpx
import pytest

from app.log.journal import JetStreamJournal
from app.log.paging import of_deliberation
from app.main import create_app
from app.settings import Settings
from app.sse import Frame, SseDecoder
from app.streaming.feed import Feed
from tests.conditions import until
from tests.conftest import NatsServer, free_port
from tests.fuzz.gateway import serving
from tests.story import Story

TENANT = "default"
TEXT = "Grün ist die Farbe, 緑は色, \u2028\x85 and 𝄞 is not; "


@asynccontextmanager
async def gateway(nats_url: str) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with (
        serving(create_app(Settings(nats_url=nats_url, heartbeat_s=1))) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
    ):
        while (await client.get("/deliberations/none/events")).status_code == 503:
            await asyncio.sleep(0.02)
        yield client


@asynccontextmanager
async def gateway_process(nats_url: str) -> AsyncGenerator[tuple[subprocess.Popen[bytes], httpx.AsyncClient], None]:
    port = free_port()
    environment = {**os.environ, "NATS_URL": nats_url, "PORT": str(port)}
    command = [sys.executable, "-m", "app.main"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()


@dataclass
class Rebuilt:
    texts: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    answers: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    ids: list[str] = field(default_factory=list[str])
    last_id: str | None = None
    ended: bool = False

    def take(self, frame: Frame) -> None:
        if frame.id is not None:
            self.last_id = frame.id
        if not frame.data:
            return
        if frame.id is not None:
            self.ids.append(frame.id)
        event: dict[str, Any] = json.loads(frame.data)
        match frame.event:
            case "call.delta":
                self.put(event, event["offset"], event["text"])
            case "deliberation.snapshot":
                for call in event["unfinished"]:
                    self.put(call, call["offset"] - len(call["text"]), call["text"])
            case "call.finished":
                self.answers[event["call_id"], event["attempt"]] = event["text"]
            case "deliberation.completed":
                self.ended = True
            case _:
                return

    def newest(self) -> dict[str, str]:
        return {call_id: text for (call_id, _), text in self.texts.items()}

    def put(self, call: dict[str, Any], offset: int, piece: str) -> None:
        key = call["call_id"], call["attempt"]
        text = self.texts.get(key, "")
        assert offset <= len(text), f"a gap before {offset} in {text!r}"
        self.texts[key] = text[:offset] + piece


async def frames_of(response: httpx.Response) -> AsyncGenerator[Frame, None]:
    decoder = SseDecoder()
    async for chunk in response.aiter_bytes():
        for frame in decoder.feed(chunk):
            yield frame


async def read_some(client: httpx.AsyncClient, path: str, rebuilt: Rebuilt, frames_max: int, resume: bool) -> None:
    headers = {"Last-Event-ID": rebuilt.last_id} if resume and rebuilt.last_id else {}
    query = {"after": "0"} if resume else {}
    async with client.stream("GET", path, params=query, headers=headers) as response:
        if response.status_code == 204:
            rebuilt.ended = True
            return
        assert response.status_code == 200
        async with aclosing(frames_of(response)) as frames:
            async for frame in frames:
                rebuilt.take(frame)
                frames_max -= 1
                if frames_max <= 0:
                    return


async def write_all(
    journal: JetStreamJournal, story: Story, pieces: int, pace: Callable[[dict[str, str], bool], Any]
) -> dict[str, str]:
    """Write a deliberation in which agents send `pieces` deltas each; the first agent's call is attempted twice.

    `pace` gets the texts after each delta, and once more, with True, when they are complete.
    """
    texts = dict.fromkeys(story.agents, "")
    attempts = dict.fromkeys(story.agents, 1)
    await journal.append(TENANT, story.accepted())
    await journal.append(TENANT, story.opened())
    for agent in story.agents:
        await journal.publish_view(TENANT, story.started(agent))
    for number in range(pieces):
        for agent in story.agents:
            if number == pieces // 2 and agent == story.agents[0]:
                texts[agent], attempts[agent] = "", 2
                await journal.publish_view(TENANT, story.started(agent, attempt=2))
            piece = TEXT[number % len(TEXT) :][: 1 + number % 5]
            await journal.publish_view(TENANT, story.delta(agent, len(texts[agent]), piece, attempts[agent]))
            texts[agent] += piece
            await pace(texts, False)
    await pace(texts, True)
    for agent in story.agents:
        await journal.append(TENANT, story.finished(agent, texts[agent], attempts[agent]))
    await journal.append(TENANT, story.closed())
    await journal.append(TENANT, story.completed())
    return texts


async def stored_ids(journal: JetStreamJournal, deliberation_id: str) -> list[str]:
    epoch = (await journal.state()).epoch
    return [f"{epoch}-{r.sequence}" async for r in journal.read(f"deliberations.{TENANT}.{deliberation_id}.>", 0)]


@pytest.mark.parametrize(
    ("resume", "ahead", "pieces"), [(True, 200, 160), (False, 15, 190)], ids=["by cursor", "by snapshot"]
)
async def test_texts_are_rebuilt_exactly_after_a_hundred_disconnects(
    nats_server: NatsServer, jetstream_journal: JetStreamJournal, fresh_id: str, resume: bool, ahead: int, pieces: int
) -> None:
    story, rebuilt, chance, connections = Story(fresh_id, size=4), Rebuilt(), random.Random(7), 0
    final: dict[str, str] = {}

    async def pace(texts: dict[str, str], whole: bool) -> None:
        # The writer waits for the viewer, so that connections break during replays and during live events.
        enough = sum(map(len, texts.values())) - (0 if whole else ahead)

        def level() -> bool:
            now = rebuilt.newest()
            if sum(map(len, now.values())) < enough:
                return False
            if whole:
                # Kept here, because the viewer's last connection may end after an older snapshot.
                final.update(now)
            return True

        await until(level)

    async with gateway(nats_server.url) as client, asyncio.timeout(60):
        writing = asyncio.create_task(write_all(jetstream_journal, story, pieces, pace))
        path = f"/deliberations/{fresh_id}/events"
        while (await client.get(path, headers={"Accept": "application/json"})).status_code == 404:
            await asyncio.sleep(0.01)
        while not rebuilt.ended:
            await read_some(
                client, path, rebuilt, chance.choice([1, 2, 3, 5, 8] if resume else [1, 2, 3, 4, 5]), resume
            )
            connections += 1
        texts = await writing
    assert connections >= 100
    assert final == {f"s1-{agent}": text for agent, text in texts.items()}
    if resume:
        assert rebuilt.ids == await stored_ids(jetstream_journal, fresh_id)
        assert {call: text for (call, _), text in rebuilt.answers.items()} == final


async def test_streams_stay_open_while_the_log_restarts_and_miss_no_stored_event(
    own_nats_server: NatsServer, journal: JetStreamJournal
) -> None:
    deliberation_id = uuid.uuid4().hex[:26]
    story, viewers = Story(deliberation_id, size=3), [Rebuilt() for _ in range(5)]
    kills: list[float] = [300, 600, 900, inf]
    path = f"/deliberations/{deliberation_id}/events"

    async def pace(texts: dict[str, str], whole: bool) -> None:
        if sum(map(len, texts.values())) >= kills[0]:
            del kills[0]
            own_nats_server.kill()
            own_nats_server.start()
        await asyncio.sleep(0.002)  # like the time of an engine between tokens

    async with gateway(own_nats_server.url) as client, asyncio.timeout(60):
        writing = asyncio.create_task(write_all(journal, story, 150, pace))
        while (await client.get(path, headers={"Accept": "application/json"})).status_code != 200:
            await asyncio.sleep(0.01)
        async with asyncio.TaskGroup() as group:
            for viewer in viewers:
                group.create_task(read_ids(client, path, viewer))
        await writing
    stored = await stored_ids(journal, deliberation_id)
    assert [viewer.ids for viewer in viewers] == [stored] * len(viewers)


class Proxy:
    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._restored = asyncio.Event()
        self._restored.set()
        self._ends: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[str, None]:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        yield f"nats://{host}:{port}"
        server.close()
        self.cut()

    def cut(self) -> None:
        self._restored.clear()
        for end in self._ends:
            end.close()

    def restore(self) -> None:
        self._restored.set()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._restored.wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._ends |= {writer, far_writer}
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        self._ends -= {writer, far_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def test_live_events_before_the_reconnect_callback_hide_no_lost_event(
    nats_server: NatsServer,
    jetstream_journal: JetStreamJournal,
    fresh_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story, proxy, reconnected = Story(fresh_id), Proxy(nats_server.port), asyncio.Event()
    first = (await jetstream_journal.append(TENANT, story.accepted())).record.sequence
    async with proxy.opened() as url, asyncio.timeout(30):
        journal = await JetStreamJournal.connect(url, name="viewer")
        flush = journal.client.flush

        async def slow_flush(*arguments: Any, **named: Any) -> None:
            await flush(*arguments, **named)
            await reconnected.wait()

        async with Feed(journal) as feed, feed.watch(of_deliberation(TENANT, fresh_id)) as watch:
            await until(lambda: watch.ring is not None)
            monkeypatch.setattr(journal.client, "flush", slow_flush)
            proxy.cut()
            await until(lambda: not journal.client.is_connected)
            missed = (await jetstream_journal.append(TENANT, story.opened())).record.sequence
            proxy.restore()
            await until(lambda: journal.client.is_connected)
            await flush()
            live = (await jetstream_journal.append(TENANT, story.finished("dev-001"))).record.sequence
            await flush()  # the server answers in order, so the live event has arrived
            reconnected.set()
            viewer, seen = feed.viewer(watch, first), list[int]()
            while live not in seen:
                seen += [frame.sequence for frame in await viewer.batch(asyncio.get_running_loop().time() + 1)]
            assert seen == [missed, live]
        await journal.close()


async def read_ids(client: httpx.AsyncClient, path: str, rebuilt: Rebuilt) -> None:
    async with client.stream("GET", path, params={"after": "0"}) as response, aclosing(frames_of(response)) as frames:
        async for frame in frames:
            if frame.id is not None and frame.data:
                rebuilt.ids.append(frame.id)


async def test_sigterm_asks_viewers_to_reconnect_and_the_process_exits(
    nats_server: NatsServer, jetstream_journal: JetStreamJournal, fresh_id: str
) -> None:
    await jetstream_journal.append(TENANT, Story(fresh_id).accepted())
    path = f"/deliberations/{fresh_id}/events"
    async with gateway_process(nats_server.url) as (process, client):
        async with asyncio.timeout(20):
            await answering(client, path)
        async with asyncio.timeout(10), client.stream("GET", path) as response, aclosing(frames_of(response)) as frames:
            assert [(await anext(frames)).event for _ in range(2)] == ["stream.opened", "deliberation.snapshot"]
            await anext(frames)
            process.send_signal(signal.SIGTERM)
            assert [(frame.event, frame.fields()["reason"]) async for frame in frames] == [
                ("stream.reconnect", "draining")
            ]
        await until(lambda: process.poll() is not None, timeout_s=5)
        assert process.returncode == 0


async def test_a_starting_gateway_refuses_no_stream(
    nats_server: NatsServer, jetstream_journal: JetStreamJournal, fresh_id: str
) -> None:
    await jetstream_journal.append(TENANT, Story(fresh_id).accepted())
    statuses = list[int]()
    async with gateway_process(nats_server.url) as (_, client), asyncio.timeout(30):
        while len(statuses) < 20:
            for path in (f"/deliberations/{fresh_id}/events", f"/events?deliberation={fresh_id}"):
                with suppress(httpx.ConnectError):
                    async with client.stream("GET", path) as response:
                        statuses.append(response.status_code)
    assert set(statuses) == {200}


async def answering(client: httpx.AsyncClient, path: str) -> None:
    while True:
        try:
            if (await client.get(path, headers={"Accept": "application/json"})).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.05)
