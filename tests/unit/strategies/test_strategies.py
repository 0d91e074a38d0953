from collections.abc import Sequence

import pytest

from app.deliberation.calls import Call, Usage
from app.deliberation.facts import Failed, StageOpened
from app.deliberation.specification import AgentSpec, Budget, Sampling
from app.deliberation.strategies import STRATEGIES
from tests.fakes import Reply
from tests.unit.facts_of import CouncilScript, Run, agent_ids, by_number, run, specification


def calls_of(ended: Run) -> int:
    spent = ended.end.usage
    assert len(ended.calls) == spent.calls == ended.verdict.calls
    assert spent.calls == sum(stage.calls for stage in spent.by_stage) == sum(agent.calls for agent in spent.by_agent)
    return len(ended.calls)


def shown(call: Call) -> list[str]:
    return list(call.labels.values())


def all_failing(stage: int, size: int = 3) -> list[str]:
    return [f"s{stage}-{agent}" for agent in agent_ids(size)]


@pytest.mark.parametrize("revising", range(4))
def test_only_the_authors_with_a_major_issue_or_a_blocker_are_asked_to_revise(revising: int) -> None:
    severities = {"s2-dev-001": "blocker", "s2-dev-002": "major", "s2-dev-003": "minor"}
    kept = dict(list(severities.items())[3 - revising :]) if revising else {}
    ended = run(specification(), CouncilScript(issues=lambda call_id: [kept[call_id]] if call_id in kept else []))
    criticised = {call.call_id: shown(call)[0] for call in ended.asked("critique")}
    demanded = {criticised[call_id] for call_id, severity in kept.items() if severity != "minor"}
    assert {call.agent_id for call in ended.asked("revise")} == demanded
    assert calls_of(ended) == 9 + len(demanded)


def test_stages_follow_each_other_by_purpose_and_round() -> None:
    ended = run(specification(rounds=2))
    assert [(stage.stage, stage.purpose, stage.round) for stage in ended.all(StageOpened)] == [
        (1, "propose", 0),
        (2, "critique", 1),
        (3, "revise", 1),
        (4, "critique", 2),
        (5, "revise", 2),
        (6, "score", 3),
    ]
    assert [call.call_id for call in ended.asked("score")] == all_failing(6)


@pytest.mark.parametrize(
    ("strategy", "size", "failing", "quorums"),
    [
        ("single", 3, (), [1]),
        ("independent", 5, (), [3]),
        ("best_of_n", 5, ["s1-dev-001", "s1-dev-002"], [3, 3]),
        ("best_of_n", 4, ["s1-dev-001", "s1-dev-002"], [2, 2]),
        ("best_of_n", 9, [f"s1-dev-00{number}" for number in range(1, 7)], [5, 3]),
        ("council", 3, (), [2, 2, 1, 2]),
        ("council", 5, ["s1-dev-001", "s1-dev-002", "s1-dev-003"], [3, 2]),
    ],
)
def test_a_stage_waits_for_the_quorum_or_all_that_are_left_and_a_revision_for_one(
    strategy: str, size: int, failing: Sequence[str], quorums: list[int]
) -> None:
    ended = run(specification(size, strategy=strategy), CouncilScript(failing=failing))
    assert [stage.quorum for stage in ended.all(StageOpened)] == quorums


def test_single_gives_the_first_agents_answer_under_any_quorum() -> None:
    ended = run(specification(3, strategy="single"))
    assert (ended.winner, ended.content, ended.order) == ("dev-001", "text of s1-dev-001", ["dev-001"])
    assert ended.verdict.ranking[0].score is None
    assert (ended.verdict.tie, ended.verdict.margin, ended.degraded) == (False, None, ())


def test_independent_ranks_nothing_and_reports_missing_agents() -> None:
    ended = run(specification(3, strategy="independent"), CouncilScript(failing=["s1-dev-002"]))
    assert (ended.winner, ended.content, ended.order) == (None, None, [])
    assert ended.degraded == ("2 of 3 agents answered",)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_deliberation_fails_if_every_answer_breaks_its_form(strategy: str) -> None:
    ended = run(specification(3, strategy=strategy), lambda _: Reply(text="nonsense"))
    assert isinstance(ended.end, Failed)
    assert ended.end.problem is not None
    assert ended.end.problem.code == "no_answers"
    assert ended.end.problem.detail.endswith("no answer has the form that was asked for")


