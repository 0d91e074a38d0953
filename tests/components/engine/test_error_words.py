"""What is read of an engine's errors: its own words on one line, and the cause that they tell."""

import json

import httpx
import pytest

from app.deliberation.engine_troubles import TroubleCause
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.client import Engines
from serve_deployments.engine.error_words import WORDS_MAX, cause_of_status, own_words
from serve_deployments.engine.state import EngineState, refusal_of

MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": MEMORY, "type": "server_error"}}, MEMORY),
        ({"error": MEMORY}, MEMORY),
        ({"message": MEMORY, "code": 500}, MEMORY),
        ({"detail": [{"loc": ["body"], "msg": "too long"}]}, "too long"),
        ({"object": "error", "message": "two\n\tlines\u001b[31m red\u202e"}, "two lines [31m red"),
        ({"unknown": 1}, '{"unknown": 1}'),
        ("<html><head><title>503 Service\n Unavailable</title></head></html>", "503 Service Unavailable"),
        ("upstream connect error\x00", "upstream connect error"),
        ("", ""),
    ],
)
def test_an_errors_own_words_are_one_line_without_control_characters(body: object, words: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    assert own_words(content.encode()) == words


@pytest.mark.parametrize("deep", [1_000, 100_000])
def test_words_of_a_deep_or_broken_body_are_bounded(deep: int) -> None:
    engine = EngineState(EngineSpec(url="http://e"))
    for content in (b'{"error":' * deep, b"[" * deep + b"]" * deep, b"\xff" * deep):
        assert len(engine.quote(content)) <= WORDS_MAX


def test_a_key_in_an_errors_words_is_hidden_however_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-hidden-" + "k" * 40
    monkeypatch.setenv("HOSTED_KEY", key)
    engine = EngineState(EngineSpec(url="http://e", name="e", api_key_env="HOSTED_KEY"))
    escaped = key.replace("h", "\\u0068")
    for text in (f"bad key {key}", "x" * (WORDS_MAX - 20) + key):
        for written in (text, text.replace(key, escaped)):
            quoted = engine.quote(f'{{"error": {{"message": "{written}"}}}}'.encode())
            assert key[:12] not in quoted and len(quoted) <= WORDS_MAX


@pytest.mark.parametrize(
    ("status", "words", "cause"),
    [
        (503, "CUDA out of memory", "memory"),
        (500, "torch.OutOfMemoryError: HIP", "memory"),
        (503, "Loading model", "loading"),
        (500, "internal", "errors"),
        (429, "rate limited", "throttled"),
        (404, "The model `m-9` does not exist.", "model"),
        (400, "bad request", "refusal"),
    ],
)
def test_status_and_words_tell_the_cause(status: int, words: str, cause: TroubleCause) -> None:
    assert cause_of_status(status, words) == cause


@pytest.mark.parametrize("named", [None, "m-1"])
async def test_an_engine_without_memory_says_so_once_with_the_remedy(named: str | None) -> None:
    answer = httpx.Response(503, json={"error": {"message": MEMORY}})
    engines = Engines([EngineSpec(url="http://e", model=named)], transport=httpx.MockTransport(lambda _: answer))
    await engines.probe()
    trouble = engines.engines[0].trouble(0.0)
    assert trouble is not None and trouble.cause == "memory"
    assert trouble.detail == f"is out of memory: its list of models was answered with 503: {MEMORY}"
    assert "--max-model-len" in trouble.remedy


async def test_calls_that_are_refused_show_why_until_one_is_taken() -> None:
    engine = EngineState(EngineSpec(url="http://e"))
    content = json.dumps({"error": {"message": MEMORY}}).encode()
    assert str(refusal_of(engine, 503, httpx.Headers(), content)).endswith(f"answered 503: {MEMORY}")
    trouble = engine.trouble(0.0)
    assert trouble is not None and trouble.detail == f"is out of memory: it answered 503: {MEMORY}"
    engine.accepts_key(probe=True)
    assert engine.trouble(0.0) is not None, "a list of models is no answer"
    engine.accepts_key()
    assert engine.trouble(0.0) is None


async def test_an_engine_that_takes_connections_and_says_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = False

    def silent(_: httpx.Request) -> httpx.Response:
        if answers:
            return httpx.Response(200, json={"data": [{"id": "m-1"}]})
        raise httpx.ReadTimeout("")

    engines = Engines([EngineSpec(url="http://e", model="m-1")], transport=httpx.MockTransport(silent))
    (engine,) = engines.engines
    await engines.probe()
    trouble = engine.trouble(0.0)
    assert trouble is not None and (trouble.cause, engine.healthy) == ("silent", True)
    answers = True
    await engines.probe()
    assert engine.trouble(0.0) is None
