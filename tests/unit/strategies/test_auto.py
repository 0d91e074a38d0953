from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from app.deliberation.specification import Budget
from app.deliberation.strategies.auto import ESCALATIONS, AutoParameters
from tests.unit.facts_of import CouncilScript, Run, agent_ids, run, specification
from tests.unit.strategies.voting import FAILS, answering, waves

every_escalation = pytest.mark.parametrize("chosen", ESCALATIONS)


def auto(
    said: Sequence[str],
    parameters: Mapping[str, Any] | None = None,
    *,
    rounds: int = 1,
    budget: Budget | None = None,
    script: CouncilScript | None = None,
) -> Run:
    filled = AutoParameters.model_validate(dict(parameters or {})).model_dump(mode="json")
    asked = specification(len(said), strategy="auto", parameters=filled, rounds=rounds, budget=budget)
    return run(asked, script or answering(said))


@pytest.mark.parametrize(
    ("said", "sizes"),
    [(["Blue"], [1]), (["Blue", "blue"], [2]), (["Blue", "blue.", "**Blue**"], [3]), (["Blue"] * 9, [3])],
)
def test_unanimous_drafts_are_the_answer(said: list[str], sizes: list[int]) -> None:
    ended = auto(said)
    assert (waves(ended), ended.purposes) == (sizes, ["propose"])
    assert (ended.winner, ended.content, ended.degraded) == ("dev-001", "Blue", ())
    found = ended.verdict
    assert [(each.answer, each.votes) for each in found.tally] == [("blue", len(ended.calls))]
    assert (found.agreement, found.margin) == ((None, None) if len(said) == 1 else (1.0, 1.0))


@every_escalation
@pytest.mark.parametrize("size", [2, 3, 5])
def test_an_escalation_is_the_chosen_strategy_but_for_the_waves_of_its_proposals(chosen: str, size: int) -> None:
    said = [f"Colour {place}" for place in range(size)]
    escalated = auto(said, {"escalate_to": chosen})
    whole = run(specification(size, strategy=chosen), answering(said))
    assert [(call.agent_id, call.messages) for call in escalated.calls] == [
        (call.agent_id, call.messages) for call in whole.calls
    ]
    if size <= 3:
        assert escalated.calls == whole.calls
    fields = {"call_id", "strategy"}
    assert escalated.verdict.model_dump(exclude=fields) == whole.verdict.model_dump(exclude=fields)


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        (["a", "b"], [2]),
        (["a", "a", "b"], [3]),
        (["a", "a", "b", "a", "a"], [3, 2]),
        (["a", FAILS, "a", "a", "a"], [3, 2]),
        ([FAILS, FAILS, FAILS, "a", "a"], [3, 2]),
    ],
)
def test_a_dissenting_or_missing_first_draft_triggers_the_escalation(said: list[str], sizes: list[int]) -> None:
    ended = auto(said, {"escalate_to": "best_of_n"})
    assert waves(ended) == sizes
    assert set(ended.purposes) - {"propose"} <= {"score", "judge"}
    drafted = [call.agent_id for call in ended.asked("propose")]
    assert drafted == agent_ids(len(said)), "each agent proposes once"
    missing = said.count(FAILS)
    assert ended.degraded[:1] == ((f"{len(said) - missing} of {len(said)} agents answered",) if missing else ())


def test_an_unreadable_answer_is_no_agreement_and_is_reported() -> None:
    ended = auto(["7", "seven", "7.0", "7"], {"normaliser": "number", "escalate_to": "best_of_n"})
    assert ended.purposes == ["propose", "propose", "score"]
    assert ended.degraded == ("1 of 4 answers could not be read as a number",)
    alike = auto(["7", "$7", "It is 7.0", "8"], {"normaliser": "number"})
    assert (alike.purposes, alike.degraded) == (["propose"], ())


def test_the_escalations_parameters_and_rounds_reach_it() -> None:
    said = ["a", "b", "c", "d"]
    knockout = auto(said, {"escalate_to": "tournament", "escalation": {"format": "knockout"}})
    assert len(knockout.calls) == 4 + 2 * 3
    assert auto(said, rounds=0).purposes == ["propose", "propose", "score"]
    assert auto(said, rounds=2).purposes == ["propose", "propose", *["critique", "revise"] * 2, "score"]


