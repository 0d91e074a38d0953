"""The messages that one deliberation stores in nats-server, and their storage again under other ids.

A recording comes from a copy of a stopped nats-server's store, and so from any version of the product.
"""

import asyncio
import base64
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import httpx
import nats
import nats.errors
from nats.aio.client import Client

from app.cli.stack.layout import StackOptions
from app.cli.stack.up import running_stack
from benchmarks.bench import AGENTS, CALL_MS, TASK, simulator
from tests.conftest import NatsServer

# The longest time to a deadline, so that stored acceptances are not late.
ASKED = {
    "task": TASK,
    "strategy": "independent",
    "num_agents": AGENTS,
    "constraints": {"timeout_seconds": 3_600},
}
# Below the 10,000 messages that nats-server queues for a stream before it refuses more.
WINDOW = 4_000
_INBOX = b"_INBOX.stored"
_NUMBER_DIGITS = 8
# Headers that the server adds to messages of an atomic batch; each message is stored by itself here.
_OF_A_BATCH = b"nats-batch-"


class Message(NamedTuple):
    """A stored message. The headers are raw and may be empty."""

    subject: bytes
    headers: bytes
    data: bytes

    @property
    def publication(self) -> bytes:
        """The message in the client protocol of NATS."""
        if not self.headers:
            return b"PUB %b %b %d\r\n%b\r\n" % (self.subject, _INBOX, len(self.data), self.data)
        sizes = len(self.headers), len(self.headers) + len(self.data)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (self.subject, _INBOX, *sizes, self.headers, self.data)


class Block(NamedTuple):
    """Messages in the client protocol of NATS, and how many they are."""

    data: bytes
    messages: int


class Recording(NamedTuple):
    """The stored messages of one deliberation, without those that the server copies, and all streams' declarations.

    A stream that copies another one is filled by nats-server itself.
    """

    deliberation_id: bytes
    streams: list[dict[str, Any]]
    consumers: list[tuple[str, dict[str, Any]]]
    messages: tuple[Message, ...]

    def id_of(self, number: int) -> bytes:
        """The id of a copy; it is as long as the recorded one."""
        return self.deliberation_id[:-_NUMBER_DIGITS] + b"%0*d" % (_NUMBER_DIGITS, number)

    def block(self, messages: Sequence[Message], id: bytes) -> Block:
        """Some of the messages, of the deliberation with this id."""
        data = b"".join(message.publication for message in messages)
        return Block(data.replace(self.deliberation_id, id), len(messages))

    def of_kind(self, *kinds: str) -> tuple[Message, ...]:
        """The messages with one of these words after the id in their subject."""
        return tuple(each for each in self.messages if each.subject.decode().split(".")[3] in kinds)

    def written(self, path: Path) -> None:
        encoded = [[base64.b64encode(part).decode() for part in message] for message in self.messages]
        whole = [self.deliberation_id.decode(), self.streams, self.consumers, encoded]
        path.write_text(json.dumps(whole), encoding="utf-8")

    @classmethod
    def of_file(cls, path: Path) -> Self:
        id, streams, consumers, encoded = json.loads(path.read_text(encoding="utf-8"))
        messages = tuple(Message(*map(base64.b64decode, parts)) for parts in encoded)
        return cls(id.encode(), streams, [tuple(each) for each in consumers], messages)

    @classmethod
    async def of_store(cls, store: Path) -> Self:
        """Read the first deliberation in a copy of a stopped server's store."""
        with tempfile.TemporaryDirectory() as directory:
            async with running_server(Path(shutil.copytree(store, Path(directory) / "nats"))) as (_, client):
                return cls(*await _read(client))

    @classmethod
    async def of_stack(cls) -> Self:
        """Run one deliberation in a stack of its own; agents answer in 32 pieces."""
        with tempfile.TemporaryDirectory() as directory:
            options = StackOptions(data_dir=Path(directory), port=0, nats_port=0, simulate=simulator(CALL_MS))
            async with running_stack(options) as stack, httpx.AsyncClient(base_url=stack.url, timeout=70) as client:
                answer = await client.post("/deliberations", json=ASKED, headers={"Prefer": "wait=60"})
                assert answer.json()["status"] == "completed", answer.text
            return await cls.of_store(Path(directory) / "nats")


async def request(client: Client, subject: str, body: object = None) -> dict[str, Any]:
    """The reply of JetStream's interface; raises an assertion's error when it refuses."""
    message = await client.request(f"$JS.API.{subject}", b"" if body is None else json.dumps(body).encode(), timeout=30)
    reply = json.loads(message.data)
    assert "error" not in reply, (subject, reply)
    return reply


@asynccontextmanager
async def running_server(store: Path) -> AsyncGenerator[tuple[NatsServer, Client]]:
    """A nats-server without users over a store, and a client of it once JetStream answers."""
    server = NatsServer(store)
    server.start()
    try:
        client = await connected(server)
        try:
            yield server, client
        finally:
            await client.close()
    finally:
        server.stop()


