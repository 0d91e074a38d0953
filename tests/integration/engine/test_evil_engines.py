"""Engines that send without end, in vain, or what cannot be: each call ends, within bounds, and others go on."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from app.deliberation.errors import EngineUnavailable
from app.deliberation.facts import CallFinished, decode, encode
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import EVENTS_AT_ONCE, Meter, StreamedChoice, StreamedReply
from serve_deployments.engine.state import RETRY_AFTER_MAX_S, retry_after_s
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER
from tests.integration.agent.stage_runs import PERSONA, call, outcomes, request
from tests.integration.engine.evil_engines import FLOODS, HEAD, LISTS, REPLIES, USAGES, answered, chunk
from tests.integration.engine.raw_engine import RawEngine

MAX_TOKENS = 64


def replica(*engines: EngineSpec) -> AgentReplica:
    return AgentReplica(
        "DEV", Role(persona=PERSONA), Engines(engines), InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=2
    )


async def outcome_of(pieces: Iterable[bytes], deadline_s: float = 20) -> tuple[CallFinished, InMemoryJournal]:
    async with RawEngine([list(pieces)]).serving() as engine:
        agent = replica(EngineSpec(url=engine.url, model="m"))
        (outcome,) = await outcomes(agent, request((call(),), deadline_s=deadline_s))
        await agent.engines.close()
    assert decode(encode(outcome)) == outcome
    assert isinstance(agent.journal, InMemoryJournal)
    return outcome, agent.journal


@pytest.mark.parametrize("pieces", FLOODS.values(), ids=FLOODS.keys())
async def test_a_flood_is_cut_off_and_named_within_its_bytes(pieces: list[bytes]) -> None:
    began_s = time.process_time()
    outcome, journal = await outcome_of(pieces)
    assert outcome.problem is not None
    assert any(word in outcome.problem.detail for word in ("more than", "was cut off", "has more than"))
    assert sum(len(record.data) for record in journal.records) < 1_000_000
    assert time.process_time() - began_s < 15, "three attempts at ten megabytes each"


async def test_heads_before_an_answer_are_bounded() -> None:
    outcome, _ = await outcome_of(REPLIES["heads of continuation without an end"])
    assert outcome.problem is not None and "more than 64 heads before an answer" in outcome.problem.detail


async def read(*chunks: bytes) -> int:
    """Read chunks that are there at once; returns how often another task ran meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def arriving() -> AsyncIterator[bytes]:
        for each in chunks:
            yield each

    running = asyncio.create_task(other())
    await asyncio.sleep(0)
    engine = Engines([EngineSpec(url="http://engine")]).engines[0]
    try:
        await StreamedReply(StreamedChoice(call(), "d.c.1", None, Meter())).read(engine, arriving())
    finally:
        running.cancel()
    return turns


@pytest.mark.parametrize("event", [b'data: {"choices": []}\n\n', b"data: []\n"])
async def test_others_run_while_a_chunk_of_many_events_is_read(event: bytes) -> None:
    assert await read(event * 5_000 + b"\n", chunk(ANSWER, "stop")) >= 5_000 // EVENTS_AT_ONCE


@pytest.mark.parametrize("event", [b'data: {"choices": []}\n\n', b"data: []\n"])
async def test_more_events_than_tokens_can_mean_are_cut_off(event: bytes) -> None:
    with pytest.raises(EngineUnavailable, match="sent more than 8,704 events"):
        await read(event * 10_000 + b"\n", chunk(ANSWER, "stop"))


async def test_a_document_beyond_its_bytes_is_not_parsed() -> None:
    with pytest.raises(EngineUnavailable, match="sent more than 1,056,768 bytes at once"):
        await read(b'{"choices": "', *([b"x" * 100_000] * 11))
    with pytest.raises(EngineUnavailable, match="an event has more than 1,056,768 bytes"):
        await read(b'data: {"choices": "', *([b"x" * 100_000] * 11))


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES.keys())
async def test_a_usage_that_cannot_be_is_estimated(usage: dict[str, object]) -> None:
    outcome, _ = await outcome_of(answered(usage=usage))
    assert outcome.text == ANSWER and outcome.usage_estimated
    assert 0 < outcome.usage.prompt_tokens < 100 and 0 < outcome.usage.completion_tokens <= MAX_TOKENS
    assert outcome.usage.cached_tokens <= outcome.usage.prompt_tokens


