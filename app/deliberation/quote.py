"""The price of a deliberation before it runs: its strategy runs over placeholder outcomes.

A placeholder's text is a mark for a completion whose length is set afterwards. So the strategy itself makes the calls
and prompts, and a prompt that quotes the longest answers stays short.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import ceil
from typing import Any, Literal, NamedTuple

from pydantic import Field

from app.deliberation.budget import BYTES_PER_TOKEN, TOOL_CALL_BYTES, allotted, needs_of_first_stage, refused_by
from app.deliberation.calls import Call, Cost, Usage, UsageCost
from app.deliberation.choice.anonymity import nonce
from app.deliberation.decider import Outcomes, StrategyDefinition
from app.deliberation.facts import CallFinished
from app.deliberation.outputs import VERSION_KINDS, Output, json_schema
from app.deliberation.prompts.form import persona_section, schema_section
from app.deliberation.roles import Role
from app.deliberation.specification import Budget, Purpose, Specification, ToolAllowance, Value

TEMPLATE_TOKENS = 64
"""Tokens that an engine's chat template adds to a prompt at most, as is assumed."""
ASSUMED_BYTES_PER_TOKEN = 4
ASSUMED_TOKENS = 400
ASSUMED_REVIEW_TOKENS = 200
ASSUMED_SHARE = Decimal("0.5")
ASSUMED_TOOL_USES = 2
_COUNTS = ("calls", "prompt_tokens", "completion_tokens", "tool_uses")
_REVIEWS = ("critique", "score", "pair", "choice", "analysis")
# A repair shows this many failed tests, each cut, with a reason of at most 500 characters (`sandbox/verdict.py`).
_TESTS_SHOWN, _TEST_CHARS, _REASON_BYTES, _REASON_TOKENS = 8, 4_000, 1_500, 16
_AS_LETTERS = str.maketrans("0123456789", "ghijklmnop")


class QuotedStage(Value, frozen=True):
    """All stages of one purpose in one round. `at_most` holds if all members answer; the quote's holds in any case."""

    purpose: Purpose
    round: int
    at_most: Usage
    expected: Usage


class RoleHistory(Value, frozen=True):
    """The calls of a role, and the tokens that they wrote."""

    calls: int
    completion_tokens: int


class QuoteHistory(Value, frozen=True):
    """Means of the completed deliberations of 30 days: a quote expects the same again.

    Without any of the same strategy, size and rounds, calls half-way from fewest to most are assumed. For a role
    without calls 400 tokens are assumed for an answer, and 200 for a review.
    """

    deliberations: int = Field(default=0, description="Of the same strategy, size and rounds")
    calls: int = Field(default=0, description="The calls of these")
    by_role: dict[str, RoleHistory] = Field(default={}, description="Of all deliberations, by role")


class BudgetOutlook(Value, frozen=True):
    """The part of a deliberation that the request's budget covers, and the reason why no more."""

    covers: Literal["at_most", "expected", "first_stage", "nothing"] = Field(
        description="`first_stage`: later stages may be left out; `nothing`: the deliberation would fail"
    )
    detail: str | None


class Quote(Value, frozen=True):
    """The price of a deliberation that does not run: one request for each call, before repeated attempts.

    A call with tools makes one more after each use; `tool_uses` counts the uses.

    Costs are at the dearest engine of each role; `cost` is null where none has a price.
    """

    strategy: str
    members: int
    at_most: Usage = Field(description="Of the dearest way: stages that exclude each other are not added up")
    expected: Usage
    stages: tuple[QuotedStage, ...]
    budget: BudgetOutlook | None = Field(description="Null without a budget")
    history: QuoteHistory | None = Field(description="Null without the scope `read`: all of `expected` is assumed")


@dataclass(frozen=True, slots=True)
class _Text:
    """A placeholder for a role's completion, or with an empty role for a sandbox's report."""

    role: str
    tokens_max: int
    assumed: int

    def tokens(self, history: QuoteHistory | None) -> int:
        """The expected count by a history; without one the largest count."""
        if history is None:
            return self.tokens_max
        mean = history.by_role.get(self.role)
        return min(self.tokens_max, round(mean.completion_tokens / mean.calls) if mean else self.assumed)


def _completion(call: Call) -> _Text:
    assumed = ASSUMED_REVIEW_TOKENS if call.output.kind in _REVIEWS else ASSUMED_TOKENS
    return _Text(call.role, call.max_tokens, assumed)


