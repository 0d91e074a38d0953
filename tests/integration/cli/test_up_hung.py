import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from app.cli.render.progress import ChildDied, Noticed
from app.cli.stack.checks import nats_reply, responds_to_bytes, responds_to_http, status_of
from app.cli.stack.supervisor import ChildHealth
from tests.conditions import until
from tests.integration.cli.children import LASTS, READY, Events, Run, alive, child

BEATS = f"""
import os, time
{READY}
while True:
    os.utime("beat")
    time.sleep(0.01)
"""


def beats(beat: Path, *, within_s: float) -> Callable[[], Awaitable[ChildHealth]]:
    def touched_at() -> int:
        return beat.stat().st_mtime_ns

    async def check() -> ChildHealth:
        before = touched_at()
        try:
            await until(lambda: touched_at() != before, timeout_s=within_s)
        except TimeoutError:
            return ChildHealth(answers=False)
        return ChildHealth()

    return check


async def test_a_hung_child_is_killed_and_restarted(
    run: Run, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.stack.supervisor.HEALTH_CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr("app.cli.stack.supervisor.UNRESPONSIVE_AFTER_S", 0.5)
    beat = tmp_path / "beat"
    beat.touch()
    code = BEATS.replace('"beat"', repr(str(beat)))
    async with run(child("gateway", code, health_check=beats(beat, within_s=1), stop_within_s=1e6)) as running:
        hung = running.pid_of("gateway")
        os.kill(hung, signal.SIGSTOP)
        await events.until_ready("gateway", 2)
        assert not alive(hung)
        [died] = events.of(ChildDied)
        assert died.reason.startswith("hung: no answer for ")


async def test_an_unwritable_state_file_is_reported_and_ends_no_child(
    run: Run, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with run(child("log", LASTS)) as running:
        with monkeypatch.context() as patched:
            patched.setattr("app.cli.stack.supervisor.write_private", full)
            running.kill("log")
            await events.until_ready("log", 2)
        assert "could not be written: No space left on device" in events.of(Noticed)[0].text


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 200),
        (b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nwhy", 503),
        (b"INFO {}\r\n", None),
        (b"", None),
    ],
)
async def test_checks_accept_only_the_expected_response(said: bytes, status: int | None) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.write_eof()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/healthz"
        assert await status_of(url) == status
        heard, answered = (
            partial(responds_to_bytes, "127.0.0.1", (port, port), b"hello"),
            partial(responds_to_http, url),
        )
        assert await heard() == ChildHealth(answers=bool(said))
        assert await answered() == ChildHealth(answers=status is not None)
    assert not (await heard()).answers and not (await answered()).answers
    assert await status_of(url) is None


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        (b"INFO {}\r\nMSG _INBOX.x 1 4\r\nfine\r\n", b"fine"),
        (b"INFO {}\r\n-ERR 'Authorization Violation'\r\n", None),
        (b"INFO {}\r\nMSG _INBOX.x 1 9\r\ncut", None),
    ],
)
async def test_a_request_to_nats_gets_a_whole_reply_or_none(said: bytes, reply: bytes | None) -> None:
    heard = b""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard = await reader.readuntil(b" 0\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await nats_reply(f"nats://me:secret@127.0.0.1:{port}", "asked") == reply
    assert b'CONNECT {"user": "me", "pass": "secret", "verbose": false}' in heard and b"PUB asked _INBOX." in heard
    assert await nats_reply(f"nats://me:secret@127.0.0.1:{port}", "asked") is None
