"""Ceilings of cost: which councils may have one, and the prices that it is reserved by."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.components.routes.served import Served, served

ROLES: dict[str, Any] = {
    "engines": {
        "small": {"url": "http://small", "prices": {"currency": "EUR", "prompt": 0.5, "completion": 1.5}},
        "large": {"url": "http://large", "prices": {"currency": "EUR", "prompt": 0.1, "cached": 1, "completion": 4}},
        "local": {"url": "http://local"},
    },
    "roles": {
        "DEV": {"persona": "p", "engines": ["small"], "fallback": ["large"]},
        "QA": {"persona": "p", "engines": ["small"]},
        "OPS": {"persona": "p", "engines": ["small", "local"]},
        "DATA": {"persona": "p"},
    },
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncGenerator[Served, None]:
    file = tmp_path / "roles.yaml"
    file.write_text(yaml.safe_dump(ROLES))
    async with served(roles_file=file) as running:
        yield running


async def test_a_ceiling_is_recorded_with_the_dearest_prices_of_each_role(gateway: Served) -> None:
    council = [{"role": "QA"}, {"role": "DEV"}, {"role": "QA"}]
    id = await gateway.accepted(agents=council, budget={"max_cost": 0.05, "max_calls": 9})
    budget = (await gateway.client.get(f"/deliberations/{id}")).json()["budget"]
    dev = {"role": "DEV", "currency": "EUR", "prompt": 1.0, "cached": None, "completion": 4.0}
    assert budget == {
        "max_tokens": None,
        "max_calls": 9,
        "max_cost": 0.05,
        "prices": [dev, {**dev, "role": "QA", "prompt": 0.5, "completion": 1.5}],
    }


@pytest.mark.parametrize(
    ("role", "engine"), [("OPS", "local (http://local)"), ("DATA", "the default engines")], ids=["one of two", "none"]
)
async def test_a_ceiling_needs_prices_of_every_engine(gateway: Served, role: str, engine: str) -> None:
    refused = await gateway.post({"task": "t", "role": role, "budget": {"max_cost": 1}})
    assert refused.status_code == 422
    (fault,) = refused.json()["errors"]
    assert (fault["pointer"], fault["code"]) == ("/budget/max_cost", "unpriced_role")
    assert fault["detail"] == f"Role {role} has an engine without prices: {engine}"
    assert "with `prices` (0 for a free one)" in fault["remedy"]
    assert (await gateway.post({"task": "t", "role": role})).status_code == 202


@pytest.mark.parametrize("max_cost", [0.000001, 1_000_000, 0.1])
async def test_a_ceiling_is_kept_exactly(gateway: Served, max_cost: float) -> None:
    id = await gateway.accepted(budget={"max_cost": max_cost})
    assert (await gateway.client.get(f"/deliberations/{id}")).json()["budget"]["max_cost"] == max_cost


async def test_a_ceiling_that_no_stage_fits_ends_as_budget_exhausted(gateway: Served) -> None:
    id = await gateway.accepted(role="QA", budget={"max_cost": 0.000001})
    await gateway.play(id)
    ended = (await gateway.client.get(f"/deliberations/{id}")).json()
    assert (ended["status"], ended["problem"]["code"]) == ("failed", "budget_exhausted")
    assert "which may cost 0.0" in ended["problem"]["detail"]
    assert "budget.max_cost is 0.000001 EUR. Raise it" in ended["problem"]["detail"]


async def test_a_deliberation_ends_within_its_ceiling_with_the_best_verdict(gateway: Served) -> None:
    # Three answers of 2,048 tokens at 1.5 cost 0.0093 EUR. A round of critiques and revisions does not fit besides.
    id = await gateway.accepted(role="QA", budget={"max_cost": 0.0115})
    await gateway.play(id)
    ended = (await gateway.client.get(f"/deliberations/{id}")).json()
    assert (ended["status"], ended["degraded"]["reasons"][-1]) == ("completed", "budget")
    assert {cut["by"] for cut in ended["degraded"]["cut"]} == {"cost"}
    assert ended["verdict"]["winner"] is not None
