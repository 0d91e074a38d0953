"""Engines that send without end, in vain, or what cannot be: each call ends, within bounds, and others go on."""

import asyncio
import gzip
import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from app.deliberation.facts import CallFinished, decode, encode
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import LIST_BYTES_MAX, Engines
from serve_deployments.engine.state import RETRY_AFTER_MAX_S, retry_after_s
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.test_agent_replica import ANSWER, PERSONA, call, outcomes, request
from tests.integration.engine.raw_engine import LIST, RawEngine, whole

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
MAX_TOKENS = 64


def chunk(text: str = "", finish: str | None = None, **more: object) -> bytes:
    body = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def answered(**more: object) -> list[bytes]:
    return [HEAD, chunk(ANSWER), chunk(finish="stop", **more), b"data: [DONE]\n\n"]


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


FLOODS = {
    "a text far beyond max_tokens": [HEAD, *([chunk("word " * 2_000)] * 2_000)],
    "reasoning without end": [
        HEAD,
        *([b'data: {"choices": [{"delta": {"reasoning": "%s"}}]}\n\n' % (b"x" * 10_000)] * 2_000),
    ],
    "a line without end": [HEAD, b"data: {", *([b" " * 100_000] * 300)],
    "pings without end": [HEAD, *([b": ping\n\n" * 10_000] * 300)],
    "empty events without end": [HEAD, *([b'data: {"choices": []}\n\n' * 5_000] * 200)],
    "a whole completion without end": [
        HEAD.replace(b"event-stream", b"plain"),
        b'{"choices": "',
        *([b"x" * 100_000] * 300),
    ],
}


@pytest.mark.parametrize("pieces", FLOODS.values(), ids=FLOODS.keys())
async def test_a_flood_is_cut_off_and_named_within_its_bytes(pieces: list[bytes]) -> None:
    began_s = time.process_time()
    outcome, journal = await outcome_of(pieces)
    assert outcome.problem is not None
    assert any(word in outcome.problem.detail for word in ("more than", "was cut off", "has more than"))
    assert sum(len(record.data) for record in journal.records) < 1_000_000
    assert time.process_time() - began_s < 15, "three attempts at ten megabytes each"


USAGES = [
    {"prompt_tokens": int("9" * 4_000), "completion_tokens": 5},
    {"prompt_tokens": -1, "completion_tokens": -5},
    {"prompt_tokens": 1e30, "completion_tokens": 1e30},
    {"prompt_tokens": "12", "completion_tokens": True},
    {"prompt_tokens": 10, "completion_tokens": 65},
    {"prompt_tokens": 10, "completion_tokens": 0},
    {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 11}},
    {"prompt_tokens": 10.5, "completion_tokens": 5},
]


@pytest.mark.parametrize("usage", USAGES, ids=range(len(USAGES)))
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


LISTS = {
    "200 kB of brackets": whole(b"[" * 200_000),
    "a megabyte of names": whole(b'{"data": [{"id": "%s"}]}' % (b"m" * LIST_BYTES_MAX)),
    "a gzip of 50 MB": whole(gzip.compress(b" " * 50_000_000), headers="Content-Encoding: gzip\r\n"),
    "an encoding that is none": whole(LIST, headers="Content-Encoding: zstd\r\n"),
    "no gzip": whole(LIST, headers="Content-Encoding: gzip\r\n"),
    "a number": whole(b"7"),
    "names that are none": whole(b'{"data": [{"id": 7}, {"id": null}, {}, [], "' + b"m" * 3_000 + b'"]}'),
    "numbers of 5,000 digits": whole(b'{"data": ' + b"9" * 5_000 + b"}"),
    "a lone surrogate": whole(b'{"data": [{"id": "\\ud83d"}]}'),
}


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
    error = [b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n", *([b"no " * 100_000] * 50)]
    outcome, _ = await outcome_of(error)
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
