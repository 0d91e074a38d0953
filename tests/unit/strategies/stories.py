import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from app.deliberation.calls import Call
from app.deliberation.decider import Strategy, StrategyDefinition
from app.deliberation.errors import QuorumNotReached
from app.deliberation.facts import (
    CallDelta,
    CallFinished,
    CallStarted,
    Cancelled,
    CancelRequested,
    End,
    Event,
    Fact,
    PlannedCall,
    Resumed,
    StageClosed,
    StageOpened,
)
from app.deliberation.outputs import Output
from app.deliberation.prompts.council import propose
from app.deliberation.specification import AgentSpec, Budget, Sampling, Specification
from app.deliberation.strategies import STRATEGIES
from app.deliberation.strategies.strategy_run import Candidate, StrategyRun, written
from tests.fakes import FakeClock, Reply, ScriptedAgents
from tests.unit.facts_of import BROKEN, ID, accepted, agent_ids, specification
from tests.unit.strategies.every_strategy import MAIN_WAYS, Script, Way, failing

SIZE = 3
PIECE_CHARS = 20
LATE_S = 45.0
MEMBERS = [
    AgentSpec(agent_id=each, role=f"ROLE{n}", model=f"model-{n}", sampling=Sampling(max_tokens=500))
    for n, each in enumerate(agent_ids(SIZE), start=1)
]


