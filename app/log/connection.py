"""The driver's errors and time-outs, shared by everything that uses the connection to NATS, and its credentials."""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import nats.errors
from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, Client
from nats.aio.msg import Msg

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import StreamState

REQUEST_TIMEOUT_S = 2.5
NO_MESSAGE = 10037
_Answer = TypeVar("_Answer")
_SUBJECT_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
NATS_SCHEMES = ("nats", "tls", "ws", "wss")
# nats-py raises these while the server is away, slow or lost. After any of them a write may or may not be stored.
UNREACHABLE: tuple[type[Exception], ...] = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.ConnectionDrainingError,
    nats.errors.StaleConnectionError,
    nats.errors.NoServersError,
    OSError,
    TimeoutError,
    # uvloop raises this, and asyncio nothing, for a write on a lost connection before its reader has noticed the loss.
    RuntimeError,
)

# What may stand around a name or a value. Other spaces belong to it.
_SPACES = " \t\r\n\v\f"


@lru_cache(maxsize=1_024)
def _header_name(raw: str) -> str | None:
    name = raw.strip(_SPACES)
    return name if name.isascii() and len(name.split()) == 1 else None


async def _keep_cancellation(asking: Awaitable[_Answer]) -> _Answer:
    """Await an answer. Before Python 3.12 (gh-86296) `asyncio.wait_for` loses a cancellation that comes with it."""
    task = asyncio.current_task()
    assert task is not None, "requests are made by tasks"
    before = task.cancelling()
    try:
        return await asking
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class LogClient(Client):
    """The client of nats-py, which never loses a cancellation and knows the names of headers from earlier messages."""

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        return await _keep_cancellation(super().request(subject, payload, timeout, old_style, headers))

    async def flush(self, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
        await _keep_cancellation(super().flush(timeout))

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        headers = dict[str, str]()
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            raw_name, colon, value = line.partition(":")
            if colon and (name := _header_name(raw_name)) is not None:
                headers[name] = value.strip(_SPACES)
        return headers


def server_url(url: str) -> str:
    """Returns `url`, or the content of a `file:` URL's file; raises JournalUnavailable without that content."""
    if not url.startswith("file:"):
        return url
    path = Path(unquote(urlsplit(url).path))
    try:
        content = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is no text"
        raise JournalUnavailable(f"the file {path} of the NATS URL cannot be read: {reason}") from exc
    if content.split("://")[0] not in NATS_SCHEMES or content.split()[1:]:
        raise JournalUnavailable(f"the file {path} holds no NATS URL; its content is `nats://user:password@host:port`")
    return content


def login(url: str) -> tuple[str, dict[str, Any]]:
    """Returns the server of a URL, and the inbox prefix and credentials for `Client.connect`.

    Credentials of a `file:` URL are functions, so a changed file counts at the next connection. The last credentials
    are used while the file cannot be read; raises JournalUnavailable when it cannot be read now.
    """
    resolved = server_url(url)
    parts = urlsplit(resolved)
    # Within the usual `_INBOX.>`, and the only one that the users of `users.conf` may subscribe to.
    named = parts.password is not None and _SUBJECT_TOKEN.fullmatch(parts.username or "") is not None
    inbox = {"inbox_prefix": f"_INBOX.{parts.username}"} if named else {}
    if resolved == url or parts.username is None:
        return resolved, inbox
    last = resolved

    def now(part: str) -> str:
        nonlocal last
        with suppress(JournalUnavailable):
            last = server_url(url)
        return getattr(urlsplit(last), part) or ""

    server = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if parts.password is None:
        return server, {"token": lambda: now("username")}
    return server, {"user": lambda: now("username"), "password": lambda: now("password"), **inbox}


async def request(
    client: Client, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """The server's JSON reply to a message; raises JournalUnavailable without one."""
    try:
        message = await client.request(subject, payload, timeout=REQUEST_TIMEOUT_S, headers=headers)
    except nats.errors.NoRespondersError as exc:
        raise JournalUnavailable("the server's JetStream is off, or still reads its store") from exc
    except UNREACHABLE as exc:
        raise JournalUnavailable(f"the log cannot be reached: {exc!r}") from exc
    return json.loads(message.data)


async def stored_message(client: Client, stream: str, **query: object) -> dict[str, Any] | None:
    """The first message of a stream that a query finds, read from the stream's leader; raises JournalUnavailable."""
    reply = await request(client, f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps(query).encode())
    if error := reply.get("error"):
        if error.get("err_code") == NO_MESSAGE:
            return None
        raise JournalUnavailable(f"the log refused a read: {error.get('description')}")
    return reply["message"]


async def state_of(client: Client, stream: str) -> StreamState:
    reply = await request(client, f"$JS.API.STREAM.INFO.{stream}")
    if "error" in reply:
        raise JournalUnavailable(f"stream {stream}: {reply['error'].get('description')}")
    # The epoch is a short token of the stream's creation time.
    epoch, bounds = hashlib.sha256(reply["created"].encode()).hexdigest()[:8], reply["state"]
    return StreamState(epoch, bounds["first_seq"], bounds["last_seq"])