_Place = tuple[Purpose, int]


@dataclass(frozen=True, slots=True)
class _Planned:
    """A call in its stage. `quoted` lists the placeholders in its prompt; `bytes` leaves them out."""

    place: _Place
    call: Call
    bytes: int
    quoted: Sequence[_Text]

    def usage(self, role: Role, extra_bytes: int, history: QuoteHistory | None) -> Usage:
        """The expected usage by a history; without one the largest, in which the prompt shows the reply's schema."""
        own = self.bytes + extra_bytes + len(persona_section(self.call.persona or role.persona).encode())
        if history is None:
            prompt = (own + _schema_bytes(self.call.output)) // BYTES_PER_TOKEN + TEMPLATE_TOKENS
        else:
            prompt = own // ASSUMED_BYTES_PER_TOKEN
        prompt += sum(text.tokens(history) for text in self.quoted)
        completion = _completion(self.call).tokens(history)
        used = Usage(prompt_tokens=prompt, completion_tokens=completion, calls=1)
        if (tools := self.call.tools) is not None:
            used = _with_tools(used, tools, most=history is None)
        return used.at(role.dearest(self.call.role))


def _with_tools(used: Usage, tools: ToolAllowance, *, most: bool) -> Usage:
    """The usage of a call that makes a request after each use; its prompts hold half of the results on average."""
    uses = tools.uses if most else min(ASSUMED_TOOL_USES, tools.uses)
    share = Decimal(uses) / tools.uses
    results = int(tools.bytes * share + uses * TOOL_CALL_BYTES) // BYTES_PER_TOKEN
    return Usage(
        prompt_tokens=(1 + uses) * used.prompt_tokens + (1 + uses) * results // 2 + results,
        completion_tokens=(1 + uses) * used.completion_tokens,
        calls=1 + uses,
        tool_uses=uses,
    )


class LeastCall(NamedTuple):
    """What the longest call of a role takes of its engine's context at least, without inputs.

    `tokens` are those of prompt and longest answer; the texts that it quotes have the lengths that a quote assumes.
    """

    role: str
    purpose: Purpose
    tokens: int


def least_calls(
    specification: Specification, definition: StrategyDefinition, roles: Mapping[str, Role]
) -> list[LeastCall]:
    """The longest call of each role. The largest council takes a second."""
    planned = _Way(_bare(specification)).planned(definition)
    first = next(definition.run(specification)).calls[0]
    own_bytes = sum(len(message.content.encode()) for message in first.messages) - planned[0].bytes
    longest = dict[str, LeastCall]()
    for plan in planned:
        call = plan.call
        persona = persona_section(call.persona or roles[call.role].persona)
        prompt = (plan.bytes + own_bytes + len(persona.encode())) // ASSUMED_BYTES_PER_TOKEN
        tokens = prompt + sum(text.assumed for text in plan.quoted) + call.max_tokens
        if call.role not in longest or tokens > longest[call.role].tokens:
            longest[call.role] = LeastCall(call.role, plan.place[0], tokens)
    return list(longest.values())


@lru_cache(maxsize=256)
def _schema_bytes(output: Output) -> int:
    return len(schema_section(json_schema(output)).encode())


