"""A quote bounds each run of each strategy, whatever the agents do, and expects what the simulator's agents cost."""

import json
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from app.deliberation.calls import Call, Usage
from app.deliberation.facts import CallFinished, StageOpened
from app.deliberation.outputs import json_schema
from app.deliberation.prompts.form import persona_section, schema_section
from app.deliberation.quote import Quote, QuoteHistory, RoleHistory, quote
from app.deliberation.roles import EnginePrices, EngineSpec, Role
from app.deliberation.specification import Actions, ActionTool, AgentSpec, Evidence, Sampling, Specification
from app.deliberation.strategies import STRATEGIES
from serve_deployments.simulator.writer.outputs import Behaviour, OutputWriter
from serve_deployments.simulator.writer.prompt import PromptReader
from serve_deployments.simulator.writer.tokens import tokenize
from tests.fakes import Reply
from tests.unit.facts_of import BROKEN, CouncilScript, Run, report, run, specification
from tests.unit.strategies.every_strategy import WAYS, Script, Way

PRICES = EnginePrices(currency="USD", prompt=Decimal("0.5"), completion=Decimal("1.75"))
ROLES = {
    "DEV": Role(persona="You are a developer.", engines=(EngineSpec(url="http://gpu", prices=PRICES),)),
    "QA": Role(
        persona="You test what others wrote, with care. " * 20, engines=(EngineSpec(url="http://gpu", prices=PRICES),)
    ),
}
MAX_TOKENS = 300
ASSUMED_FACTOR, KNOWN_FACTOR = 2.5, 1.5
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def mixed(size: int) -> list[AgentSpec]:
    return [
        AgentSpec(
            agent_id=f"{role.lower()}-{number:03d}", role=role, sampling=Sampling(max_tokens=MAX_TOKENS + 40 * number)
        )
        for number, role in ((number, "QA" if number == 2 else "DEV") for number in range(1, size + 1))
    ]


def asked_of(way: Way, size: int, rounds: int, quorum: int | None = None) -> Specification:
    asked = way.asked(size, rounds=rounds, agents=mixed(size))
    evidence = (Evidence(id="adr", title="Decision", text="Colours are named in English. " * 20),)
    return asked.model_copy(update={"quorum": quorum or asked.quorum, "evidence": evidence})


def quoted(asked: Specification, history: QuoteHistory | None = None) -> Quote:
    return quote(asked, STRATEGIES[asked.strategy], ROLES, history or QuoteHistory())


