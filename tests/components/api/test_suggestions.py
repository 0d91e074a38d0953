from typing import Any

import pytest

from app.api.suggestions import did_you_mean
from tests.components.routes.served import Served

MISSPELT: list[tuple[dict[str, Any], str, str]] = [
    ({"num_agent": 3}, "/num_agent", "num_agents"),
    ({"Strategy": "vote"}, "/Strategy", "strategy"),
    ({"agents": [{"role": "DEV", "cuont": 2}]}, "/agents/0/cuont", "count"),
    ({"constraints": {"rubrik": "Short."}}, "/constraints/rubrik", "rubric"),
    ({"constraints": {"timeout": 3}}, "/constraints/timeout", "timeout_seconds"),
    (
        {"constraints": {"rubric": [{"id": "a", "descripton": "b"}]}},
        "/constraints/rubric/0/descripton",
        "description",
    ),
    ({"sampling": {"max_token": 9}}, "/sampling/max_token", "max_tokens"),
    ({"budget": {"maxcalls": 9}}, "/budget/maxcalls", "max_calls"),
    ({"webhook": {"url": "https://a.example", "event": ["x"]}}, "/webhook/event", "events"),
    ({"role": "devop"}, "/role", "DEVOPS"),
    ({"agents": [{"role": "DEV"}, {"role": "ARCHITEKT"}]}, "/agents/1/role", "ARCHITECT"),
    ({"strategy": "counsil"}, "/strategy", "council"),
    ({"timeout_seconds": 3}, "/timeout_seconds", "constraints.timeout_seconds"),
    ({"max_tokens": 3}, "/max_tokens", "budget.max_tokens or sampling.max_tokens"),
    ({"constraints": {"seed": 3}}, "/constraints/seed", "seed"),
    ({"webhook": {"url": "https://a.example", "events": ["completed"]}}, "/webhook/events/0", "deliberation.completed"),
    ({"strategy": "Best-of-N"}, "/strategy", "best_of_n"),
    ({"strategy": "council", "parameters": {"critic": 2}}, "/parameters/critic", "critics"),
    ({"strategy": "best_of_n", "parameters": {"aggregation": "bordaa"}}, "/parameters/aggregation", "borda"),
]


@pytest.mark.parametrize(("given", "pointer", "meant"), MISSPELT)
async def test_a_misspelt_name_in_a_body_is_named_with_the_closest_one(
    gateway: Served, given: dict[str, Any], pointer: str, meant: str
) -> None:
    refused = await gateway.post({"task": "t", **given})
    remedies = {fault["pointer"]: fault["remedy"] for fault in refused.json()["errors"]}
    assert refused.status_code == 422
    assert remedies[pointer].startswith(f"Did you mean {meant}?")


async def test_openais_clients_learn_where_a_field_of_the_deliberation_stands(gateway: Served) -> None:
    body = {"model": "vote", "messages": [{"role": "user", "content": "x"}], "num_agents": 3}
    refused = await gateway.client.post("/v1/chat/completions", json=body)
    assert refused.json()["error"]["message"].endswith("Did you mean deliberation.num_agents?")


@pytest.mark.parametrize("given", ["", "x", "prayer", "c" * 65, "council" * 10_000, None, 7, {"council": 1}])
def test_a_name_that_is_close_to_none_gets_no_suggestion(given: object) -> None:
    assert did_you_mean(given, ("council", "vote")) == ""


async def test_a_body_full_of_unknown_fields_is_refused_quickly_and_in_bounds(gateway: Served) -> None:
    refused = await gateway.post({"task": "t", **{f"num_agent{n}": 1 for n in range(9_000)}})
    assert refused.status_code == 422
    assert len(refused.json()["errors"]) == 64
