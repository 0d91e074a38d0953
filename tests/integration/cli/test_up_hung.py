"""Children that hang, or are broken: found by their signs of life, and started again; probes over real sockets."""

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from app.cli.render.progress import ChildDied, Noticed
from app.cli.stack.probes import all_live, answer_of, answers, greets, replies, serves, status_of
from app.cli.stack.restarts import Sign, Silent, Well
from app.cli.stack.supervisor import Life
from tests.conditions import until
from tests.integration.cli.children import LASTS, READY, Run, Told, alive, child

BEATS = f"""
import os, time
{READY}
while True:
    os.utime("beat")
    time.sleep(0.01)
"""


def beats(beat: Path, *, within_s: float) -> Callable[[Life], Awaitable[Sign]]:
    """Well while the child touches its file again within that time."""

    def touched_at() -> int:
        return beat.stat().st_mtime_ns

    async def probe(life: Life) -> Sign:
        before = touched_at()
        try:
            await until(lambda: touched_at() != before, timeout_s=within_s)
        except TimeoutError:
            return Silent()
        return Well()

    return probe


async def test_a_child_that_hangs_is_killed_and_started_again(
    run: Run, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.stack.supervisor.PROBE_INTERVAL_S", 0.05)
    monkeypatch.setattr("app.cli.stack.restarts.SILENCE_MAX_S", 0.5)
    beat = tmp_path / "beat"
    beat.touch()
    code = BEATS.replace('"beat"', repr(str(beat)))
    async with run(child("gateway", code, lives=beats(beat, within_s=1), stop_within_s=1e6)) as stand:
        hung = stand.supervisor.pid_of("gateway")
        os.kill(hung, signal.SIGSTOP)
        await told.until_ready("gateway", 2)
        assert not alive(hung)
        [died] = told.of(ChildDied)
        assert died.reason.startswith("hung: no answer for ")


async def test_a_child_that_answers_seldom_is_left_alone(run: Run, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.stack.supervisor.PROBE_INTERVAL_S", 0.001)
    monkeypatch.setattr("app.cli.stack.restarts.SILENCE_MAX_S", 0.0)
    asked = list[int]()

    async def every_third(life: Life) -> Sign:
        asked.append(life.process.pid)
        return Well() if len(asked) % 3 == 0 else Silent()

    async with run(child("gateway", LASTS, lives=every_third)):
        await until(lambda: len(asked) > 30)
        assert told.of(ChildDied) == []
        assert len(set(asked)) == 1


async def test_a_state_file_that_cannot_be_written_is_told_and_ends_nothing(
    run: Run, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with run(child("log", LASTS)) as stand:
        with monkeypatch.context() as patched:
            patched.setattr("app.cli.stack.supervisor.write_private", full)
            stand.kill("log")
            await told.until_ready("log", 2)
        assert "could not be written: No space left on device" in told.of(Noticed)[0].text


@pytest.mark.parametrize(
    ("said", "status", "greeted"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 200, False),
        (b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nwhy", 503, False),
        (b"INFO {}\r\n", None, True),
        (b"", None, False),
        (b"\n", None, False),
        (b"HTTP/1.1 maybe\r\n", None, False),
    ],
)
async def test_probes_believe_only_what_they_asked_for(said: bytes, status: int | None, greeted: bool) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.write_eof()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/healthz"
        life = Life.__new__(Life)
        assert await status_of(url) == status
        assert await answers(url)(life) is (status == 200)
        assert await greets("127.0.0.1", port, b"INFO ")(life) is greeted
        assert await answer_of(url) == (None if status is None else (status, b"why" if status == 503 else b""))
        heard, answered = replies("127.0.0.1", port, b"hello"), serves(url)
        assert await heard(life) == (Well() if said else Silent())
        assert await answered(life) == (Silent() if status is None else Well())
        assert await all_live(heard, answered)(life) == (Well() if said and status else Silent())
    assert await heard(life) == await answered(life) == Silent()
    assert await status_of(url) is None
    assert await greets("127.0.0.1", port, b"INFO ")(life) is False
