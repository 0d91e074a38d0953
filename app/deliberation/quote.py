"""The price of a deliberation before it runs: its strategy runs over outcomes that no engine wrote.

A text in such an outcome is a mark, which stands for a completion of a length that is set afterwards. So calls and
prompts are the strategy's own, and prompts that quote the longest answers stay short.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from app.deliberation.budget import BYTES_PER_TOKEN, needs_of_first_stage, refused_by
from app.deliberation.calls import Call, Cost, Usage, UsageCost
from app.deliberation.choice.anonymity import nonce
from app.deliberation.decider import Outcomes, StrategyDefinition
from app.deliberation.errors import EngineUnavailable
from app.deliberation.facts import CallFinished, FactProblem
from app.deliberation.outputs import VERSION_KINDS, Output, json_schema
from app.deliberation.prompts.form import persona_section, schema_section
from app.deliberation.roles import Role
from app.deliberation.specification import Budget, Purpose, Specification, Value

TEMPLATE_TOKENS = 64
"""Tokens by which an engine's chat template lengthens a prompt at most, as is assumed."""
ASSUMED_TOKENS = 400
ASSUMED_BYTES_PER_TOKEN = 4
ASSUMED_SHARE = 0.5
# A repair shows so many failed tests, each cut, with a reason of 500 characters at most (`execute`, `sandbox/verdict`).
_TESTS_SHOWN, _TEST_CHARS, _REASONS_BYTES = 8, 4_000, 8 * 3 * 500
_REASONS_TYPICAL_TOKENS = 100
_AS_LETTERS = str.maketrans("0123456789", "ghijklmnop")
_NO_ANSWER = FactProblem(code=EngineUnavailable.code, detail="as is assumed", retryable=True)
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Means:
    """Means over what the tenant's deliberations made: calls of a like one, and by role tokens of a completion.

    `cached` is the share of a role's prompt tokens that were cached. `counts` has the calls behind a role's means.
    """

    deliberations: int = 0
    calls: float = 0.0
    completion: Mapping[str, float] = field(default_factory=dict[str, float])
    cached: Mapping[str, float] = field(default_factory=dict[str, float])
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


class QuotedStage(Value, frozen=True):
    """All stages of one purpose in one round."""

    purpose: Purpose
    round: int
    at_most: Usage
    expected: Usage


class QuoteHistory(Value, frozen=True):
    """The completed deliberations of the last 30 days behind `expected`; a number of 0 is an assumption."""

    deliberations: int = Field(description="Of the same strategy, size and rounds. 0: half-way from fewest to most calls")
    calls_by_role: dict[str, int] = Field(description=f"0: {ASSUMED_TOKENS} tokens for an answer of the role")


class BudgetOutlook(Value, frozen=True):
    """How far the budget of the request goes, and why not further."""

    covers: Literal["at_most", "expected", "first_stage", "nothing"] = Field(
        description="`first_stage`: later stages may be left out; `nothing`: the deliberation would fail"
    )
    detail: str | None


class Quote(Value, frozen=True):
    """The price of a deliberation that does not run: one request for each call, before repeated attempts.

    Texts count as in budgets, a token for every three bytes; `expected` takes four. Costs are at the dearest engine of
    each role; without prices `cost` is null.
    """

    strategy: str
    members: int
    at_most: Usage = Field(description="Of the dearest way: stages that exclude each other are not added up")
    expected: Usage
    stages: tuple[QuotedStage, ...]
    budget: BudgetOutlook | None = Field(description="Null without a budget")
    history: QuoteHistory | None = Field(description="Null without the scope `read`, which `expected` then goes without")


