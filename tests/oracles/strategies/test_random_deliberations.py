from random import Random

import pytest

from app.deliberation.calls import Call
from app.deliberation.facts import CallFinished, Completed, End, Failed, TimedOut
from app.deliberation.specification import Budget, Specification
from tests.fakes import Reply
from tests.oracles.strategies.malformed_texts import MALFORMED
from tests.unit.facts_of import BROKEN, TIMEOUT_S, Run, resumed, run
from tests.unit.strategies.every_strategy import WAYS, Script, Way, transcript

DELIBERATIONS = 60


def drawn(draw: Random) -> tuple[Way, Specification]:
    way = WAYS[draw.choice(list(WAYS))]
    size = draw.choice((1, 2, 2, 3, 3, 3, 4, 5, 6, 9))
    budget = Budget(
        max_calls=draw.choice((None, None, None, draw.randrange(1, 40))),
        max_tokens=draw.choice((None, None, draw.randrange(500, 40_000))),
    )
    asked = way.asked(size, rounds=draw.choice((0, 1, 2, 3, 5)), seed=draw.randrange(1_000), budget=budget)
    quorum = draw.choice((asked.quorum, 1, size, draw.randrange(1, size + 1)))
    return way, asked.model_copy(update={"quorum": quorum})


def unreliable(script: Script, seed: int, rate: float) -> Script:
    def scripted(call: Call) -> Reply:
        reply = script(call)
        draw = Random(f"{seed} {call.call_id}")
        after_s = draw.choice((0.0, draw.random(), draw.random() * TIMEOUT_S / 2, draw.random() * 1.2 * TIMEOUT_S))
        place = draw.random()
        match draw.choice(("fails", "errs", "is silent")) if draw.random() < rate else "answers":
            case "is silent":
                return Reply()
            case "fails":
                return Reply(problem=BROKEN, usage=reply.usage, after_s=after_s, place=place)
            case "errs":
                form = draw.choice(list(MALFORMED.values()))
                return Reply(text=form(reply.text or ""), usage=reply.usage, after_s=after_s, place=place)
            case _:
                return Reply(text=reply.text, usage=reply.usage, after_s=after_s, place=place)

    return scripted


def prompt(script: Script, seed: int) -> Script:
    def scripted(call: Call) -> Reply:
        reply = script(call)
        return Reply(text=reply.text, usage=reply.usage, place=Random(f"{seed} {call.call_id}").random())

    return scripted


def ends_soundly(way: Way, ended: Run, budget: Budget) -> None:
    assert [fact for fact in ended.facts if isinstance(fact, End)] == [ended.end]
    assert budget.max_calls is None or ended.end.usage.calls <= budget.max_calls
    if not isinstance(ended.end, Completed):
        assert isinstance(ended.end, Failed | TimedOut)
        assert ended.end.problem is not None
        assert ended.end.problem.code in ("no_answers", "budget_exhausted", "deadline_exceeded")
        answered = any(outcome.answered for outcome in ended.all(CallFinished))
        assert not (answered and isinstance(ended.end, TimedOut)), "an answer is thrown away"
        return
    found = ended.verdict
    assert found.content or way.strategy == "independent"
    assert [standing.rank for standing in found.ranking] == list(range(1, len(found.ranking) + 1))
    assert not found.ranking or found.ranking[0].agent_id == found.winner
    assert all(standing.score is None or 0 <= standing.score <= 1 for standing in found.ranking)
    assert found.margin is None or (found.margin == 0 if found.tie else found.margin >= 0)


@pytest.mark.parametrize("block", range(10))
def test_random_deliberations_have_one_sound_end(block: int) -> None:
    for seed in range(block * DELIBERATIONS, (block + 1) * DELIBERATIONS):
        draw = Random(seed)
        way, asked = drawn(draw)
        script = unreliable(way.script(), seed, draw.choice((0.0, 0.1, 0.3, 0.6, 0.9)))
        ended = run(asked, script)
        ends_soundly(way, ended, asked.budget)
        known = ended.facts[: draw.randrange(1, len(ended.facts) + 1)]
        again = resumed(known, script)
        ends_soundly(way, again, asked.budget)
        recorded = {fact.call_id for fact in known if isinstance(fact, CallFinished)}
        assert recorded.isdisjoint(call.call_id for call in again.calls), f"seed {seed}"


@pytest.mark.parametrize("block", range(4))
def test_a_crash_anywhere_in_a_deliberation_of_prompt_agents_leaves_no_trace(block: int) -> None:
    for seed in range(block * DELIBERATIONS, (block + 1) * DELIBERATIONS):
        draw = Random(seed)
        way, asked = drawn(draw)

        script = prompt(way.script(), seed)
        whole = run(asked, script)
        again = resumed(whole.facts[: draw.randrange(1, len(whole.facts) + 1)], script)
        assert transcript(again.facts) == transcript(whole.facts), f"seed {seed}"