def judged(winners: Sequence[str], failing: Sequence[str] = ()) -> Run:
    said = iter(winners)
    council = CouncilScript(failing=[*all_failing(1, 5)[2:], *failing])

    def script(call: Call) -> Reply:
        if call.output.kind == "pair":
            winner = next(said)
            council.score = lambda candidate: int(candidate == winner)
        return council(call)

    return run(specification(5), script)


def test_two_below_the_quorum_are_judged_in_both_orders_by_members_without_a_candidate() -> None:
    ended = judged(["dev-002", "dev-002"])
    one, other = ended.asked("judge")
    assert (shown(one), shown(other)) == (["dev-001", "dev-002"], ["dev-002", "dev-001"])
    assert {one.agent_id, other.agent_id} <= {"dev-003", "dev-004", "dev-005"}
    assert one.agent_id != other.agent_id
    assert (ended.winner, ended.verdict.tie, ended.verdict.margin) == ("dev-002", False, 1.0)
    assert [standing.score for standing in ended.verdict.ranking] == [1.0, 0.0]
    assert ended.content == "text of s1-dev-002"


@pytest.mark.parametrize("winners", [("dev-001", "dev-002"), ("nobody", "nobody"), ("dev-002", "nobody")])
def test_judges_of_a_pair_that_disagree_make_a_tie(winners: tuple[str, str]) -> None:
    ended = judged(winners)
    assert (ended.verdict.tie, ended.verdict.margin) == (True, 0.0)
    assert [standing.score for standing in ended.verdict.ranking] == [0.5, 0.5]


def test_one_judge_alone_cannot_decide_a_pair() -> None:
    ended = judged(["dev-002", "dev-002"], failing=["s2-dev-003-1"])
    assert ended.verdict.tie
    assert "1 of 2 ballots are missing" in ended.degraded


def test_a_failed_critique_finds_nothing_and_is_reported() -> None:
    ended = run(specification(), CouncilScript(failing=["s2-dev-001"]))
    spared = next(shown(call)[0] for call in ended.asked("critique") if call.agent_id == "dev-001")
    assert spared not in {call.agent_id for call in ended.asked("revise")}
    assert ended.degraded == ("1 of 3 critiques of round 1 are missing",)


def test_a_failed_revision_keeps_the_old_text() -> None:
    ended = run(specification(), CouncilScript(failing=["s3-dev-001"]))
    assert ended.degraded == ("1 of 3 revisions of round 1 failed",)
    assert {candidate for call in ended.asked("score") for candidate in shown(call)} == {
        "dev-001",
        "dev-002",
        "dev-002#1",
        "dev-003",
        "dev-003#1",
    }
    assert (ended.winner, ended.content) == ("dev-001", "text of s1-dev-001")


def test_when_all_critiques_fail_there_is_no_round_and_the_drafts_are_scored() -> None:
    ended = run(specification(rounds=3), CouncilScript(failing=all_failing(2)))
    assert ended.purposes == ["propose", "critique", "score"]
    assert ended.degraded == ("3 of 3 critiques of round 1 are missing",)


def test_a_missing_ballot_is_missing_and_never_zero() -> None:
    flat = CouncilScript(score=lambda candidate: {"dev-001": 9, "dev-002": 8}.get(candidate, 0))
    flat.failing = ["s2-dev-001", "s2-dev-002"]
    ended = run(specification(strategy="best_of_n"), flat)
    assert [(each.agent_id, each.score) for each in ended.verdict.ranking] == [
        ("dev-001", 1.0),
        ("dev-002", 0.0),
        ("dev-003", None),
    ]
    assert ended.verdict.margin == 1.0
    assert ended.degraded == ("2 of 3 ballots are missing",)
    both = run(specification(2, strategy="best_of_n"), CouncilScript(failing=["s2-dev-001"]))
    assert [(each.agent_id, each.score) for each in both.verdict.ranking] == [("dev-001", 0.8), ("dev-002", None)]
    assert (both.verdict.margin, both.verdict.tie) == (None, False)