class _Way:
    """A course that a deliberation may take. All members `agree`, or all texts differ and every review finds a fault.

    Calls that are `silent` have no outcome.
    """

    def __init__(
        self, asked: Specification, silent: Callable[[Call], bool] = lambda _: False, *, agree: bool = False
    ) -> None:
        self._asked, self._silent, self._agree = asked, silent, agree
        self._tag = nonce(asked.seed, "quote").translate(_AS_LETTERS)
        self._marks = re.compile(f"{self._tag}[g-p]{{6}}")
        self._texts: dict[str, _Text] = {}

    def planned(self, definition: StrategyDefinition) -> list[_Planned]:
        strategy, planned_calls = definition.run(self._asked), list[_Planned]()
        try:
            ask = next(strategy)
            while True:
                planned_calls += [
                    self._read((ask.purpose, ask.round), call) for call in ask.calls if call.check is None
                ]
                said = {call.call_id: self._said(call, ask.round) for call in ask.calls if not self._silent(call)}
                outcomes = {id: CallFinished.model_construct(text=json.dumps(fields)) for id, fields in said.items()}
                ask = strategy.send(Outcomes(outcomes))
        except StopIteration:
            return planned_calls

    def _read(self, place: _Place, call: Call) -> _Planned:
        marks = [mark for message in call.messages for mark in self._marks.findall(message.content)]
        return _Planned(place, call, _bytes(call) - sum(map(len, marks)), [self._texts[mark] for mark in marks])

    def _marked(self, text: _Text) -> str:
        mark = self._tag + f"{len(self._texts):06}".translate(_AS_LETTERS)
        self._texts[mark] = text
        return mark

    def _said(self, call: Call, round: int) -> dict[str, Any]:
        agree, text = self._agree, self._marked(_completion(call))
        if agree and call.output.kind in VERSION_KINDS:
            # Every member repeats the first text.
            text = next(iter(self._texts))
        answer = {"reply": text} if call.output.is_action else text
        match call.output.kind:
            case "answer" | "fusion":
                return {"reasoning": ".", "answer": answer}
            case "program":
                return {"reasoning": ".", "code": text}
            case "revision":
                return {"responses": [], "answer": answer}
            case "turn":
                return {"reasoning": ".", "error": "x", "answer": answer}
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
                return {"reasoning": ".", "tests": [{"name": text, "call": "f", "expected": call.call_id}]}
            case "report":
                return self._report(call)

    def _scored(self, call: Call, candidate: str, round: int) -> dict[str, Any]:
        """Scores that rise every round and put another author first, so that they end no rounds."""
        author, _, version = candidate.partition("#")
        place = next(at for at, agent in enumerate(self._asked.agents) if agent.agent_id == author)
        score = min(10, 2 * round - 1 + ((place + round) % self._asked.size == 0)) if version else 0
        return {"criteria": [{"id": criterion, "rationale": "", "score": score} for criterion in call.output.criteria]}

    def _report(self, call: Call) -> dict[str, Any]:
        """All tests pass, or the program cannot be run for a reason as long as the tests that a repair shows."""
        tests = call.check.tests if call.check is not None else ()
        outcomes = [{"name": "", "passed": self._agree, "reason": "", "duration_ms": 0} for _ in tests]
        sizes = sorted(len(f"{test.name}{json.dumps(test.data)[:_TEST_CHARS]}".encode()) for test in tests)
        shown_bytes = sum(sizes[-_TESTS_SHOWN:])
        most = (shown_bytes + _TESTS_SHOWN * _REASON_BYTES) // BYTES_PER_TOKEN
        rest = _Text("", most, shown_bytes // ASSUMED_BYTES_PER_TOKEN + _TESTS_SHOWN * _REASON_TOKENS)
        written = [test.name for test in tests if test.name in self._texts]
        fault = "" if self._agree else " ".join([*written, self._marked(rest)])
        return {"fault": fault, "outcomes": outcomes}


def quote(
    specification: Specification,
    definition: StrategyDefinition,
    roles: Mapping[str, Role],
    history: QuoteHistory | None,
) -> Quote:
    """The price of a specification; without a history all is assumed. The largest council takes a second."""
    bare, known, budget = _bare(specification), history or QuoteHistory(), specification.budget
    first = next(definition.run(specification))
    first_calls = allotted(budget, Cost(), first.calls)
    most = _Way(bare).planned(definition)
    # Bytes of task, evidence and names of files: every prompt repeats them, and the bare specification lacks them.
    extra = _bytes(first.calls[0]) - most[0].bytes

    def by_stage(way: Iterable[_Planned], history: QuoteHistory | None) -> Mapping[_Place, Usage]:
        usages: dict[_Place, list[Usage]] = {}
        for planned in way:
            usages.setdefault(planned.place, []).append(planned.usage(roles[planned.call.role], extra, history))
        return {place: Usage.total(used) for place, used in usages.items()}

    bounds = [by_stage(way, None) for way in (most, *_failing_ways(bare, definition))]
    fewest, largest = (by_stage(way, known) for way in (_Way(bare, agree=True).planned(definition), most))
    share = ASSUMED_SHARE
    low, high = (sum(usage.calls for usage in way.values()) for way in (fewest, largest))
    if known.deliberations and low < high:
        share = max(Decimal(0), min(Decimal(1), (Decimal(known.calls) / known.deliberations - low) / (high - low)))
    stages = tuple(
        QuotedStage(
            purpose=place[0],
            round=place[1],
            at_most=_merged([way.get(place, Usage()) for way in bounds], max),
            expected=_merged(
                [way.get(place, Usage()) for way in (fewest, largest)],
                lambda ends: ends[0] + share * (ends[1] - ends[0]),
            ),
        )
        for place in dict.fromkeys(place for way in bounds for place in way)
    )
    at_most = _merged([Usage.total(list(way.values())) for way in bounds], max)
    expected = Usage.total([stage.expected for stage in stages])
    refused = refused_by(budget, Cost(), first_calls, first.reserve)
    needs = needs_of_first_stage(budget, first_calls) if refused else ""
    return Quote(
        strategy=specification.strategy,
        members=specification.size,
        at_most=at_most,
        expected=expected,
        stages=stages,
        budget=_outlook(budget, at_most, expected, needs),
        history=history,
    )


def _failing_ways(bare: Specification, definition: StrategyDefinition) -> Iterable[list[_Planned]]:
    """Ways with failures that cost further calls.

    Two answers below the quorum are judged by members without one. A round without ballots is scored once more.
    """
    if bare.quorum > 2:
        members = {agent.agent_id for agent in bare.agents[:2]}
        yield _Way(bare, lambda call: call.output.kind == "answer" and call.agent_id not in members).planned(definition)
    if bare.parameters.get("stop") == "settled" or "escalation" in bare.parameters:
        yield _Way(bare, lambda call: call.output.kind == "score").planned(definition)


def _bare(specification: Specification) -> Specification:
    """The specification without the texts that every prompt repeats, and without a budget.

    Answers are compared as texts: every two of them can differ then, in whatever form they are counted.
    """
    constraints = specification.constraints.model_copy(update={"requirements": (), "metadata": {}})
    changes = {
        "task": "",
        "task_file": None,
        "evidence": (),
        "workspace": None,
        "constraints": constraints,
        "budget": Budget(),
    }
    return specification.model_copy(update={**changes, "parameters": _as_texts(specification.parameters)})


def _as_texts(parameters: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(parameters)
    if changed.get("normaliser", "none") != "none":
        changed |= {"normaliser": "text", "options": []}
    if "escalation" in changed:
        changed["escalation"] = _as_texts(changed["escalation"])
    return changed


def _bytes(call: Call) -> int:
    return sum(message.size_bytes for message in call.messages)


def _merged(usages: Sequence[Usage], rule: Callable[[Sequence[Decimal]], Decimal]) -> Usage:
    """Usages merged figure by figure, rounded up to whole calls, tokens and millionths."""

    def merged(of: Callable[[Usage], int | Decimal], scale: int = 1) -> int:
        return ceil(rule([Decimal(of(usage)) for usage in usages]) * scale)

    calls, prompt, completion, uses = (merged(lambda usage, name=name: getattr(usage, name)) for name in _COUNTS)
    counts = Usage(calls=calls, prompt_tokens=prompt, completion_tokens=completion, tool_uses=uses)
    currency = next((usage.cost.currency for usage in usages if usage.cost), None)
    if currency is None:
        return counts
    amount = Decimal(merged(lambda usage: usage.cost.amount if usage.cost else 0, 1_000_000)).scaleb(-6)
    unpriced = merged(lambda usage: usage.cost.unpriced_calls if usage.cost else 0)
    return counts.model_copy(update={"cost": UsageCost(amount=amount, currency=currency, unpriced_calls=unpriced)})


def _outlook(budget: Budget, at_most: Usage, expected: Usage, needs: str) -> BudgetOutlook | None:
    limits = {
        "max_calls": (budget.max_calls, at_most.calls, expected.calls),
        "max_tokens": (budget.max_tokens, at_most.tokens, expected.tokens),
        "max_cost": (budget.max_cost, *(usage.cost.amount if usage.cost else 0 for usage in (at_most, expected))),
    }
    bounds = [(name, limit, most, usual) for name, (limit, most, usual) in limits.items() if limit is not None]
    short = [bound for bound in bounds if bound[2] > bound[1]]
    if needs or not short:
        covers = "nothing" if needs else "at_most"
        return BudgetOutlook(covers=covers, detail=needs or None) if bounds else None
    told = [f"budget.{name} is {limit:,}; {usual:,} expected, {most:,} possible" for name, limit, most, usual in short]
    return BudgetOutlook(
        covers="expected" if all(bound[3] <= bound[1] for bound in short) else "first_stage",
        detail=f"{'; '.join(told)}. Stages that do not fit are left out.",
    )
