"""A connection to the in-memory server with the interface of nats-py's client, for the real journal and queue."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg

from app.log.journal import JetStreamJournal
from app.log.stream_settings import TASKS
from tests.crash.points import Process, nothing
from tests.crash.server import ACK, Fate, InMemoryServer, Interest

_Answer = TypeVar("_Answer")
RECONNECT_S = 0.2
LATE_S = 0.3
PAYLOAD_BYTES_MAX = 1_048_576

_numbers = itertools.count(1)


def kind(subject: str) -> str:
    tokens = subject.split(".")
    if subject.startswith(ACK):
        return "ack"
    if subject.startswith("$JS.API."):
        return ".".join(tokens[2:5])
    if subject.startswith(TASKS):
        return ".".join(tokens[:4])
    if tokens[0] == "inputs":
        return f"inputs.{tokens[3]}"
    return (
        ".".join(tokens[:1] + tokens[3:]) if tokens[0] == "deliberations" else subject.partition("_INBOX")[0] or "inbox"
    )


@dataclass(eq=False)
class _Subscription:
    client: "InMemoryClient"
    interest: Interest
    cb: Callable[[Msg], Awaitable[None]]
    line: asyncio.Queue[Msg]
    task: asyncio.Task[None] | None = None
    taken: int = 0

    @property
    def pending_msgs(self) -> int:
        return self.line.qsize() + self.taken

    async def follow(self) -> None:
        while True:
            message = await self.line.get()
            self.taken = 1
            if "Status" not in (message.headers or {}) and "Nats-Subject" not in (message.headers or {}):
                await self.client.step(f"hear {kind(message.subject.removeprefix('live.'))}", nothing)
            self.taken = 0
            await self.cb(message)

    async def unsubscribe(self) -> None:
        if self.interest not in self.client.server.interests:
            raise nats.errors.BadSubscriptionError
        self.client.server.interests.remove(self.interest)
        self.end()

    async def drain(self) -> None:
        if self.interest in self.client.server.interests:
            self.client.server.interests.remove(self.interest)
        while self.pending_msgs:
            await asyncio.sleep(0)
        self.end()

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()


class InMemoryClient:
    def __init__(self, server: InMemoryServer, process: Process | None = None) -> None:
        self.server = server
        self.is_closed = False
        self.max_payload = PAYLOAD_BYTES_MAX
        self.connected = False
        self._process = process
        self._number = next(_numbers)
        self._inboxes = itertools.count(1)
        self._pending: set[asyncio.Task[None]] = set()
        self._subscriptions: list[_Subscription] = []
        self._options: dict[str, Any] = {}

    async def step(self, name: str, effect: Callable[[], _Answer]) -> _Answer:
        if self._process is not None:
            return await self._process.step(name, effect)
        await asyncio.sleep(0)
        return effect()

    async def connect(self, url: str, **options: Any) -> None:
        self._options = options
        self.server.deaths.append(self._disconnected)
        self.server.returns.append(self._returned)
        if self._process is not None:
            self._process.on_death(self._gone)
        while not self.server.up:
            await asyncio.sleep(RECONNECT_S)
        self.connected = True

    @property
    def is_connected(self) -> bool:
        return self.connected

    @property
    def name(self) -> str:
        return "" if self._process is None else self._process.name

    def _gone(self) -> None:
        self.connected = False
        self.is_closed = True
        for interest in [each for each in self.server.interests if each.owner is self]:
            self.server.interests.remove(interest)
        for subscription in self._subscriptions:
            subscription.end()
        if self._disconnected in self.server.deaths:
            self.server.deaths.remove(self._disconnected)
            self.server.returns.remove(self._returned)

    async def close(self) -> None:
        self._gone()

    def _soon(self, work: Any) -> None:
        task = self._process.start(work) if self._process else asyncio.get_running_loop().create_task(work)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def _disconnected(self) -> None:
        if self.connected:
            self.connected = False
            self._soon(self._options["disconnected_cb"]())

    def _returned(self) -> None:
        if not self.is_closed:
            self._soon(self._reconnected())

    async def _reconnected(self) -> None:
        await asyncio.sleep(RECONNECT_S)
        if self.server.up and not self.connected and not self.is_closed:
            self.connected = True
            # Subscriptions are sent again first, so that messages may arrive before the reconnect is reported.
            await asyncio.sleep(0.01)
            await self._options["reconnected_cb"]()

    async def lose(self, for_s: float) -> None:
        self._disconnected()
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(for_s, self._returned)

    def new_inbox(self) -> str:
        return f"_INBOX.{self._number}-{next(self._inboxes)}"

    def _reachable(self) -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if not self.connected:
            raise nats.errors.OutboundBufferLimitError

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5, headers: dict[str, str] | None = None
    ) -> Msg:
        self._reachable()
        fate = self.server.fate(subject)
        answer = await self.step(f"request {kind(subject)}", lambda: self._asked(subject, payload, headers or {}, fate))
        if answer is None or not self.connected:
            await asyncio.sleep(timeout)
            if fate == "late":
                asyncio.get_running_loop().call_later(LATE_S, self._served, subject, payload, headers or {})
            raise nats.errors.TimeoutError
        return Msg(None, data=json.dumps(answer).encode())  # pyright: ignore[reportArgumentType]

    def _served(self, subject: str, payload: bytes, headers: dict[str, str]) -> dict[str, Any] | None:
        return self.server.request(subject, payload, headers) if self.server.up else None

    def _asked(self, subject: str, payload: bytes, headers: dict[str, str], fate: Fate) -> dict[str, Any] | None:
        if fate in ("lost", "late") or not self.connected:
            return None
        answer = self._served(subject, payload, headers)
        return None if fate == "unanswered" else answer

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self._reachable()
        fate = self.server.fate(subject)
        await self.step(
            f"publish {kind(subject)}", lambda: self._published(subject, payload, headers or {}, reply, fate)
        )

    def _published(self, subject: str, payload: bytes, headers: dict[str, str], reply: str, fate: Fate) -> None:
        if self.connected and fate != "lost":
            self.server.publish(subject, payload, headers, reply)

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> _Subscription:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        line: asyncio.Queue[Msg] = asyncio.Queue()
        interest = Interest(subject, line.put_nowait, self)
        subscription = _Subscription(self, interest, cb, line)
        await self.step(f"subscribe {kind(subject)}", lambda: self.server.interests.append(interest))
        self._subscriptions.append(subscription)
        subscription.task = asyncio.get_running_loop().create_task(subscription.follow())
        return subscription

    async def flush(self, timeout: float = 10) -> None:
        self._reachable()
        await self.step("flush", nothing)
        if not self.connected:
            await asyncio.sleep(timeout)
            raise nats.errors.FlushTimeoutError


async def journal_over(
    server: InMemoryServer, name: str, process: Process | None = None, timeout_s: float = 2.5
) -> JetStreamJournal:
    client = InMemoryClient(server, process)
    journal = JetStreamJournal("nats://memory", name=name, timeout_s=timeout_s, client=client)  # pyright: ignore[reportArgumentType]
    await journal.open()
    return journal
