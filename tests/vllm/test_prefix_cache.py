"""The prefix cache of a real vLLM on the prompts of whole deliberations, whose texts are simulated.

The simulator's cache counts as vLLM's does, and the prompts' order of texts lets vLLM reach the ideal share.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import pytest

from benchmarks.agent_loop import MEMBERS, shares
from benchmarks.prefill import Floors
from benchmarks.prefix import ROLES, SIZES, Sent, specification, stages
from serve_deployments.engine.request_body import request_body
from serve_deployments.simulator.server.engine import PrefixCache
from tests.vllm.protocol import CHAT
from tests.vllm.server import BLOCK_TOKENS, Engine

pytestmark = pytest.mark.vllm
RESULT_CHARS = 600


class Replay:
    """Prompts that vLLM is asked with; prompts under another `salt` are not found."""

    def __init__(self, client: httpx.Client, engine: Engine, salt: str) -> None:
        self._client, self._model, self._salt = client, engine.model, salt

    def _post(self, path: str, **fields: Any) -> dict[str, Any]:
        return self._client.post(path, json={"model": self._model, **fields}).raise_for_status().json()

    def _messages(self, sent: Sent) -> list[dict[str, Any]]:
        return json.loads(request_body(sent.call, self._model, sent.call.seed, stream=False))["messages"]

    def count(self, text: str) -> int:
        return self._post("/tokenize", prompt=text, add_special_tokens=False)["count"]

    def blocks(self, sent: Sent) -> tuple[list[str], int]:
        tokens = self._post("/tokenize", messages=self._messages(sent))["tokens"]
        starts = range(0, len(tokens), BLOCK_TOKENS)
        return [str(tokens[start : start + BLOCK_TOKENS]) for start in starts], len(tokens)

    def admit(self, sent: Sent) -> tuple[int, int]:
        """The tokens of the prompt, and those that vLLM found in its cache."""
        answered = self._post(CHAT, messages=self._messages(sent), max_tokens=1, cache_salt=self._salt)["usage"]
        return answered["prompt_tokens"], answered["prompt_tokens_details"]["cached_tokens"]

    def cached(self, stage: Sequence[Sent], *, at_once: bool) -> list[int]:
        with ThreadPoolExecutor(len(stage) if at_once else 1) as threads:
            return [cached for _, cached in threads.map(self.admit, stage)]


@pytest.fixture
def replay(vllm_engine: Engine, request: pytest.FixtureRequest) -> Iterator[Replay]:
    with httpx.Client(base_url=vllm_engine.url, timeout=60) as client:
        yield Replay(client, vllm_engine, request.node.name)


@pytest.mark.parametrize("roles", [1, 4], ids=["one role", "a role each"])
@pytest.mark.parametrize("strategy", ["council", "tournament", "debate"])
@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_the_simulator_counts_the_cached_tokens_that_vllm_reports(
    replay: Replay, strategy: str, at_once: bool, roles: int
) -> None:
    simulated = PrefixCache(block_tokens=BLOCK_TOKENS)
    found: list[int] = []
    for stage in stages(specification(1, strategy, SIZES[strategy], ROLES[:roles])):
        expected = [simulated.admit(*replay.blocks(each), None) for each in stage]
        reported = replay.cached(stage, at_once=at_once)
        # The order of calls that arrive together is open, and so which of them is the first; the sum is not.
        assert sum(reported) == sum(expected)
        assert at_once or reported == expected
        found += reported
    assert found.count(0) == 1, "only the first prompt of all finds nothing"


@pytest.mark.parametrize("task_tokens", [200, 2_000])
@pytest.mark.parametrize("strategy", [strategy for strategy, size in SIZES.items() if size > 1])
def test_vllm_reaches_the_ideal_cached_share_of_the_prompts_order(
    replay: Replay, strategy: str, task_tokens: int
) -> None:
    floors = Floors(cache(replay.count))
    prompt_tokens = cached_tokens = 0
    size = SIZES[strategy]
    for place, stage in enumerate(stages(specification(1, strategy, size, ROLES[:size], task_tokens))):
        for each in stage:
            floors.add(1, place, each.prompt.rendered)
            prompt_tokens += replay.blocks(each)[1]
        cached_tokens += sum(replay.cached(stage, at_once=True))
    assert cached_tokens >= 0.95 * (prompt_tokens - floors.in_order)


@pytest.mark.parametrize("strategy", MEMBERS)
def test_vllm_computes_each_turn_of_an_agents_loop_once(replay: Replay, strategy: str) -> None:
    _, achieved, ideal = shares(strategy, MEMBERS[strategy], replay.admit, cache(replay.count), RESULT_CHARS)
    assert achieved >= 0.95 * ideal
