from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from app.deliberation.calls import Call
from app.deliberation.choice.ballots import author
from app.deliberation.choice.critiques import CritiqueStopRule, demanded, is_open
from app.deliberation.facts import StageOpened
from app.deliberation.outputs import ISSUES_MAX, Critique, Issue, parse_output
from app.deliberation.specification import Budget
from app.deliberation.strategies.best_of_n import BestOfNParameters
from tests.fakes import Reply
from tests.unit.facts_of import CouncilScript, agent_ids, by_number, revision, run, specification
from tests.unit.strategies.criticising import STOPS, asked, criticised


def prompt(call: Call) -> str:
    return call.messages[-1].content


@pytest.mark.parametrize("critics", [1, 2, 3])
def test_authors_have_equally_many_critics_without_themselves_and_new_ones_each_round(critics: int) -> None:
    ended = run(asked(7, rounds=2, critics=critics), CouncilScript(text=lambda call_id: f"canary-{call_id}"))
    by_round = [stage for stage in ended.all(StageOpened) if stage.purpose == "critique"]
    calls = {call.call_id: call for call in ended.calls}
    met: list[set[tuple[str, str]]] = []
    for stage in by_round:
        pairs = [(call.agent_id, criticised(call)) for call in (calls[each.call_id] for each in stage.calls)]
        assert Counter(critic for critic, _ in pairs) == Counter(dict.fromkeys(agent_ids(7), critics))
        assert Counter(author for _, author in pairs) == Counter(dict.fromkeys(agent_ids(7), critics))
        met.append(set(pairs))
        assert stage.quorum == 4 * critics, "the share of a council's quorum"
    assert not met[0] & met[1]
    for call in ended.asked("critique"):
        assert call.agent_id != criticised(call)
        assert f"-{call.agent_id}" not in prompt(call)


def finding(found: Mapping[str, Sequence[str]], severity: str = "major") -> Callable[[Call], Reply]:
    council = CouncilScript()

    def script(call: Call) -> Reply:
        if call.output.kind != "critique":
            return council(call)
        issues = tuple(issue(severity, claim) for claim in found.get(call.agent_id, ()))
        return Reply(text=Critique(issues=issues, verdict="revise" if issues else "accept").model_dump_json())

    return script


def issue(severity: Any = "major", claim: str = "wrong", where: str = "line 1") -> Issue:
    return Issue(severity=severity, where=where, claim=claim, evidence="seen", fix="mend")


def test_one_revision_answers_all_critics_of_an_author() -> None:
    claims = {"dev-001": ["claim of one", "said twice"], "dev-002": ["claim of two", "Said  TWICE"], "dev-003": []}
    ended = run(asked(critics=2), finding(claims))
    revising = {call.agent_id: call for call in ended.asked("revise")}
    assert {agent: call.output.issues for agent, call in revising.items()} == {"dev-001": 2, "dev-002": 2, "dev-003": 3}
    both = prompt(revising["dev-003"])
    assert [both.count(claim) for claim in ("claim of one", "claim of two", "said twice", "Said  TWICE")] == [
        1,
        1,
        1,
        0,
    ]
    assert all(f"\n{number}. [major]" in both for number in (1, 2, 3))
    assert "\n4. " not in both


def test_eight_critics_with_eight_issues_each_bound_the_revision() -> None:
    claims = {agent: [f"{agent} finds {number}" for number in range(ISSUES_MAX)] for agent in agent_ids(9)}
    ended = run(asked(9, critics=8), finding(claims))
    call = ended.asked("revise")[0]
    assert call.output.issues == 8 * ISSUES_MAX
    parse_output(call.output, revision("better", 64))
    assert ended.completed.degraded is None


def said(rule: CritiqueStopRule, size: int, rounds: int, script: CouncilScript) -> list[str]:
    return run(asked(size, rounds, stop=rule), script).purposes


def flat(candidate: str) -> int:
    return by_number(author(candidate))


@pytest.mark.parametrize(
    ("rule", "severities", "score", "rounds_made"),
    [
        ("no_major", ("major",), by_number, ["critique", "revise"] * 3),
        ("no_major", ("minor",), by_number, ["critique"]),
        ("no_major", (), by_number, ["critique"]),
        ("accepted", ("minor",), by_number, ["critique", "revise"] * 3),
        ("accepted", (), by_number, ["critique"]),
        ("none", (), by_number, ["critique"] * 3),
        ("none", ("minor",), by_number, ["critique"] * 3),
        ("none", ("major",), by_number, ["critique", "revise"] * 3),
        # The revision gains a point of ten in the first round, and nothing in the second.
        ("settled", ("major",), by_number, ["critique", "revise", "score"] * 2),
        ("settled", ("major",), flat, ["critique", "revise", "score"]),
        ("settled", ("minor",), by_number, ["critique"]),
    ],
)
def test_rounds_end_by_the_stop_rule(
    rule: CritiqueStopRule, severities: Sequence[str], score: Callable[[str], int], rounds_made: list[str]
) -> None:
    purposes = said(rule, 3, 3, CouncilScript(issues=lambda _: severities, score=score))
    assert purposes == ["propose", *rounds_made, *(["score"] if "score" not in rounds_made else [])]