async def until_listening(port: int) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        await asyncio.sleep(0.005)


async def connected(server: NatsServer) -> Client:
    """A client of a server that starts, once JetStream answers."""
    await until_listening(server.port)
    client = await nats.connect(server.url)
    while True:
        with suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
            await client.request("$JS.API.INFO", timeout=1)
            return client
        await asyncio.sleep(0.01)


async def _read(
    client: Client,
) -> tuple[bytes, list[dict[str, Any]], list[tuple[str, dict[str, Any]]], tuple[Message, ...]]:
    streams, consumers, found = list[dict[str, Any]](), list[tuple[str, dict[str, Any]]](), list[Message]()
    for stream in (await request(client, "STREAM.LIST"))["streams"]:
        config, state = stream["config"], stream["state"]
        # The server's own notes on the version that created it.
        config.pop("metadata", None)
        streams.append(config)
        listed = await request(client, f"CONSUMER.LIST.{config['name']}")
        consumers += [(config["name"], {**each["config"], "metadata": {}}) for each in listed["consumers"]]
        sequence = 1
        # Some may have been removed, and the server fills a stream without subjects.
        for _ in range(state["messages"] if config.get("subjects") else 0):
            wanted = {"seq": sequence, "next_by_subj": ">"}
            stored = (await request(client, f"STREAM.MSG.GET.{config['name']}", wanted))["message"]
            found.append(_message(stored))
            sequence = stored["seq"] + 1
    [accepted] = [each for each in found if each.subject.split(b".")[3:] == [b"accepted"]]
    id = accepted.subject.split(b".")[2]
    return id, streams, consumers, tuple(each for each in found if id in each.subject or id in each.data)


def _message(stored: dict[str, Any]) -> Message:
    raw = base64.b64decode(stored.get("hdrs", ""))
    lines = [line for line in raw.split(b"\r\n") if not line.lower().startswith(_OF_A_BATCH)]
    # The first line is the version, and two empty ones end it.
    headers = b"\r\n".join(lines) if len(lines) > 3 else b""
    return Message(stored["subject"].encode(), headers, base64.b64decode(stored.get("data", "")))


async def declare(client: Client, recording: Recording) -> None:
    """Create the recorded streams."""
    # A stream that copies another one needs that one.
    for config in sorted(recording.streams, key=lambda config: "sources" in config):
        await request(client, f"STREAM.CREATE.{config['name']}", config)


async def consume(client: Client, recording: Recording) -> None:
    """Create the recorded consumers behind everything that is stored, as when all work is done."""
    for stream, config in recording.consumers:
        body = {"stream_name": stream, "config": {**config, "deliver_policy": "new"}}
        await request(client, f"CONSUMER.DURABLE.CREATE.{stream}.{config['durable_name']}", body)


class BareClient:
    """A client of nats-server that only stores, several times faster than nats-py.

    The server acknowledges each message, and at most WINDOW are on their way. Its methods raise ConnectionError when
    the server refuses a message or closes the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sent = self._acknowledged = 0
        self._refusal = b""
        self._moved = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncGenerator[Self]:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        options = json.dumps({"verbose": False, "pedantic": False, "headers": True, "no_responders": True})
        writer.write(b"CONNECT %b\r\nSUB %b 1\r\n" % (options.encode(), _INBOX))
        client = cls(reader, writer)
        reading = asyncio.create_task(client._read())
        try:
            yield client
            await client._until_acknowledged(client._sent)
        finally:
            reading.cancel()
            writer.close()

    async def store(self, block: Block) -> None:
        await self._until_acknowledged(self._sent + block.messages - WINDOW)
        self._writer.write(block.data)
        self._sent += block.messages
        await self._writer.drain()

    async def _read(self) -> None:
        # The last bytes read, fewer than a mark has, so that a mark in two reads counts once.
        tail = b""
        while data := await self._reader.read(262_144):
            data = tail + data
            self._acknowledged += data.count(b'"seq":')
            if b"PING\r\n" in data:
                self._writer.write(b"PONG\r\n")
            if b'"error":' in data or b"-ERR" in data:
                self._refusal = data[-500:]
            tail = data[-5:]
            self._moved.set()
        self._refusal = self._refusal or b"the server closed the connection"
        self._moved.set()

    async def _until_acknowledged(self, count: int) -> None:
        while not self._refusal and self._acknowledged < count:
            self._moved.clear()
            await self._moved.wait()
        # The acknowledgement of a refused message has a number too.
        if self._refusal:
            raise ConnectionError(self._refusal.decode(errors="replace"))


async def store(url: str, recording: Recording, numbers: Iterable[int]) -> None:
    """Store the recorded deliberation once for each number."""
    async with BareClient.connect(url) as client:
        for number in numbers:
            await client.store(recording.block(recording.messages, recording.id_of(number)))