@pytest.mark.parametrize(
    ("max_calls", "purposes", "more"),
    [
        (3, ["propose"], ("unscored", "decided by votes", "budget")),
        (5, ["propose", "propose"], ("unscored", "decided by votes", "budget")),
        (10, ["propose", "propose", "score"], ()),
    ],
)
def test_a_refused_escalation_leaves_the_plurality_of_the_drafts(
    max_calls: int, purposes: list[str], more: tuple[str, ...]
) -> None:
    said = ["b", "a", "a", "c", "d"]
    ended = auto(said, {"escalate_to": "best_of_n"}, budget=Budget(max_calls=max_calls))
    assert (ended.purposes, ended.degraded) == (purposes, more)
    if more:
        assert (ended.content, ended.verdict.tally[0].votes) == ("a", 2)


@pytest.mark.parametrize(
    ("said", "normaliser"),
    [(["a", "b", "c"], "text"), (["a", "b", "b", "a"], "text"), (["7", "none", "none"], "number")],
)
def test_drafts_of_which_no_two_agree_or_two_lead_are_no_plurality(said: list[str], normaliser: str) -> None:
    budget = Budget(max_calls=len(said))
    ended = auto(said, {"escalate_to": "best_of_n", "normaliser": normaliser}, budget=budget)
    assert ended.degraded[-2:] == ("unscored", "budget")
    assert ended.verdict.tally == ()


@pytest.mark.parametrize(
    ("given_", "where"),
    [
        ({"escalate_to": "vote"}, ("escalate_to",)),
        ({"escalate_to": "auto"}, ("escalate_to",)),
        ({"normaliser": "none"}, ("normaliser",)),
        ({"options": ["a"]}, ("options",)),
        ({"escalation": []}, ("escalation",)),
        ({"escalation": {"rounds_of_pairs": 2}}, ("escalation", "rounds_of_pairs")),
        ({"escalate_to": "tournament", "escalation": {"format": "league"}}, ("escalation", "format")),
        ({"escalate_to": "fuse", "escalation": {"format": "swiss"}}, ("escalation", "format")),
        ({"escalate_to": "debate", "escalation": {"normaliser": "number"}}, ("escalation", "normaliser")),
        (
            {"normaliser": "number", "escalate_to": "debate", "escalation": {"normaliser": "text"}},
            ("escalation", "normaliser"),
        ),
        (
            {
                "normaliser": "choice",
                "options": ["a", "b"],
                "escalate_to": "debate",
                "escalation": {"options": ["a", "c"]},
            },
            ("escalation", "options"),
        ),
        ({"normaliser": "number", "escalation": {"normaliser": "number"}}, ("escalation", "normaliser")),
        ({"escalate_to": "nothing", "escalation": {"format": "swiss"}}, ("escalate_to",)),
    ],
)
def test_parameters_of_the_escalation_are_held_to_its_own_schema(
    given_: dict[str, Any], where: tuple[str, ...]
) -> None:
    with pytest.raises(ValidationError) as refused:
        AutoParameters.model_validate(given_)
    assert [error["loc"] for error in refused.value.errors()] == [where]


@pytest.mark.parametrize("named", [{}, {"normaliser": "choice"}, {"options": ["a", "b"]}])
def test_an_escalation_that_counts_reads_answers_as_the_drafts_were_read(named: dict[str, Any]) -> None:
    given = {"normaliser": "choice", "options": ["a", "b"], "escalate_to": "debate", "escalation": named}
    filled = AutoParameters.model_validate(given).model_dump(mode="json")
    assert {name: filled["escalation"][name] for name in ("normaliser", "options")} == {
        "normaliser": "choice",
        "options": ["a", "b"],
    }
    assert AutoParameters.model_validate(filled).model_dump(mode="json") == filled


def test_a_debate_after_escalation_counts_the_requested_form() -> None:
    for seed in range(20):
        filled = AutoParameters.model_validate({"normaliser": "number", "escalate_to": "debate"}).model_dump(
            mode="json"
        )
        asked = specification(3, strategy="auto", parameters=filled, rounds=0, seed=seed)
        ended = run(asked, answering(["It is 391.", "17 · 23 = 391", "392"]))
        assert ended.verdict.tally[0].answer == "391", f"seed {seed}"
