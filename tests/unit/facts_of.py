import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from app.deliberation.calls import Call, FactProblem, Usage
from app.deliberation.conversation import turns_of
from app.deliberation.facts import (
    Accepted,
    CallFinished,
    Cancelled,
    CancelRequested,
    Completed,
    Fact,
    Failed,
    Resumed,
    StageClosed,
    StageOpened,
    TimedOut,
    ToolStarted,
    ToolUsed,
    Verdict,
)
from app.deliberation.specification import (
    AgentSpec,
    Budget,
    Constraints,
    Criterion,
    InputRef,
    OnDeadline,
    Sampling,
    Specification,
)
from app.deliberation.strategies import STRATEGIES
from tests.fakes import FakeClock, Reply, ScriptedAgents
from tests.story import NOW, Story

ID = "d1"
TIMEOUT_S = 100
RUBRIC = (Criterion(id="right", description="Is it right?", weight=2), Criterion(id="clear", description="Is it?"))
BROKEN = FactProblem(code="engine_unavailable", detail="broken off", retryable=True)

_Fact = TypeVar("_Fact", bound=Fact)


def use(of: type[ToolStarted | ToolUsed], number: int = 1, **fields: Any) -> ToolStarted | ToolUsed:
    """A fact about a use of a tool by the first agent's first call."""
    about = {"call_id": "s1-dev-001", "agent_id": "dev-001", "role": "DEV", "stage": 1, "number": number, "turn": 1}
    named = {"server": "shelf", "tool": "look_up", "name": "look_up", "tool_call_id": "t1", "arguments": "{}"}
    return of(deliberation_id=ID, ts=NOW, **{**about, **named, **fields})


