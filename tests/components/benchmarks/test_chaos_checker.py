"""The checker of chaos runs finds each violated guarantee, and no other."""

import asyncio
import random
from contextlib import suppress

import pytest

from benchmarks.chaos.__main__ import RequestRecorder
from benchmarks.chaos.checker import EngineRequest, Fault, Findings, Stored, check
from benchmarks.chaos.proxy import CutKind, FaultProxy

KILL = Fault("SIGKILL", "coordinator", 10.0)


def log(*facts: tuple[float, str]) -> list[Stored]:
    """Facts of one deliberation from their times of storage and subject tails."""
    return [
        Stored(("deliberations", "default", "d1", *tail.split(".")), at_s, f"deliberation.{tail}")
        for at_s, tail in facts
    ]


WHOLE = log((1, "accepted"), (2, "stage.1.opened"), (5, "call.c1.finished"), (14, "stage.1.closed"), (20, "end"))


def found(stored: list[Stored], *asked_at_s: float, promised: tuple[str, ...] = ("d1",)) -> Findings:
    return check(promised, stored, [EngineRequest("d1", "c1", at_s) for at_s in asked_at_s], [KILL])


def test_a_correct_run_has_no_violation_and_reports_its_figures() -> None:
    findings = found(WHOLE, 3)
    assert findings.violations == []
    assert (findings.accepted, findings.ended, findings.requests, findings.recorded, findings.wasted) == (1, 1, 1, 1, 0)
    assert findings.resumed_s == [4.0]
    assert found(log((1, "accepted"), (14, "stage.1.opened"), (20, "end"))).resumed_s == [], "it waited for its turn"


def test_reports_the_delay_of_each_deliberation_that_a_kill_interrupts() -> None:
    facts = {"d1": (3.0, 14.0, 30.0), "d2": (3.0, 12.0, 30.0), "d3": (3.0, 26.0, 30.0)}
    stored = [
        Stored(("deliberations", "default", each, *tail.split(".")), at_s, f"deliberation.{tail}")
        for each, times in facts.items()
        for tail, at_s in zip(("stage.1.opened", "stage.1.closed", "end"), times, strict=True)
    ]
    findings = check((), stored, (), [KILL, Fault("SIGKILL", "nats", 13.0), Fault("SIGSTOP", "nats", 15.0)])
    assert findings.resumed_s == [1.0, 2.0, 4.0, 13.0, 16.0, 17.0]
    assert findings.progress_s == [1.0, 2.0]


def test_accepted_work_without_an_end_is_lost() -> None:
    assert found(WHOLE[:-1], 3).lost == ["d1"]
    assert found(WHOLE, 3, promised=("d1", "d2")).lost == ["d2"]
    assert found([], promised=()).violations == ["nothing was accepted"]


def test_an_end_that_no_client_could_read_is_a_violation() -> None:
    findings = found(WHOLE, 3)
    findings.unseen = ["d1"]
    assert findings.violations == ["no client could read its end: d1"]


def test_reports_failed_and_late_work_with_takeovers_and_longest_silence() -> None:
    stored = log((1, "accepted"), (2, "stage.1.opened"), (9, "takeover.1"))
    end = Stored(("deliberations", "default", "d1", "end"), 20, "deliberation.timeout")
    assert found([*stored, end]).unfinished == ["d1 deliberation.timeout: 1 takeovers, 11 s without a fact"]
    assert found(WHOLE, 3).unfinished == []


def test_detects_a_second_end() -> None:
    assert found([*WHOLE, *log((21, "end"))], 3).second_ends == ["d1"]


def test_detects_a_repeated_call() -> None:
    assert found(WHOLE, 3, 5.5).made_again == [], "two were under way at once"
    assert found(WHOLE, 3, 7).made_again == ["d1 c1, 2.0 s after"]


def test_detects_more_waste_than_the_calls_in_flight() -> None:
    late = log((1, "accepted"), (30, "call.c1.finished"), (31, "end"))
    assert (found(late, 3, 12).wasted, found(late, 3, 12).violations) == (1, [])
    assert found(late, 3, 12, 13).violations == ["2 calls wasted, with 1 in flight at the faults"]


def test_an_unrecorded_call_is_in_flight_until_its_deliberation_ends() -> None:
    unrecorded = log((1, "accepted"), (12, "end"))
    later = [KILL, Fault("SIGKILL", "agent", 11.0), Fault("SIGKILL", "agent", 13.0)]
    assert check(("d1",), unrecorded, [EngineRequest("d1", "c1", 3)], later).wasted_bound == 2


def test_the_proxy_counts_each_request_head_once() -> None:
    recorder = RequestRecorder()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nX-Call-Id: d1.s1-dev-001\r\nX-Request-Id: r\r\n\r\n{}"
    for at in range(len(request)):
        recorder(request[:at], at, 1.0)
        recorder(request[at:], at, 1.0)
    assert len(recorder.asked) == len(request)
    assert {(each.deliberation_id, each.call_id) for each in recorder.asked} == {("d1", "s1-dev-001")}


class Held:
    """Replaces the proxy's sleep while it holds a connection, and waits until the sent bytes are read."""

    def __init__(self) -> None:
        self.begun, self.read, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def sleep(self, _: float) -> None:
        self.begun.set()
        await self.over.wait()

    def read_at(self) -> float:
        self.read.set()
        return 101.0


@pytest.mark.parametrize(("kind", "forwarded"), [("delay", b"late"), ("half-open", b"")])
async def test_a_held_request_counts_from_its_sending_and_only_if_forwarded(
    kind: CutKind, forwarded: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.chaos.proxy.now_s", lambda: 100.0)
    reached: asyncio.Queue[bytes] = asyncio.Queue()
    seen: list[tuple[bytes, float]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            reached.put_nowait(await reader.read(5))
            writer.write(b"!")
            reached.put_nowait(await reader.read(4))
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        FaultProxy(server.sockets[0].getsockname()[1], lambda data, _, at_s: seen.append((data, at_s))) as proxy,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"first")
        assert (await reached.get(), await reader.read(1)) == (b"first", b"!")
        monkeypatch.setattr("benchmarks.chaos.proxy.asyncio.sleep", (held := Held()).sleep)
        assert proxy.cut(kind, random.Random(1), 5.0)
        await held.begun.wait()
        writer.write(b"late")
        monkeypatch.setattr("benchmarks.chaos.proxy.now_s", held.read_at)
        await held.read.wait()
        held.over.set()
        if forwarded:
            assert await reached.get() == forwarded
        else:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
    assert seen == [(b"first", 100.0)] + [(forwarded, 101.0)] * bool(forwarded)
