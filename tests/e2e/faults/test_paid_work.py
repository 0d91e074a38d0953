"""Work is paid however it ends, over whole deliberations at an engine that reports no usage.

PAID_DELIBERATIONS=1000 pytest -s tests/e2e/faults/test_paid_work.py
"""

import asyncio
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from random import Random

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import TASK, own_stack
from tests.integration.simulator.server_process import running

pytestmark = pytest.mark.e2e

DELIBERATIONS = int(os.environ.get("PAID_DELIBERATIONS", "60"))
AT_ONCE = 20
# Of a token.
PRICES = {"vllm:prompt_tokens_total": Decimal("0.001"), "vllm:generation_tokens_total": Decimal("0.004")}
ROLES = """
engines:
  priced: {{url: "{url}", prices: {{prompt: 1000, completion: 4000, currency: EUR}}}}
roles:
  DEV: {{persona: You are a senior software developer., engines: [priced]}}
"""
# Each completion takes up to 1.6 s, and a tenth of the streams break.
OPTIONS = ("--duration-ms", "800", "--jitter", "1", "--lacks", "usage", "--fault", "broken-stream:0.1")


async def test_deliberations_that_end_at_any_moment_cost_what_the_engine_wrote(tmp_path: Path) -> None:
    draw, ends, cost, room = Random(7), Counter[str](), Decimal(0), asyncio.Semaphore(AT_ONCE)
    with running(*OPTIONS) as engine:
        (tmp_path / "roles.yaml").write_text(ROLES.format(url=engine.url))
        options = ("--agents", "local", "--roles", str(tmp_path / "roles.yaml"), "--engine-url", engine.url)
        async with own_stack(tmp_path / "data", *options) as stack:

            async def run() -> None:
                nonlocal cost
                async with room:
                    timeout_s, cancelled_after_s = draw.choice([1, 1, 2, 30]), draw.choice([None, draw.uniform(0, 1.5)])
                    body = {"task": TASK, "strategy": draw.choice(["single", "independent", "vote"])}
                    body |= {"constraints": {"timeout_seconds": timeout_s}}
                    answer = await stack.client.post("/deliberations", json=body)
                    if answer.status_code == 429:
                        # The queue is too long for its deadline: nothing was asked of the engine.
                        ends["refused"] += 1
                        return
                    id = answer.raise_for_status().json()["id"]
                    if cancelled_after_s is not None:
                        await asyncio.sleep(cancelled_after_s)
                        await stack.client.post(f"/deliberations/{id}/cancel", json={})
                    ended = await stack.read(id)
                    while ended["ended_at"] is None:
                        await asyncio.sleep(0.1)
                        ended = await stack.read(id)
                    ends[ended["status"]] += 1
                    costs = ended["usage"]["cost"]
                    cost += 0 if costs is None else Decimal(str(costs["amount"]))

            await asyncio.gather(*(run() for _ in range(DELIBERATIONS)))
            async with httpx.AsyncClient(base_url=engine.url) as client:
                counted = (await client.get("/metrics")).text
    owed = Decimal(0)
    for family in text_string_to_metric_families(counted):
        for sample in family.samples:
            owed += PRICES.get(sample.name, 0) * Decimal(sample.value)
    print(f"{DELIBERATIONS} deliberations, {dict(ends)}: recorded {cost} of {owed:.6f}, ratio {cost / owed:.3f}")
    assert min(ends["completed"], ends["cancelled"]) > 0
    assert cost >= owed * Decimal("0.95") > 0
