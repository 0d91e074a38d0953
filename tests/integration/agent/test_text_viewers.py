"""Texts are published while a client watches: from the first piece, from the middle of a call, or never."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.deliberation.facts import CallDelta
from app.deliberation.roles import EngineSpec, Role
from app.log import text_viewers
from app.log.stream_settings import PUBLICATIONS
from app.log.text_viewers import KEPT_MAX, LEASE_S, NAMED_MAX, SUBJECT, TextLeases, TextViewers, keys_of
from serve_deployments.agent import call as agent_call
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.conditions import until
from tests.integration.agent.scripted_engine import ANSWER
from tests.integration.agent.stage_runs import PERSONA, AnsweringJournal, call, outcomes, request, views

PIECES = tuple(ANSWER[begin : begin + 12] for begin in range(0, len(ANSWER), 12))
WATCHED = b"default.d1"


class Steps(httpx.AsyncByteStream):
    """A reply whose next piece is sent when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Semaphore(0)
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in PIECES:
            await self.go.acquire()
            yield self._line({"delta": {"content": piece}, "finish_reason": None})
            self.sent += 1
        yield self._line({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n"

    def _line(self, choice: dict[str, Any]) -> bytes:
        return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()

    async def send(self, count: int) -> None:
        target = self.sent + count
        for _ in range(count):
            self.go.release()
        await until(lambda: self.sent >= target)


async def replica(steps: Steps, journal: AnsweringJournal, **options: Any) -> AgentReplica:
    models = httpx.Response(200, stream=httpx.ByteStream(b'{"data": [{"id": "m"}]}'))

    def answer(request: httpx.Request) -> httpx.Response:
        return models if request.url.path.endswith("/models") else httpx.Response(200, stream=steps)

    engines = Engines([EngineSpec(url="http://engine")], transport=httpx.MockTransport(answer))
    role = Role(persona=PERSONA, model="m")
    agent = AgentReplica("DEV", role, engines, journal, stream_deltas=True, engine_away_timeout_s=30, **options)
    await agent.listen()
    return agent


def published(journal: AnsweringJournal) -> list[tuple[int, str]]:
    return [(delta.offset, delta.text) for delta in views(journal, CallDelta)]


async def test_a_call_that_nobody_watches_publishes_no_text() -> None:
    steps, journal = Steps(), AnsweringJournal()
    agent = await replica(steps, journal)
    await journal.tell(SUBJECT, b"default.another\nother.d1\nother.*\n\xff")
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await steps.send(len(PIECES))
    (outcome,) = await running
    assert outcome.text == "".join(PIECES) and published(journal) == []


@pytest.mark.parametrize("key", [WATCHED, b"default.*"])
async def test_a_viewer_in_the_middle_of_a_call_gets_the_text_so_far_and_each_piece_after_it(
    key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_call, "FRAME_S", 0.0)
    steps, journal = Steps(), AnsweringJournal()
    agent = await replica(steps, journal)
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await steps.send(3)
    assert published(journal) == []
    await journal.tell(SUBJECT, key)
    await steps.send(2)
    begun = "".join(PIECES[:4])
    await until(lambda: published(journal) == [(0, begun), (len(begun), PIECES[4])])
    await steps.send(len(PIECES) - 5)
    (outcome,) = await running
    assert "".join(text for _, text in published(journal)) == outcome.text


async def test_a_viewer_that_left_costs_nothing_and_one_that_returns_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(text_viewers, "monotonic", lambda: now_s)
    monkeypatch.setattr(agent_call, "FRAME_S", 0.0)
    steps, journal = Steps(), AnsweringJournal()
    agent = await replica(steps, journal)
    await journal.tell(SUBJECT, WATCHED)
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await steps.send(2)
    await until(lambda: len(published(journal)) == 2)
    now_s += LEASE_S
    await steps.send(2)
    assert len(published(journal)) == 2
    await journal.tell(SUBJECT, WATCHED)
    await steps.send(len(PIECES) - 4)
    (outcome,) = await running
    texts = published(journal)
    assert texts[2][0] == len("".join(PIECES[:2]))
    assert "".join(text for _, text in texts) == outcome.text


async def test_a_long_text_so_far_comes_in_several_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_call, "DELTA_CHARS_MAX", 4)
    steps, journal = Steps(), AnsweringJournal()
    agent = await replica(steps, journal)
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await steps.send(3)
    await journal.tell(SUBJECT, WATCHED)
    await steps.send(len(PIECES) - 3)
    (outcome,) = await running
    texts, end = published(journal), 0
    for offset, text in texts:
        assert offset == end and 0 < len(text) <= 4
        end += len(text)
    assert end == len(outcome.text or "")


async def test_services_that_read_vllm_streaming_get_every_text() -> None:
    steps, journal = Steps(), AnsweringJournal()
    agent = await replica(steps, journal, publications=PUBLICATIONS)
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await steps.send(len(PIECES))
    (outcome,) = await running
    assert "".join(text for _, text in published(journal)) == outcome.text


async def test_leases_are_renewed_while_they_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_viewers, "RENEWED_S", 0.001)
    monkeypatch.setattr(text_viewers, "NAMED_MAX", 2)
    journal, heard = AnsweringJournal(), list[bytes]()
    await journal.listen(SUBJECT, heard.append)
    leases = TextLeases(journal)
    renewing = asyncio.create_task(leases.renew())
    with leases.held(keys_of("acme", ("a", "b", "c"))):
        with leases.held(keys_of("acme", ("c",))):
            pass
        heard.clear()
        await until(lambda: heard[:2] == [b"acme.a\nacme.b", b"acme.c"] and len(heard) > 2)
    await asyncio.sleep(0)
    heard.clear()
    with leases.held(keys_of("acme", ())):
        await until(lambda: heard[:1] == [b"acme.*"])
    renewing.cancel()


def test_a_replica_keeps_a_bounded_number_of_leases_the_newest() -> None:
    viewers = TextViewers()
    viewers.renew(b"t.first")
    for begin in range(0, KEPT_MAX, NAMED_MAX):
        viewers.renew("\n".join(f"t.{number}" for number in range(begin, begin + NAMED_MAX)).encode())
    assert not viewers.has("t", "first") and viewers.has("t", str(KEPT_MAX - 1))


def test_a_message_that_names_more_than_gateways_do_is_cut() -> None:
    viewers = TextViewers()
    viewers.renew("\n".join(f"t.{number}" for number in range(NAMED_MAX + 1)).encode())
    assert viewers.has("t", str(NAMED_MAX - 1)) and not viewers.has("t", str(NAMED_MAX))