def brief(agent: str) -> CouncilScript:
    cost = {f"s1-{agent}": 5}
    return CouncilScript(
        score=lambda _: 5, usage=lambda call_id: Usage(completion_tokens=cost.get(call_id, 50), calls=1)
    )


@pytest.mark.parametrize("kind", ["failing", "garbled", "silent"])
@pytest.mark.parametrize("agent", agent_ids(3))
def test_without_any_ballot_the_answers_stand_unscored(kind: str, agent: str) -> None:
    script = brief(agent)
    setattr(script, kind, all_failing(2))
    ended = run(specification(strategy="best_of_n"), script)
    assert ended.winner == agent, "the chain of ties goes on to fewer tokens"
    assert {standing.score for standing in ended.verdict.ranking} == {None}
    assert (ended.verdict.margin, ended.verdict.tie, ended.verdict.agreement) == (None, False, None)
    late = ("deadline",) if kind == "silent" else ()
    assert ended.degraded == ("3 of 3 ballots are missing", "unscored", *late)


def test_an_old_version_can_win_over_the_one_that_replaced_it() -> None:
    worse = CouncilScript(score=lambda candidate: 1 if "#" in candidate else by_number(candidate))
    ended = run(specification(), worse)
    assert (ended.winner, ended.content) == ("dev-001", "text of s1-dev-001")
    assert ended.order == agent_ids(3)


def test_each_author_stands_once_where_its_best_version_does() -> None:
    scores = {"dev-001": 1, "dev-001#1": 9, "dev-002": 8, "dev-002#1": 2, "dev-003": 3, "dev-003#1": 4}
    ended = run(specification(), CouncilScript(score=scores.__getitem__))
    assert ended.order == ["dev-001", "dev-002", "dev-003"]
    standings = ended.verdict.ranking
    assert ended.verdict.margin == pytest.approx((standings[0].score or 0) - (standings[1].score or 0))
    assert ended.verdict.agreement == pytest.approx(1.0)


@pytest.mark.parametrize("agent", agent_ids(2))
def test_a_tied_pair_is_broken_by_fewer_tokens(agent: str) -> None:
    script = brief(agent)
    script.failing = all_failing(1, 5)[2:]
    ended = run(specification(5), script)
    assert (ended.winner, ended.purposes) == (agent, ["propose", "judge"])


def test_a_call_carries_its_agents_model_and_sampling() -> None:
    agents = (
        AgentSpec(agent_id="a", role="DEV", model="one", sampling=Sampling(temperature=0.7, max_tokens=100, top_p=0.9)),
        AgentSpec(agent_id="b", role="QA", sampling=Sampling(temperature=0.1, max_tokens=200)),
    )
    ended = run(specification(agents=agents), lambda call: CouncilScript(score=lambda _: 5)(call))
    settings = {
        call.call_id: (call.role, call.model, call.temperature, call.top_p, call.max_tokens) for call in ended.calls
    }
    assert settings["s1-a"] == ("DEV", "one", 0.7, 0.9, 100)
    assert settings["s2-a"] == ("DEV", "one", 0.3, 0.9, 100), "judging is cooler"
    assert settings["s2-b"] == ("QA", None, 0.1, None, 200), "and never warmer than the agent is"
    assert settings["s3-a"] == ("DEV", "one", 0.7, 0.9, 100)
    assert len({call.seed for call in ended.calls}) == len(ended.calls)
    again = run(specification(agents=agents), lambda call: CouncilScript(score=lambda _: 5)(call))
    assert [call.seed for call in again.calls] == [call.seed for call in ended.calls]


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_refused_revision_ends_the_rounds_and_leaves_room_to_score_the_drafts(rounds: int) -> None:
    dear = CouncilScript(usage=lambda call_id: Usage(calls=3 if call_id.startswith("s2-") else 1))
    ended = run(specification(2, rounds=rounds, budget=Budget(max_calls=11)), dear)
    assert ended.purposes == ["propose", "critique", "score"]
    assert ended.degraded == ("budget",)
    assert (ended.winner, ended.content) == ("dev-001", "text of s1-dev-001")