async def test_a_usage_that_can_be_is_taken() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5.0, "prompt_tokens_details": {"cached_tokens": 4}}
    outcome, _ = await outcome_of(answered(usage=usage))
    spent = outcome.usage
    assert (spent.prompt_tokens, spent.completion_tokens, spent.cached_tokens) == (10, 5, 4)
    assert not outcome.usage_estimated


async def test_an_answer_that_was_read_is_paid_when_its_stream_breaks_or_its_time_ends() -> None:
    broken, _ = await outcome_of([HEAD, chunk("word " * 12)])
    assert broken.problem is not None and broken.usage.calls == 3
    assert broken.usage_estimated and broken.usage.completion_tokens >= 3 * 12
    async with RawEngine([[HEAD, chunk("word " * 12)]]).serving() as engine:
        engine.holds_open = True
        agent = replica(EngineSpec(url=engine.url, model="m"))
        (late,) = await outcomes(agent, request((call(),), deadline_s=4))
        await agent.engines.close()
    assert late.problem is not None and late.problem.code == "call_timeout"
    assert late.usage_estimated and late.usage.prompt_tokens > 0 and late.usage.completion_tokens >= 12


@pytest.mark.parametrize("models", LISTS.values(), ids=LISTS.keys())
async def test_an_evil_list_of_models_is_that_engines_problem_alone(models: bytes) -> None:
    async with RawEngine([answered()], models=[models]).serving() as evil, RawEngine([answered()]).serving() as good:
        agent = replica(EngineSpec(url=evil.url), EngineSpec(url=good.url))
        watching = asyncio.create_task(agent.engines.watch())
        await agent.engines.probe()
        bad, healthy = agent.engines.engines
        assert not bad.healthy and bad.list_problem and healthy.healthy and not healthy.list_problem
        (outcome,) = await outcomes(agent, request((call(),)))
        assert outcome.text == ANSWER
        await until(lambda: len(evil.paths) >= 2, timeout_s=20)
        assert not watching.done()
        watching.cancel()
        await agent.engines.close()


NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "20"}, 20),
        ({"Retry-After": " 3.5 "}, 3.5),
        ({"Retry-After": format_datetime(NOW + timedelta(seconds=30), usegmt=True)}, 30),
        ({"Retry-After": format_datetime(NOW - timedelta(seconds=30), usegmt=True)}, 0),
        ({"retry-after-ms": "1500", "Retry-After": "2"}, 1.5),
        ({"Retry-After": "²"}, 0),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "9" * 400}, 0),
        ({"Retry-After": "999999999"}, RETRY_AFTER_MAX_S),
        ({"Retry-After": "Fri, 31 Dec 99999 23:59:59 GMT"}, 0),
        ({}, 0),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float) -> None:
    assert retry_after_s(httpx.Headers(headers, encoding="utf-8"), NOW) == pytest.approx(seconds)


async def test_an_error_without_an_end_is_quoted_within_bounds() -> None:
    outcome, _ = await outcome_of(REPLIES["an error without an end"])
    assert outcome.problem is not None and len(outcome.problem.detail) < 1_000


async def test_half_characters_are_joined() -> None:
    text = ANSWER.replace("forty-two", "😀")
    halves = json.dumps(text)[1:-1]
    at = halves.index("\\ud83d") + 6
    pieces = [
        b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % each.encode() for each in (halves[:at], halves[at:])
    ]
    outcome, journal = await outcome_of([HEAD, *pieces, chunk(finish="stop"), b"data: [DONE]\n\n"])
    assert outcome.text == text
    assert all(record.data.decode() for record in journal.records)


@pytest.mark.parametrize("field", ["refusal", "reasoning", "content"])
async def test_half_a_character_in_any_text_is_replaced(field: str) -> None:
    delta = b'data: {"choices": [{"delta": {"%s": "no \\ud83d"}, "finish_reason": "a\\ud83d"}]}\n\n' % field.encode()
    outcome, _ = await outcome_of([HEAD, delta])
    assert outcome.problem is not None and "no \ufffd" in outcome.problem.detail