def in_seconds(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def quorum_of(size: int) -> int:
    return 1 if size == 1 else max(2, (size + 1) // 2)


def agent_ids(size: int) -> list[str]:
    return [f"dev-{number:03d}" for number in range(1, size + 1)]


def specification(
    size: int = 3,
    *,
    strategy: str = "council",
    rounds: int = 1,
    quorum: int | None = None,
    budget: Budget | None = None,
    seed: int = 7,
    agents: Sequence[AgentSpec] | None = None,
    parameters: Mapping[str, Any] | None = None,
    on_deadline: OnDeadline = "best",
    **demanded: Any,
) -> Specification:
    """`demanded` are further fields of the constraints."""
    default = [AgentSpec(agent_id=each, role="DEV", sampling=Sampling(max_tokens=500)) for each in agent_ids(size)]
    return Specification(
        task="Name a colour.",
        agents=tuple(agents or default),
        strategy=strategy,
        strategy_version=STRATEGIES[strategy].version if strategy in STRATEGIES else 1,
        parameters=dict(parameters or {}),
        rounds=rounds,
        constraints=Constraints(rubric=RUBRIC, timeout_seconds=TIMEOUT_S, on_deadline=on_deadline, **demanded),
        quorum=quorum or quorum_of(len(agents) if agents else size),
        budget=budget or Budget(),
        seed=seed,
    )


def accepted(asked: Specification | None = None) -> Accepted:
    fact = Story(ID).accepted(timeout_s=TIMEOUT_S)
    return fact.model_copy(update={"specification": asked or specification()})


def opened(stage: int = 1, size: int = 3) -> StageOpened:
    times = {"soft_deadline_at": in_seconds(25), "call_deadline_at": in_seconds(60)}
    return Story(ID, size).opened(stage).model_copy(update={"quorum": 2, **times})


def finished(
    agent: str = "dev-001", stage: int = 1, text: str | None = "{}", usage: Usage | None = None
) -> CallFinished:
    outcome = {"text": text, "problem": BROKEN if text is None else None, "usage": usage or Usage(calls=1)}
    return Story(ID).finished(agent, stage=stage).model_copy(update=outcome)


def closed(stage: int = 1, seen: Sequence[str] = ()) -> StageClosed:
    return Story(ID).closed(stage).model_copy(update={"seen": tuple(f"s{stage}-{agent}" for agent in seen)})


def cancelling(reason: str | None = None) -> CancelRequested:
    return CancelRequested(deliberation_id=ID, ts=NOW, reason=reason)


def taken_over(number: int = 1) -> Resumed:
    return Resumed(deliberation_id=ID, ts=NOW, takeover=number, replica="host-1")


def end(kind: type[Completed | Failed | Cancelled | TimedOut] = Completed) -> Completed | Failed | Cancelled | TimedOut:
    return kind(deliberation_id=ID, ts=NOW)


def answer(text: object, confidence: int = 50) -> str:
    return json.dumps({"reasoning": "because", "answer": text, "confidence": confidence})


def critique(*severities: str) -> str:
    issue = {"claim": "wrong", "evidence": "seen", "fix": "mend"}
    issues = [{"severity": severity, "where": f"line {n}", **issue} for n, severity in enumerate(severities, start=1)]
    return json.dumps({"issues": issues, "verdict": "revise" if issues else "accept"})


def revision(text: object, issues: int = 1) -> str:
    responses = [{"issue": number, "decision": "accept", "reason": "true"} for number in range(1, issues + 1)]
    return json.dumps({"responses": responses, "answer": text, "confidence": 60})


def ballot(call: Call, score: Callable[[str], int]) -> str:
    return json.dumps(
        {
            letter: {
                "criteria": [
                    {"id": each, "rationale": "seen", "score": score(call.labels[letter])}
                    for each in call.output.criteria
                ]
            }
            for letter in call.output.labels
        }
    )


def pair(winner: str) -> str:
    return json.dumps({"notes_a": "a", "notes_b": "b", "winner": winner, "margin": 1})


def turn(text: object, error: str = "line 1 was wrong") -> str:
    return json.dumps({"reasoning": "because", "error": error, "answer": text, "confidence": 60})


def choice(label: str) -> str:
    return json.dumps({"reasoning": "because", "choice": label})


def report(call: Call, passes: Callable[[Call, int], bool], fault: str = "") -> str:
    assert call.check is not None
    verdicts = [not fault and passes(call, place) for place in range(len(call.check.tests))]
    outcomes = [
        {
            "name": test.name,
            "passed": passed,
            "reason": fault or ("" if passed else "it does not hold"),
            "duration_ms": 5,
        }
        for test, passed in zip(call.check.tests, verdicts, strict=True)
    ]
    return json.dumps({"fault": fault, "outcomes": outcomes})


def acted(call: Call, text: str) -> dict[str, Any]:
    """A call of the client's first tool; after the result of a call, or without tools, a reply."""
    form = json.loads(call.output.answer_schema)
    ends = [turns_of(each.content, each.turns)[-1] for each in call.messages if each.turns > 1]
    if "anyOf" in form and any(last.role == "tool" for last in ends):
        return {"reply": text}
    calling = form["anyOf"][-1] if "anyOf" in form else form
    tool = calling["properties"]["calls"]["items"]["anyOf"][0]["properties"]
    properties = tool["arguments"].get("properties", {})
    arguments = {name: "a" if schema.get("type") == "string" else 1 for name, schema in properties.items()}
    return {"calls": [{"name": tool["name"]["enum"][0], "arguments": arguments}]}


def by_number(candidate: str) -> int:
    agent, _, version = candidate.partition("#")
    return max(0, 9 - int(agent[-3:])) + (1 if version else 0)


@dataclass
class CouncilScript:
    """A script for a whole council. `failing` calls end in a problem, `silent` ones never end, `garbled` in nonsense.

    Call ids are `s<stage>-<agent>`. By call id, `issues` are the severities that a critic finds, and `text` is an
    author's text. By candidate, `score` is a reviewer's score. `passes` says by place which tests a check's program
    passes, and `fault` why the program cannot be run.
    """

    issues: Callable[[str], Sequence[str]] = lambda _: ("major",)
    score: Callable[[str], int] = by_number
    text: Callable[[str], str] = "text of {}".format
    passes: Callable[[Call, int], bool] = lambda *_: True
    fault: Callable[[Call], str] = lambda _: ""
    failing: Collection[str] = ()
    silent: Collection[str] = ()
    garbled: Collection[str] = ()
    after_s: Mapping[str, float] = field(default_factory=dict[str, float])
    place: Mapping[str, float] = field(default_factory=dict[str, float])
    usage: Callable[[str], Usage] = lambda _: Usage(prompt_tokens=100, completion_tokens=50, calls=1)

    def __call__(self, call: Call) -> Reply:
        if call.call_id in self.silent:
            return Reply()
        failed = call.call_id in self.failing
        return Reply(
            text=None if failed else "nonsense" if call.call_id in self.garbled else self._said(call),
            problem=BROKEN if failed else None,
            after_s=self.after_s.get(call.call_id, 0.0),
            place=self.place.get(call.call_id, 0.0),
            usage=Usage() if call.check else self.usage(call.call_id),
        )

    def answered(self, call: Call) -> object:
        text = self.text(call.call_id)
        return acted(call, text) if call.output.is_action else text

    def _said(self, call: Call) -> str:
        match call.output.kind:
            case "answer" | "fusion":
                return answer(self.answered(call))
            case "critique":
                return critique(*self.issues(call.call_id))
            case "revision":
                return revision(self.answered(call), call.output.issues)
            case "score":
                return ballot(call, self.score)
            case "pair":
                a, b = self.score(call.labels["A"]), self.score(call.labels["B"])
                return pair("A" if a > b else "B" if b > a else "tie")
            case "turn":
                return turn(self.answered(call))
            case "choice":
                return choice(max(call.output.labels, key=lambda label: self.score(call.labels[label])))
            case "analysis":
                return json.dumps({"agreements": ["a colour"], "conflicts": ["which"], "gaps": []})
            case "program":
                return json.dumps({"reasoning": "because", "code": self.text(call.call_id), "confidence": 50})
            case "tests":
                test = {"name": "holds", "call": "f", "arguments": [], "expected": self.text(call.call_id)}
                return json.dumps({"reasoning": "because", "tests": [test]})
            case "report":
                return report(call, self.passes, self.fault(call))


@dataclass
class Run:
    facts: list[Fact]
    calls: list[Call]

    def all(self, kind: type[_Fact]) -> list[_Fact]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def end(self) -> Completed | Failed | Cancelled | TimedOut:
        last = self.facts[-1]
        assert isinstance(last, Completed | Failed | Cancelled | TimedOut)
        return last

    @property
    def completed(self) -> Completed:
        assert isinstance(self.end, Completed), self.end
        return self.end

    @property
    def verdict(self) -> Verdict:
        assert self.completed.verdict is not None
        return self.completed.verdict

    @property
    def winner(self) -> str | None:
        return self.verdict.winner

    @property
    def content(self) -> str | None:
        return self.verdict.content

    @property
    def order(self) -> list[str]:
        return [standing.agent_id for standing in self.verdict.ranking]

    @property
    def degraded(self) -> tuple[str, ...]:
        return self.completed.degraded.reasons if self.completed.degraded else ()

    @property
    def cut(self) -> list[tuple[str, int, str]]:
        stages = self.completed.degraded.cut if self.completed.degraded else ()
        return [(stage.purpose, stage.round, stage.by) for stage in stages]

    @property
    def purposes(self) -> list[str]:
        return [stage.purpose for stage in self.all(StageOpened)]

    def asked(self, purpose: str) -> list[Call]:
        ids = {call.call_id for stage in self.all(StageOpened) if stage.purpose == purpose for call in stage.calls}
        return [call for call in self.calls if call.call_id in ids]


def run(asked: Specification, script: Callable[[Call], Reply] | None = None) -> Run:
    return resumed([accepted(asked)], script)


def resumed(
    facts: Sequence[Fact], script: Callable[[Call], Reply] | None = None, clock: FakeClock | None = None
) -> Run:
    agents = ScriptedAgents(script or CouncilScript(), clock or FakeClock(facts[-1].ts))
    return Run(agents.deliberate(facts), agents.calls)


def input_ref(sha256: str = "a" * 64, kind: str = "text") -> InputRef:
    return InputRef(
        sha256=sha256,
        name="notes.md",
        media_type="text/markdown" if kind == "text" else "image/png",
        bytes=3_000,
        kind="text" if kind == "text" else "picture",
        tokens=1_000,
        form_sha256=sha256,
        form_bytes=3_000,
    )
