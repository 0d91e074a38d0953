"""The simulator's prefix cache counts as vLLM's does, for the prompts of whole deliberations."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from benchmarks.prefix import ROLES, Sent, specification, stages, with_persona
from serve_deployments.simulator.server.engine import PrefixCache
from tests.vllm.protocol import CHAT
from tests.vllm.server import BLOCK_TOKENS, Engine

pytestmark = pytest.mark.vllm


@pytest.fixture
def client(vllm_engine: Engine) -> Any:
    with httpx.Client(base_url=vllm_engine.url, timeout=60) as client:
        yield client


def body(engine: Engine, each: Sent) -> dict[str, Any]:
    return {"model": engine.model, "messages": [message.model_dump() for message in with_persona(each.call).messages]}


def blocks(client: httpx.Client, engine: Engine, each: Sent) -> tuple[list[str], int]:
    tokens = client.post("/tokenize", json=body(engine, each)).raise_for_status().json()["tokens"]
    starts = range(0, len(tokens), BLOCK_TOKENS)
    return [str(tokens[start : start + BLOCK_TOKENS]) for start in starts], len(tokens)


def cached(client: httpx.Client, engine: Engine, each: Sent, salt: str) -> int:
    asked = body(engine, each) | {"max_tokens": 1, "cache_salt": salt}
    usage = client.post(CHAT, json=asked).raise_for_status().json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("strategy", "size"), [("council", 3), ("tournament", 4), ("debate", 3)])
@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_the_simulator_counts_the_cached_tokens_that_vllm_reports(
    client: httpx.Client, vllm_engine: Engine, strategy: str, size: int, at_once: bool
) -> None:
    cache = PrefixCache(block_tokens=BLOCK_TOKENS)
    salt = f"{strategy} {at_once}"
    found: list[int] = []
    for stage in stages(specification(1, strategy, size, ROLES[:size])):
        expected = [cache.admit(*blocks(client, vllm_engine, each), None) for each in stage]
        with ThreadPoolExecutor(len(stage) if at_once else 1) as threads:
            reported = list(threads.map(lambda each: cached(client, vllm_engine, each, salt), stage))
        # The order of calls that arrive together is open, but not how many of their tokens are computed.
        assert sum(reported) == sum(expected)
        assert at_once or reported == expected
        found += reported
    assert found[0] == 0 and all(found[1:])
