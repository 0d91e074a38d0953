"""Whole councils, answered by a real vLLM: through `deliberate up --engine-url`, and by agents over real weights.

What random weights say is noise, and what the real ones say is weak; what is asserted is the protocol, the structure
and the accounting.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmarks.engines.councils import Product, bounded, run
from benchmarks.prefix import ROLES
from tests.e2e.conftest import start_up, stop_up
from tests.vllm.protocol import Chat
from tests.vllm.server import Engine, vllm_server

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def gateway(vllm_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    process, ready = start_up(tmp_path_factory.mktemp("up"), "--engine-url", vllm_engine.url)
    with httpx.Client(base_url=ready["url"], timeout=70) as client:
        yield client
    stop_up(process)


def verdict_of(gateway: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    deliberation = gateway.post("/deliberations", json=body, headers={"Prefer": "wait=60"}).raise_for_status().json()
    path = f"/deliberations/{deliberation['id']}"
    while deliberation["ended_at"] is None:
        headers = {"Prefer": "wait=60", "If-None-Match": f'"{deliberation["id"]}-{deliberation["revision"]}"'}
        answer = gateway.get(path, headers=headers)
        deliberation = answer.json() if answer.status_code == 200 else deliberation
    return deliberation


def test_a_council_of_three_is_answered_by_vllm(gateway: httpx.Client, vllm_engine: Engine) -> None:
    with httpx.Client(base_url=vllm_engine.url, timeout=60) as client:
        chat = Chat(client, vllm_engine.model)
        before = chat.until_idle()
        found = verdict_of(gateway, {"task": "Name a good sorting algorithm.", "num_agents": 3, "seed": 1})
        after = chat.until_idle()
    assert found["status"] == "completed", found["problem"]
    assert len(found["verdict"]["ranking"]) >= 2 and found["verdict"]["content"]
    assert {proposal["model"] for proposal in found["proposals"]} == {vllm_engine.model}
    usage = found["usage"]
    assert usage["by_stage"][0]["purpose"] == "propose"
    assert usage["calls"] >= 9
    # The gateway's usage equals vLLM's counters: nothing is estimated.
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    assert usage["prompt_tokens"] == spent["vllm:prompt_tokens_total"]
    assert usage["completion_tokens"] == spent["vllm:generation_tokens_total"]


def test_roles_say_that_no_simulator_answers(gateway: httpx.Client, vllm_engine: Engine) -> None:
    roles = gateway.get("/roles").raise_for_status().json()
    (dev,) = [role for role in roles["items"] if role["name"] == "DEV"]
    assert dev["live"]["simulated"] is False and dev["live"]["models"] == [vllm_engine.model]


@pytest.mark.weights
def test_real_weights_bring_a_vote_and_a_council_to_their_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of three each, one must end: texts of so weak a model run on until their tokens are spent."""
    with vllm_server(tmp_path_factory.mktemp("vllm") / "vllm.log", real=True) as engine:
        for strategy in ("vote", "council"):
            asked = [bounded(number, strategy, 3, max_tokens=256) for number in (1, 2, 3)]
            found = asyncio.run(run(Product([engine.url], ROLES[:3]), asked, at_once=3))
            assert found.councils >= 1
            assert found.cached_share > 0.3
            assert 2 < found.answer_tokens < 256
