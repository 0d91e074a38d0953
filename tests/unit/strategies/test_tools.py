"""Which calls of a strategy may use tools, and how a budget bounds the uses."""

import re
from dataclasses import replace

import pytest

from app.deliberation.budget import allotted, predicted
from app.deliberation.calls import Call, Cost
from app.deliberation.specification import AgentSpec, Budget, Sampling, Specification, ToolAllowance
from app.deliberation.strategies import STRATEGIES
from tests.fakes import Reply
from tests.unit.facts_of import CouncilScript, Run, agent_ids, run, specification

ALLOWANCE = ToolAllowance(names=("look_up",), uses=4, bytes=65_536)
USERS = {"answer", "program", "critique", "revision", "turn"}


def asked(strategy: str = "council", size: int = 3, rounds: int = 1, **budget: int) -> Specification:
    agents = [
        AgentSpec(agent_id=each, role="DEV", sampling=Sampling(max_tokens=500), tools=ALLOWANCE)
        for each in agent_ids(size)
    ]
    return specification(strategy=strategy, agents=agents, rounds=rounds, budget=Budget(**budget))


def allowances(found: Run) -> list[int]:
    return [call.tools.uses for call in found.calls if call.tools is not None]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drafts_critiques_revisions_and_turns_may_use_tools_and_ballots_and_tests_may_not(strategy: str) -> None:
    found = run(asked(strategy, size=1 if strategy == "single" else 3))
    kinds = {call.output.kind for call in found.calls}
    assert {call.output.kind for call in found.calls if call.tools is not None} == kinds & USERS
    assert all(call.tools == ALLOWANCE for call in found.calls if call.tools is not None)


@pytest.mark.parametrize("strategy", ["single", "independent", "best_of_n", "council", "tournament"])
def test_the_formula_counts_the_calls_that_may_use_tools(strategy: str) -> None:
    size = 1 if strategy == "single" else 3
    found = run(asked(strategy, size=size))
    spaced = re.sub(r"(?<=[NRk)])(?=[NRk(])", "*", STRATEGIES[strategy].tool_calls.replace("·", "*"))
    assert len(allowances(found)) == eval(spaced, {"N": size, "R": 1, "k": 1})


def test_without_tools_no_call_has_some() -> None:
    assert not allowances(run(specification()))


def test_a_budget_of_uses_is_shared_by_the_calls_of_a_stage_and_what_was_used_is_not_given_again() -> None:
    calls = tuple(call for call in run(asked()).calls if call.output.kind == "answer")
    assert [call.tools and call.tools.uses for call in allotted(Budget(max_tool_uses=7), Cost(), calls)] == [3, 2, 2]
    left = allotted(Budget(max_tool_uses=7), Cost(tool_uses=5), calls)
    assert [call.tools and call.tools.uses for call in left] == [1, 1, None]
    assert allotted(Budget(), Cost(tool_uses=5), calls) == calls


def test_a_council_never_uses_more_tools_than_its_budget_allows() -> None:
    script = CouncilScript()

    def uses_all(call: Call) -> Reply:
        reply = script(call)
        uses = call.tools.uses if call.tools is not None else 0
        return replace(reply, usage=reply.usage.model_copy(update={"tool_uses": uses}))

    found = run(asked(max_tool_uses=10), uses_all)
    assert found.completed.usage.tool_uses == 10 and 0 not in allowances(found)
    assert [call.tools and call.tools.uses for call in found.calls[:3]] == [4, 3, 3]


def test_each_use_may_cost_a_further_request_and_the_budget_of_calls_counts_it() -> None:
    calls = [call for call in run(asked()).calls if call.output.kind == "answer"]
    assert predicted(Budget(), calls).calls == 3 * (1 + 4)
    assert predicted(Budget(), calls).tool_uses == 3 * 4
    bare = [call.model_copy(update={"tools": None}) for call in calls]
    assert predicted(Budget(), bare).calls == 3
    assert predicted(Budget(), calls).tokens > 5 * predicted(Budget(), bare).tokens