@dataclass(frozen=True, slots=True)
class _Text:
    """A text that no engine wrote: a completion of a role, or with an empty one a sandbox's reasons."""

    role: str
    tokens_max: int

    def expected(self, means: Means) -> float:
        typical = means.completion.get(self.role, ASSUMED_TOKENS) if self.role else _REASONS_TYPICAL_TOKENS
        return min(typical, self.tokens_max)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A call as a run asks it; `quoted` are the unwritten texts in its prompt, which `bytes` does not count."""

    place: tuple[Purpose, int]
    call: Call
    bytes: int
    quoted: tuple[_Text, ...]

    def at_most(self, role: Role, extra_bytes: int) -> Usage:
        added = _schema_bytes(self.call.output) + len(persona_section(role.persona).encode())
        own = (self.bytes + extra_bytes + added) // BYTES_PER_TOKEN
        prompt = own + TEMPLATE_TOKENS + sum(text.tokens_max for text in self.quoted)
        return self._priced(role, prompt, self.call.max_tokens)

    def expected(self, role: Role, extra_bytes: int, means: Means) -> Usage:
        own = (self.bytes + extra_bytes + len(role.persona.encode())) // ASSUMED_BYTES_PER_TOKEN
        prompt = round(own + sum(text.expected(means) for text in self.quoted))
        written = round(_Text(self.call.role, self.call.max_tokens).expected(means))
        return self._priced(role, prompt, written, round(prompt * means.cached.get(self.call.role, 0.0)))

    def _priced(self, role: Role, prompt: int, completion: int, cached: int = 0) -> Usage:
        used = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, calls=1)
        return used.at(role.dearest(self.call.role))


class _Run:
    """One run of a strategy. All agents `agree`, or every text differs and every critic and check finds a fault.

    Calls that are `silent` have no answer.
    """

    def __init__(
        self, asked: Specification, silent: Callable[[Call], bool] = lambda _: False, *, agree: bool = False
    ) -> None:
        self._asked = asked
        self._silent = silent
        self._agree = agree
        self._tag = nonce(asked.seed, "quote").translate(_AS_LETTERS)
        self._mark = re.compile(f"{self._tag}([g-p]{{6}})")
        self._texts: list[_Text] = []

    def planned(self, definition: StrategyDefinition) -> list[_Planned]:
        strategy, found = definition.run(self._asked), list[_Planned]()
        try:
            ask = next(strategy)
            while True:
                found += [self._read((ask.purpose, ask.round), call) for call in ask.calls if call.check is None]
                ask = strategy.send(Outcomes({call.call_id: self._finished(call, ask.round) for call in ask.calls}))
        except StopIteration:
            return found

    def _read(self, place: tuple[Purpose, int], call: Call) -> _Planned:
        size, quoted = 0, list[_Text]()
        for message in call.messages:
            marks = self._mark.findall(message.content)
            size += len(message.content.encode()) - len(marks) * (len(self._tag) + 6)
            quoted += [self._text_of(mark) for mark in marks]
        return _Planned(place, call, size, tuple(quoted))

    def _text_of(self, mark: str) -> _Text:
        return self._texts[int("".join(str(ord(letter) - ord("g")) for letter in mark))]

    def _marked(self, role: str, tokens_max: int) -> str:
        self._texts.append(_Text(role, tokens_max))
        return self._tag + f"{len(self._texts) - 1:06}".translate(_AS_LETTERS)

    def _finished(self, call: Call, round: int) -> CallFinished:
        silent = self._silent(call)
        return CallFinished(
            deliberation_id="quote",
            ts=_NEVER,
            call_id=call.call_id,
            agent_id=call.agent_id,
            role=call.role,
            stage=1,
            attempt=1,
            text=None if silent else json.dumps(self._said(call, round)),
            problem=_NO_ANSWER if silent else None,
            duration_ms=0,
        )

    def _said(self, call: Call, round: int) -> dict[str, Any]:
        kind, agree = call.output.kind, self._agree
        # In agreement all give the first text again.
        first = agree and kind in VERSION_KINDS and self._texts
        text = self._tag + "g" * 6 if first else self._marked(call.role, call.max_tokens)
        match kind:
            case "answer" | "fusion":
                return {"reasoning": ".", "answer": text}
            case "program":
                return {"reasoning": ".", "code": text}
            case "revision":
                return {"responses": [], "answer": text}
            case "turn":
                return {"reasoning": ".", "error": "x", "answer": text}
            case "critique":
                issue = {"severity": "blocker", "where": "", "claim": text, "evidence": "", "fix": ""}
                return {"issues": [] if agree else [issue], "verdict": "accept" if agree else "reject"}
            case "score":
                return {label: self._scored(call, candidate, round) for label, candidate in call.labels.items()}
            case "pair":
                return {"notes_a": "", "notes_b": "", "winner": "A", "margin": 1}
            case "choice":
                return {"reasoning": "", "choice": call.output.labels[0]}
            case "analysis":
                return {"agreements": [text], "conflicts": [], "gaps": []}
            case "tests":
                test = {"name": text, "call": "f", "arguments": [], "expected": call.call_id}
                return {"reasoning": ".", "tests": [test]}
            case "report":
                return self._report(call)

    def _scored(self, call: Call, candidate: str, round: int) -> dict[str, Any]:
        """Scores that rise with every round and put another author first, so that no rounds end early by them."""
        author, _, version = candidate.partition("#")
        place = next(at for at, agent in enumerate(self._asked.agents) if agent.agent_id == author)
        score = min(10, 2 * round - 1 + ((place + round) % self._asked.size == 0)) if version else 0
        return {"criteria": [{"id": each, "rationale": "", "score": score} for each in call.output.criteria]}

    def _report(self, call: Call) -> dict[str, Any]:
        """A report on a program that passes all tests, or cannot be run for a reason as long as the longest tests."""
        tests = call.check.tests if call.check is not None else ()
        outcome = {"passed": self._agree, "reason": "", "duration_ms": 0}
        outcomes = [{"name": "", **outcome} for _ in tests]
        if self._agree:
            return {"fault": "", "outcomes": outcomes}
        written = [test.name for test in tests if self._mark.fullmatch(test.name)]
        written.sort(key=lambda name: -self._text_of(name.removeprefix(self._tag)).tokens_max)
        given = [f"{test.name}{json.dumps(test.data)}"[:_TEST_CHARS] for test in tests if test.name not in written]
        shown = [*written[:_TESTS_SHOWN], *sorted(given, key=len)[-_TESTS_SHOWN:]]
        reasons = self._marked("", _REASONS_BYTES // BYTES_PER_TOKEN)
        return {"fault": "\n".join([*shown, reasons]), "outcomes": outcomes}


def quote(
    specification: Specification, definition: StrategyDefinition, roles: Mapping[str, Role], history: Means | None
) -> Quote:
    """The price of a specification, with the expected one by these means. Takes up to a second of processor time."""
    bare, means = _bare(specification), history or Means()
    first = next(definition.run(specification))
    differing = _Run(bare).planned(definition)
    extra_bytes = _bytes(first.calls[0]) - differing[0].bytes
    few = {agent.agent_id for agent in specification.agents[2:]} if 2 < specification.quorum else set[str]()
    # Members without an answer judge the answers of two others; without any ballot a round is scored once more.
    ways, places = [differing], {each.place for each in differing}
    ways += [_Run(bare, lambda call: call.agent_id in few and call.output.kind == "answer").planned(definition)] * bool(few)
    if any(("revise", each.place[1]) in places for each in differing if each.call.output.kind == "score"):
        ways.append(_Run(bare, lambda call: call.output.kind == "score").planned(definition))
    bounds = [_by_stage(way, lambda each: each.at_most(roles[each.call.role], extra_bytes)) for way in ways]
    expected = [
        _by_stage(way, lambda each: each.expected(roles[each.call.role], extra_bytes, means))
        for way in (_Run(bare, agree=True).planned(definition), differing)
    ]
    fewest, most = (sum(each.calls for each in way.values()) for way in expected)
    share = ASSUMED_SHARE
    if means.deliberations and most > fewest:
        share = max(0.0, min(1.0, (means.calls - fewest) / (most - fewest)))
    stages = tuple(
        QuotedStage(
            purpose=place[0],
            round=place[1],
            at_most=_largest(way.get(place, Usage()) for way in bounds),
            expected=_between(*(way.get(place, Usage()) for way in expected), share),
        )
        for place in dict.fromkeys(place for way in bounds for place in way)
    )
    at_most = _largest(Usage.total(list(way.values())) for way in bounds)
    total = Usage.total([stage.expected for stage in stages])
    refused = refused_by(specification.budget, Cost(), first.calls, first.reserve)
    return Quote(
        strategy=specification.strategy,
        members=specification.size,
        at_most=at_most,
        expected=total,
        stages=stages,
        budget=_outlook(
            specification.budget, at_most, total, needs_of_first_stage(specification.budget, first.calls) if refused else ""
        ),
        history=history
        and QuoteHistory(
            deliberations=means.deliberations,
            calls_by_role={agent.role: means.counts.get(agent.role, 0) for agent in specification.agents},
        ),
    )


def _bare(specification: Specification) -> Specification:
    """The specification without its texts, which every prompt repeats, and without a budget.

    Answers are compared as texts: every two of them can differ then, in whatever form they are counted.
    """
    constraints = specification.constraints.model_copy(update={"requirements": (), "metadata": {}})
    changes = {"task": "", "evidence": (), "constraints": constraints, "budget": Budget()}
    return specification.model_copy(update={**changes, "parameters": _as_texts(specification.parameters)})


def _as_texts(parameters: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if parameters.get("normaliser", "none") != "none":
        changes = {"normaliser": "text", "options": []}
    if "escalation" in parameters:
        changes["escalation"] = _as_texts(parameters["escalation"])
    return {**parameters, **changes}


@lru_cache(maxsize=256)
def _schema_bytes(output: Output) -> int:
    return len(schema_section(json_schema(output)).encode())


def _bytes(call: Call) -> int:
    return sum(len(message.content.encode()) for message in call.messages)


def _by_stage(
    planned: Iterable[_Planned], usage: Callable[[_Planned], Usage]
) -> dict[tuple[Purpose, int], Usage]:
    found: dict[tuple[Purpose, int], list[Usage]] = {}
    for each in planned:
        found.setdefault(each.place, []).append(usage(each))
    return {place: Usage.total(used) for place, used in found.items()}


def _largest(usages: Iterable[Usage]) -> Usage:
    found = list(usages)
    costs = [each.cost for each in found if each.cost is not None]
    cost = None
    if costs:
        unpriced = max(each.unpriced_calls for each in costs)
        amount = max(each.amount for each in costs)
        cost = UsageCost(amount=amount, currency=costs[0].currency, unpriced_calls=unpriced)
    largest = {name: max(getattr(each, name) for each in found) for name in _COUNTS}
    return Usage(**largest, cost=cost)


_COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")


def _between(fewest: Usage, most: Usage, share: float) -> Usage:
    counts = {
        name: round(getattr(fewest, name) + share * (getattr(most, name) - getattr(fewest, name))) for name in _COUNTS
    }
    dearest = most.cost or fewest.cost
    if dearest is None:
        return Usage(**counts)
    low, high = (Decimal(0) if each.cost is None else each.cost.amount for each in (fewest, most))
    amount = (low + Decimal(str(share)) * (high - low)).quantize(Decimal("0.000001"))
    cost = UsageCost(amount=amount, currency=dearest.currency, unpriced_calls=dearest.unpriced_calls)
    return Usage(**counts, cost=cost)


def _outlook(budget: Budget, at_most: Usage, expected: Usage, needs: str) -> BudgetOutlook | None:
    limits: dict[str, Any] = {"calls": budget.max_calls, "tokens": budget.max_tokens, "cost": budget.max_cost}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    if not limits:
        return None
    if needs:
        return BudgetOutlook(covers="nothing", detail=needs)

    def used(usage: Usage, name: str) -> Any:  # noqa: ANN401 -- a number or an amount
        return (usage.cost.amount if usage.cost else Decimal(0)) if name == "cost" else getattr(usage, name)

    short = [name for name, limit in limits.items() if used(at_most, name) > limit]
    if not short:
        return BudgetOutlook(covers="at_most", detail=None)
    enough = all(used(expected, name) <= limits[name] for name in short)
    told = "; ".join(
        f"budget.max_{name} is {limits[name]:,}, {used(expected, name):,} are expected and {used(at_most, name):,} possible"
        for name in short
    )
    return BudgetOutlook(
        covers="expected" if enough else "first_stage", detail=f"{told}. Stages that do not fit are left out."
    )