def spent(call: Call, text: str) -> Usage:
    """The cost of a call where an engine shows the schema, and every text has a token for three bytes."""
    if call.check is not None:
        return Usage()
    prompt = "".join(each.content for each in call.messages)
    prompt += schema_section(json_schema(call.output)) + persona_section(ROLES[call.role].persona)
    tokens = min(call.max_tokens, len(text.encode()) // 3)
    used = Usage(prompt_tokens=len(prompt.encode()) // 3, completion_tokens=tokens, calls=1)
    return used.at(PRICES)


def longest(call: Call, draw: Random) -> str:
    """A text of letters that fills a completion but for the rest of its form."""
    return "".join(draw.choice("abcdefgh") for _ in range(max(12, 3 * call.max_tokens - 200)))


def lively(way: Way, seed: int) -> Script:
    """Agents that agree or not, object or not, fail or not, and write short or long texts, all by chance."""
    script, draw = way.script(), Random(seed)
    fails, agrees, objects, long = (draw.choice((0.0, 0.2, 0.5, 1.0)) for _ in range(4))
    fails = min(fails, 0.5)

    def scripted(call: Call) -> Reply:
        mine = Random(f"{seed} {call.call_id}")
        if mine.random() < fails:
            return Reply(problem=BROKEN, usage=spent(call, "x" * 3 * call.max_tokens))
        said = json.loads(script(call).text or "{}")
        text = (
            "A colour."
            if mine.random() < agrees
            else longest(call, mine)
            if mine.random() < long
            else f"{mine.random()}"
        )
        for name in ("answer", "code"):
            if name in said:
                said[name] = text
        if "issues" in said:
            issue = {"severity": "blocker", "where": "1", "claim": text, "evidence": "", "fix": ""}
            said["issues"] = [issue] if mine.random() < objects else []
        if "tests" in said:
            said["tests"] = [
                {"name": f"n{place}", "call": "f", "arguments": [], "expected": text} for place in range(2)
            ]
        if call.check is not None:
            found = report(
                call, lambda _, place: mine.random() > objects, "does not load" if mine.random() < 0.2 else ""
            )
            return Reply(text=found, usage=Usage())
        document = json.dumps(said)
        return Reply(text=document, usage=spent(call, document))

    return scripted


def within(ended: Run, found: Quote) -> None:
    used, most = ended.end.usage, found.at_most
    assert used.calls <= most.calls
    assert used.prompt_tokens <= most.prompt_tokens
    assert used.completion_tokens <= most.completion_tokens
    assert most.cost is not None and (used.cost is None or used.cost.amount <= most.cost.amount)
    if ended.end.participation is None or ended.end.participation.stalled:
        return
    by_stage = {(each.purpose, each.round): each.at_most for each in found.stages}
    for stage in ended.end.usage.by_stage:
        round = next(opened.round for opened in ended.all(StageOpened) if opened.stage == stage.stage)
        bound = by_stage.get((stage.purpose, round), Usage())
        assert stage.tokens <= bound.tokens and stage.calls <= bound.calls, stage


@every_way
def test_no_run_costs_more_than_its_quote(way: Way) -> None:
    for seed in range(12):
        draw = Random(seed)
        size, rounds = draw.choice((1, 2, 3, 4, 5)), draw.choice((0, 1, 2, 3))
        asked = asked_of(way, size, rounds, draw.randrange(1, size + 1))
        within(run(asked, lively(way, seed)), quoted(asked))


def test_failures_that_cost_more_calls_are_within_the_quote() -> None:
    vote = asked_of(WAYS["vote, all differ"], 5, 1, quorum=4)
    few = run(vote, CouncilScript(text=lambda call: call[-3:], failing=("s1-dev-003", "s2-dev-004", "s2-dev-005")))
    within(few, quoted(vote))
    assert few.purposes == ["propose", "propose", "judge"]
    council = asked_of(WAYS["council, scored every round"], 3, 1)
    unscored = run(council, CouncilScript(failing=[f"s4-{agent.agent_id}" for agent in council.agents]))
    assert unscored.purposes == ["propose", "critique", "revise", "score", "score"]
    within(unscored, quoted(council))


@every_way
@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_calls_at_most_are_those_of_the_formula_at_its_worst(way: Way, size: int) -> None:
    for rounds in (0, 1, 3):
        asked = asked_of(way, size, rounds)
        worst = max(
            other.calls(size, rounds)
            for other in WAYS.values()
            if (other.strategy, dict(other.parameters)) == (way.strategy, dict(way.parameters))
        )
        assert quoted(asked).at_most.calls >= worst


def simulated(call: Call) -> Reply:
    """A reply of the simulator: its words and its tokens; three of four programs pass, as it writes them."""
    if call.check is not None:
        right = Random(call.check.code).random() < 0.75
        return Reply(text=report(call, lambda _, place: right or place > 0), usage=Usage())
    texts = tuple(each.content for each in call.messages)
    texts = (*texts[:-1], texts[-1] + persona_section(ROLES[call.role].persona))
    written = OutputWriter(PromptReader(texts), Behaviour.NORMAL, Random(call.seed)).document(json_schema(call.output))
    text = json.dumps(written)
    tokens = sum(len(tokenize(each)) for each in texts)
    return Reply(
        text=text, usage=Usage(prompt_tokens=tokens, completion_tokens=len(tokenize(text)), calls=1).at(PRICES)
    )


def of_simulator(strategy: str, seed: int) -> Specification:
    way = next(way for way in WAYS.values() if way.strategy == strategy)
    agents = [each.model_copy(update={"sampling": Sampling()}) for each in mixed(3)]
    asked = way.asked(3, seed=seed, agents=agents)
    return asked.model_copy(
        update={
            "task": "Write a function that merges two sorted lists.",
            "parameters": STRATEGIES[strategy].parameters().model_dump(mode="json"),
        }
    )


def figures(used: Usage) -> tuple[float, ...]:
    assert used.cost is not None
    return used.calls, used.tokens, float(used.cost.amount)


def factor(found: Quote, runs: Sequence[Run]) -> float:
    """The larger one of expected over mean and mean over expected: of calls, tokens and cost, the worst."""
    means = [sum(each) / len(runs) for each in zip(*(figures(ended.end.usage) for ended in runs), strict=True)]
    pairs = zip(means, figures(found.expected), strict=True)
    return max(max(mean / expected, expected / mean) for mean, expected in pairs)


def history_of(runs: Sequence[Run]) -> QuoteHistory:
    by_role: dict[str, list[Usage]] = {}
    for ended in runs:
        for each in ended.all(CallFinished):
            by_role.setdefault(each.role, []).append(each.usage)
    totals = {role: Usage.total(used) for role, used in by_role.items()}
    return QuoteHistory(
        deliberations=len(runs),
        calls=sum(ended.end.usage.calls for ended in runs),
        by_role={
            role: RoleHistory(calls=each.calls, completion_tokens=each.completion_tokens)
            for role, each in totals.items()
        },
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_the_simulator_costs_is_within_a_factor_of_what_is_expected(strategy: str) -> None:
    runs = [run(of_simulator(strategy, seed), simulated) for seed in range(8)]
    assumed = quoted(of_simulator(strategy, 0))
    for ended in runs:
        within(ended, assumed)
    others = [run(of_simulator(strategy, seed), simulated) for seed in range(50, 58)]
    known = quoted(of_simulator(strategy, 0), history_of(others))
    assert factor(assumed, runs) <= ASSUMED_FACTOR
    assert factor(known, runs) <= KNOWN_FACTOR


@pytest.mark.parametrize("strategy", ["single", "vote", "auto", "best_of_n", "tournament", "council", "debate"])
@pytest.mark.parametrize("schema", [None, {"type": "object"}], ids=["replies in words", "replies of a schema"])
def test_a_council_that_decides_on_actions_has_a_quote(strategy: str, schema: dict[str, Any] | None) -> None:
    actions = Actions(tools=(ActionTool(name="read", parameters={"type": "object"}),), calls_max=1)
    priced = quoted(specification(strategy=strategy, actions=actions, answer_schema=schema))
    assert priced.at_most.tokens >= priced.expected.tokens > 0
