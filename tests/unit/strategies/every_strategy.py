"""Every registered strategy in several ways: parameters, the agents' behaviour, and the expected number of calls.

A strategy that is registered without a way fails `tests/oracles/strategies/test_every_strategy_accounting.py`. Add a
line to `WAYS`, with the number of calls by the strategy's definition in the literature, not by the code.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from itertools import chain, combinations
from math import ceil, log2
from typing import Any, TypeVar

from app.deliberation.calls import Call, Usage
from app.deliberation.facts import CallFinished, Fact, StageOpened, encode
from app.deliberation.specification import AgentSpec, Budget, Prices, Specification
from app.deliberation.strategies import STRATEGIES
from tests.fakes import Reply
from tests.unit.facts_of import BROKEN, NOW, CouncilScript, Run, by_number, run, specification

Script = Callable[[Call], Reply]
Behaviour = Callable[[], CouncilScript]

WRITING = ("answer", "turn", "program", "revision", "fusion")
"""The kinds of output that hold a text which may win."""

PRICES = Prices(currency="USD", prompt=Decimal("0.5"), completion=Decimal("1.75"))

GIVEN_TEST = {"name": "given", "call": "colour", "expected": "red"}

_Item = TypeVar("_Item")


def secret(call_id: str) -> str:
    return "".join(chr(ord("a") + byte % 26) for byte in hashlib.sha256(call_id.encode()).digest()[:12])


def distinct(call_id: str) -> str:
    return f"A {secret(call_id)} of its own."


def disagreeing() -> CouncilScript:
    return CouncilScript(text=distinct)


def agreeing() -> CouncilScript:
    return CouncilScript(text=lambda _: "A colour that all name.")


def content() -> CouncilScript:
    return CouncilScript(text=distinct, issues=lambda _: ("minor",))


def counting() -> CouncilScript:
    return CouncilScript(text=lambda call_id: f"It is {int(hashlib.sha256(call_id.encode()).hexdigest()[:8], 16)}.")


def with_one_dissenter() -> CouncilScript:
    return CouncilScript(text=lambda call_id: distinct(call_id) if call_id.endswith("-001") else "Blue.")


def with_a_test_that_half_fail() -> CouncilScript:
    return CouncilScript(text=distinct, passes=lambda call, place: place > 0 or int(call.agent_id[-3:]) % 2 == 1)


def with_a_fault_each() -> CouncilScript:
    return CouncilScript(text=distinct, passes=lambda call, place: place != int(call.agent_id[-3:]) % 2)


def attached_to_the_old() -> CouncilScript:
    return CouncilScript(text=distinct, score=lambda candidate: 0 if "#" in candidate else by_number(candidate))


@dataclass(frozen=True, eq=False)
class Way:
    strategy: str
    variant: str
    calls: Callable[[int, int], int]
    behaviour: Behaviour = disagreeing
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def asked(
        self,
        size: int = 3,
        *,
        rounds: int = 1,
        budget: Budget | None = None,
        seed: int = 7,
        agents: Sequence[AgentSpec] | None = None,
    ) -> Specification:
        found = specification(size, strategy=self.strategy, rounds=rounds, budget=budget, seed=seed, agents=agents)
        parameters = STRATEGIES[self.strategy].parameters.model_validate(dict(self.parameters))
        return found.model_copy(update={"parameters": parameters.model_dump(mode="json")})

    def script(self) -> Script:
        return self.behaviour()

    def run(self, size: int = 3, *, rounds: int = 1) -> Run:
        return _small_run(self, size, rounds) if size <= 5 else run(self.asked(size, rounds=rounds), self.script())


@cache
def _small_run(way: Way, size: int, rounds: int) -> Run:
    return run(way.asked(size, rounds=rounds), way.script())


def _of_several(calls: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda size, rounds: 1 if size == 1 else calls(size, rounds)


# All that holds is tried with these at every change.
_MAIN = (
    Way("single", "", lambda n, r: 1),
    Way("independent", "", lambda n, r: n),
    Way("best_of_n", "", _of_several(lambda n, r: 2 * n)),
    Way("council", "all revise", _of_several(lambda n, r: n + r * 2 * n + n)),
    Way("debate", "all differ and switch", _of_several(lambda n, r: n * (1 + r))),
    Way("fuse", "the fused text wins", _of_several(lambda n, r: 2 * n + 4)),
    Way("tournament", "round robin", lambda n, r: n + n * (n - 1)),
    Way("tournament", "knockout", lambda n, r: n + 2 * (n - 1), parameters={"format": "knockout"}),
    Way("vote", "all differ", lambda n, r: n + (n > 2)),
    # The fewest n of N equal votes that no rest can overtake: n > N - n.
    Way("vote", "all agree", lambda n, r: n // 2 + 1, agreeing),
    Way("auto", "to a council", _of_several(lambda n, r: n + r * 2 * n + n)),
    Way("execute", "half are repaired", lambda n, r: n + min(2, n) + r * (n // 2), with_a_test_that_half_fail),
)

# Of these, calls and prompts are; the rest in tests/oracles/strategies.
_OTHER = (
    Way("execute", "all pass", lambda n, r: n + min(2, n)),
    Way("execute", "all are repaired", lambda n, r: 2 if n == 1 else n + 2 + r * n, with_a_fault_each),
    Way("execute", "every agent writes tests", lambda n, r: 2 * n, parameters={"test_writers": 32}),
    Way("execute", "given tests alone", lambda n, r: n, parameters={"tests": [GIVEN_TEST], "test_writers": 0}),
    Way("council", "none revises", _of_several(lambda n, r: n + (n if r else 0) + n), content),
    Way(
        "council",
        "two critics",
        _of_several(lambda n, r: n + r * (n * min(2, n - 1) + n) + n),
        parameters={"critics": 2},
    ),
    Way(
        "council",
        "scored every round",
        _of_several(lambda n, r: n + r * 3 * n if r else 2 * n),
        parameters={"stop": "settled"},
    ),
    Way(
        "council",
        "mended to the last minor issue",
        _of_several(lambda n, r: n + r * 2 * n + n),
        content,
        {"stop": "accepted"},
    ),
    Way("council", "never content", _of_several(lambda n, r: n + r * n + n), content, {"stop": "none"}),
    Way("debate", "all agree", lambda n, r: n, agreeing),
    Way(
        "debate",
        "one dissents",
        lambda n, r: {1: 1, 2: 2 + 2 * r}.get(n, n + r),
        with_one_dissenter,
        {"agreement": 1.0, "neighbours": 1},
    ),
    Way("fuse", "the best single wins", _of_several(lambda n, r: 2 * n + 4), attached_to_the_old),
    Way(
        "tournament",
        "swiss",
        _of_several(lambda n, r: n + 2 * (n // 2) * ceil(log2(n))),
        parameters={"format": "swiss"},
    ),
    Way(
        "tournament",
        "swiss, three rounds",
        _of_several(lambda n, r: n + 2 * (n // 2) * min(3, ceil(n / 2))),
        parameters={"format": "swiss", "rounds_of_pairs": 3},
    ),
    Way("vote", "all differ in a number", lambda n, r: n, counting, {"normaliser": "number"}),
    Way("vote", "nothing is counted", lambda n, r: n + (n > 2), parameters={"normaliser": "none"}),
    # Four to nothing are enough for the Beta rule at 0.95, and three are not.
    Way("vote", "all agree, beta", lambda n, r: min(4, n // 2 + 1), agreeing, {"stop": "beta"}),
    Way("vote", "all agree, all asked", lambda n, r: n, agreeing, {"stop": "none"}),
    Way("auto", "all agree", lambda n, r: min(3, n), agreeing),
    Way("auto", "to the best of N", _of_several(lambda n, r: 2 * n), parameters={"escalate_to": "best_of_n"}),
    Way("auto", "to a debate", _of_several(lambda n, r: n * (1 + r)), parameters={"escalate_to": "debate"}),
    Way("auto", "to a fusion", _of_several(lambda n, r: 2 * n + 4), parameters={"escalate_to": "fuse"}),
    Way(
        "auto",
        "to a knockout",
        lambda n, r: n + 2 * (n - 1),
        parameters={"escalate_to": "tournament", "escalation": {"format": "knockout"}},
    ),
)


def _named(ways: Sequence[Way]) -> dict[str, Way]:
    return {f"{way.strategy}{f', {way.variant}' if way.variant else ''}": way for way in ways}


MAIN_WAYS, OTHER_WAYS = _named(_MAIN), _named(_OTHER)
WAYS = MAIN_WAYS | OTHER_WAYS


# Failures of calls


def failing(script: Script, fails: Callable[[Call], bool]) -> Script:
    def scripted(call: Call) -> Reply:
        reply = script(call)
        if not fails(call):
            return reply
        return Reply(problem=BROKEN, usage=reply.usage, after_s=reply.after_s, place=reply.place)

    return scripted


def rewriting(script: Script, change: Callable[[Call, str], str | None]) -> Script:
    def scripted(call: Call) -> Reply:
        reply = script(call)
        text = None if reply.text is None else change(call, reply.text)
        if text is None:
            return reply
        return Reply(text=text, usage=reply.usage, after_s=reply.after_s, place=reply.place)

    return scripted


def priced(script: Script) -> Script:
    def scripted(call: Call) -> Reply:
        reply = script(call)
        drawn = hashlib.sha256(call.call_id.encode()).digest()
        usage = Usage(prompt_tokens=100 + drawn[0], completion_tokens=10 + drawn[1], calls=1 + drawn[2] % 3)
        # Of some calls the engine has no price.
        usage = usage.at(PRICES if drawn[3] % 4 else None)
        return Reply(text=reply.text, problem=reply.problem, usage=usage, after_s=reply.after_s, place=reply.place)

    return scripted


def subsets(of: Sequence[_Item]) -> Iterator[tuple[_Item, ...]]:
    return chain.from_iterable(combinations(of, count) for count in range(len(of) + 1))


# Views of a run


def stages(ended: Run) -> list[list[Call]]:
    by_id = {call.call_id: call for call in ended.calls}
    return [[by_id[call.call_id] for call in stage.calls] for stage in ended.all(StageOpened)]


def prompt(call: Call) -> str:
    return "\n\n".join(message.content for message in call.messages)


def transcript(facts: Sequence[Fact]) -> list[bytes]:
    fixed = {"ts": NOW, "soft_deadline_at": NOW, "call_deadline_at": NOW, "duration_ms": 0}
    timeless = [
        fact.model_copy(update={name: fixed[name] for name in fixed.keys() & type(fact).model_fields.keys()})
        for fact in facts
    ]
    outcomes = sorted((fact for fact in timeless if isinstance(fact, CallFinished)), key=lambda fact: fact.call_id)
    return [encode(fact) for fact in (*(fact for fact in timeless if not isinstance(fact, CallFinished)), *outcomes)]