def test_the_verdict_of_a_settled_council_is_by_the_last_scores_that_there_are() -> None:
    script = CouncilScript(failing=[f"s7-{agent}" for agent in agent_ids(3)])
    ended = run(asked(3, 3, stop="settled"), script)
    assert ended.purposes == ["propose", "critique", "revise", "score", "critique", "revise", "score"]
    assert (ended.winner, ended.content) == ("dev-001", "text of s3-dev-001")
    assert ended.verdict.ranking[0].version == 1
    assert ended.degraded == ("3 of 3 ballots are missing",)
    refused = run(asked(3, 3, Budget(max_calls=20), stop="settled"))
    assert refused.purposes == ["propose", "critique", "revise", "score"]
    assert (refused.content, refused.degraded) == ("text of s3-dev-001", ("budget",))


def critiqued(verdict: Any, *issues: Issue) -> Critique:
    return Critique(issues=issues, verdict=verdict)


@pytest.mark.parametrize(
    ("found", "by_issues", "by_verdict"),
    [
        (critiqued("accept"), False, False),
        (critiqued("accept", issue("minor")), False, False),
        (critiqued("accept", issue("major")), True, True),
        (critiqued("revise"), False, True),
        (critiqued("revise", issue("minor")), False, True),
        (critiqued("reject", issue("blocker")), True, True),
    ],
)
def test_a_critique_is_open_by_its_issues_and_under_accepted_by_its_verdict_too(
    found: Critique, by_issues: bool, by_verdict: bool
) -> None:
    assert {rule: is_open(found, rule) for rule in STOPS} == {
        "no_major": by_issues,
        "accepted": by_verdict,
        "settled": by_issues,
        "none": by_issues,
    }


def test_authors_revise_when_one_of_their_critics_asks_for_it_and_read_them_all() -> None:
    grave, light = issue("major", "grave"), issue("minor", "light")
    found = {
        "a": [critiqued("accept", light), critiqued("revise", grave)],
        "b": [critiqued("accept", light), critiqued("accept")],
        "c": [critiqued("revise")],
    }
    assert demanded(found, "no_major") == {"a": [light, grave]}
    assert demanded({"b": [critiqued("revise", light), critiqued("accept")]}, "accepted") == {"b": [light]}
    assert demanded({"c": found["c"]}, "accepted") == {}, "nothing is said that could be mended"


def test_an_issue_found_twice_is_one_as_grave_as_the_gravest() -> None:
    twice = [
        critiqued("revise", issue("minor"), issue("major", where="line 2")),
        critiqued("revise", issue("blocker"), issue("minor", where=" LINE  2")),
    ]
    merged = demanded({"a": twice}, "no_major")["a"]
    assert [(each.severity, each.where) for each in merged] == [("blocker", "line 1"), ("major", "line 2")]


# How scores are counted

TASTES = {
    "dev-001": {"dev-002": 4, "dev-003": 4, "dev-004": 9, "dev-005": 7},
    "dev-002": {"dev-001": 6, "dev-003": 7, "dev-004": 8, "dev-005": 0},
    "dev-003": {"dev-001": 5, "dev-002": 10, "dev-004": 8, "dev-005": 1},
    "dev-004": {"dev-001": 7, "dev-002": 5, "dev-003": 10, "dev-005": 0},
    "dev-005": {"dev-001": 4, "dev-002": 9, "dev-003": 8, "dev-004": 2},
}
"""A profile on which the rules differ: 004 by places, 003 by points, 002 by duels."""


def opinionated(call: Call) -> Reply:
    return CouncilScript(score=lambda candidate: TASTES[call.agent_id][author(candidate)], issues=lambda _: ())(call)


def revising(call: Call) -> Reply:
    return CouncilScript(score=lambda candidate: TASTES[call.agent_id][author(candidate)])(call)


@pytest.mark.parametrize(
    ("rule", "winner"),
    [
        ("borda", "dev-004"),
        ("mean", "dev-003"),
        ("trimmed_mean", "dev-004"),
        ("copeland", "dev-002"),
    ],
)
def test_scores_are_aggregated_by_the_requested_rule(rule: Any, winner: str) -> None:
    best = specification(5, strategy="best_of_n")
    best = best.model_copy(update={"parameters": BestOfNParameters(aggregation=rule).model_dump(mode="json")})
    assert run(best, opinionated).winner == winner
    assert run(asked(5, aggregation=rule), opinionated).winner == winner


def test_stages_of_a_council_share_the_time_that_is_left() -> None:
    def shares(**parameters: Any) -> list[int]:
        stages = run(asked(3, **parameters)).all(StageOpened)
        return [round((stage.soft_deadline_at - stage.ts).total_seconds()) for stage in stages]

    assert shares() == [25, 33, 50, 98]
    assert shares(stop="settled") == [25, 33, 50, 98]
    assert shares(rounds=2, stop="settled") == [14, 17, 20, 25, 33, 50, 98]
    assert shares(rounds=2) == [17, 20, 25, 33, 50, 98]
    assert shares(rounds=0) == shares(rounds=0, stop="settled") == [50, 98]