def _relay(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    texts: list[Candidate] = []
    for place, agent in enumerate(specification.agents):
        labelled = {"A": texts[-1].id} if texts else None
        call = run.call(agent, propose(specification, place), Output(kind="answer"), labelled=labelled)
        outcomes = yield from run.ask("revise", place, [call], quorum=1, stages_left=specification.size - place)
        if not outcomes.admitted:
            break
        text = written(outcomes, call)
        texts += [text] if text else []
        run.report(int(text is None), 1, "turns are missing")
    if not texts:
        raise QuorumNotReached("none answered")
    return run.conclude([(text, None) for text in reversed(texts)], margin=None, tie=False)


RELAY = StrategyDefinition(
    name="test-relay",
    version=1,
    summary="Each agent improves the text of the one before.",
    steps=("revise",),
    formula="N",
    source="a test",
    tool_calls="0",
    run=_relay,
)
WAYS = {**MAIN_WAYS, "test-relay": Way("test-relay", "", lambda n, r: n)}


STRATEGIES_AND_RELAY = {**STRATEGIES, "test-relay": RELAY}


def _asked(way: Way, **changed: Any) -> Specification:
    if way.strategy != "test-relay":
        return way.asked(SIZE, agents=MEMBERS).model_copy(update=changed)
    return specification(SIZE, strategy="test-relay", agents=MEMBERS).model_copy(update=changed)


def _run(facts: Sequence[Fact], script: Script) -> list[Fact]:
    agents = ScriptedAgents(script, FakeClock(facts[-1].ts), strategies=STRATEGIES_AND_RELAY)
    return agents.deliberate(facts)


def _with(script: Script, change: Callable[[Call, Reply], Reply]) -> Script:
    return lambda call: change(call, script(call))


def _silent(call: Call, reply: Reply) -> Reply:
    return Reply() if call.agent_id == "dev-003" else reply


def _late(call: Call, reply: Reply) -> Reply:
    return Reply(text=reply.text, after_s=LATE_S if call.agent_id == "dev-003" else 1.0)


def _until(way: Way, share: float) -> list[Fact]:
    whole = _run([accepted(_asked(way))], way.script())
    return whole[: max(2, round(len(whole) * share))]


def _cancelled(way: Way) -> list[Fact]:
    facts = _until(way, 0.5)
    stop = CancelRequested(deliberation_id=ID, ts=facts[-1].ts, reason="enough")
    return [*facts, stop, Cancelled(deliberation_id=ID, ts=facts[-1].ts)]


def _resumed(way: Way) -> list[Fact]:
    facts = _until(way, 0.4)
    takeover = Resumed(deliberation_id=ID, ts=facts[-1].ts, takeover=1, replica="host-2")
    return _run([*facts, takeover], way.script())


def _refused(way: Way) -> list[Fact]:
    return _run([accepted(_asked(way, budget=Budget(max_calls=SIZE)))], way.script())


ENDINGS: Mapping[str, Callable[[Way], list[Fact]]] = {
    "completed": lambda way: _run([accepted(_asked(way))], way.script()),
    "degraded": lambda way: _run(
        [accepted(_asked(way))], failing(way.script(), lambda call: call.agent_id == "dev-002")
    ),
    "failed": lambda way: _run([accepted(_asked(way))], lambda _: Reply(problem=BROKEN)),
    "cancelled": _cancelled,
    "timed out": lambda way: _run([accepted(_asked(way))], lambda _: Reply()),
    "budget refused": _refused,
    "late answers": lambda way: _run([accepted(_asked(way))], _with(way.script(), _late)),
    "quorum": lambda way: _run([accepted(_asked(way))], _with(way.script(), _silent)),
    "resumed": _resumed,
}
STORIES = {f"{name}: {ending}": (way, ENDINGS[ending]) for name, way in WAYS.items() for ending in ENDINGS}


def story(name: str) -> list[Fact]:
    way, ending = STORIES[name]
    return ending(way)


def events_of(facts: Sequence[Fact]) -> Iterator[Event]:
    finished = {fact.call_id: fact for fact in facts if isinstance(fact, CallFinished)}
    for fact in facts:
        yield fact
        for planned in fact.calls if isinstance(fact, StageOpened) else ():
            outcome = finished.get(planned.call_id)
            if outcome is not None:
                common = {"deliberation_id": ID, "ts": fact.ts, "call_id": planned.call_id, "attempt": outcome.attempt}
                agent = {"agent_id": planned.agent_id, "role": planned.role}
                yield CallStarted.model_validate({**common, **agent, "model": outcome.model})
                text = outcome.text or ""
                for at in range(0, len(text), PIECE_CHARS):
                    piece = {"offset": at, "text": text[at : at + PIECE_CHARS]}
                    yield CallDelta.model_validate({**common, **agent, **piece})


def read(facts: Sequence[Fact]) -> dict[str, dict[str, Any]]:
    outcomes = {fact.call_id: fact for fact in facts if isinstance(fact, CallFinished)}
    seen = {fact.stage: fact.seen for fact in facts if isinstance(fact, StageClosed)}
    end = next((fact for fact in facts if isinstance(fact, End)), None)
    ranking = end.verdict.ranking if end is not None and end.verdict is not None else ()
    stands = {standing.agent_id: standing.version for standing in ranking}
    return {
        member.agent_id: _work(
            member.agent_id,
            [(stage, call) for stage in facts if isinstance(stage, StageOpened) for call in stage.calls],
            outcomes,
            seen,
            end is not None,
            stands.get(member.agent_id),
        )
        for member in MEMBERS
    }


def _work(
    agent_id: str,
    planned: Sequence[tuple[StageOpened, PlannedCall]],
    outcomes: Mapping[str, CallFinished],
    seen: Mapping[int, Sequence[str]],
    ended: bool,
    stands: int | None,
) -> dict[str, Any]:
    fates, texts, waited_for = set[str](), list[str](), 0
    own = [(stage, call) for stage, call in planned if call.agent_id == agent_id]
    for stage, call in own:
        outcome, counted = outcomes.get(call.call_id), seen.get(stage.stage)
        waited_for += outcome is None and counted is None and not ended
        if call.output not in ("answer", "revision", "turn", "program"):
            continue
        if outcome is not None and outcome.problem is not None:
            fates.add("failed")
        elif counted is not None and call.call_id not in counted:
            fates.add("late")
        elif outcome is not None and outcome.text is not None:
            fates.add("answered")
            texts.append(json.loads(outcome.text)["code" if call.output == "program" else "answer"])
    otherwise = "skipped" if ended else "pending"
    content = texts[-1 if stands is None else stands] if texts else None
    return {
        "status": next((fate for fate in ("answered", "failed", "late") if fate in fates), otherwise),
        "content": content,
        "texts": texts,
        "calls_total": len(own),
        "calls_finished": len(own) - waited_for,
        "tokens": sum(each.usage.tokens for each in outcomes.values() if each.agent_id == agent_id),
    }


def texts_of(facts: Sequence[Fact]) -> dict[str, str]:
    return {fact.call_id: fact.text or "" for fact in facts if isinstance(fact, CallFinished)}
