import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.calls import ChatMessage
from app.deliberation.outputs import Answer, Critique, Issue, Output, Pair, Revision, Scores, json_schema, parse_output
from app.deliberation.prompts.council import critique, judge_pair, propose, revise, score
from app.deliberation.prompts.form import Labelled, persona_section
from serve_deployments.simulator.script import FaultKind, Script
from serve_deployments.simulator.server.completion import CompletionChoice, SimulatorSettings, complete, render
from serve_deployments.simulator.server.requests import parse_chat
from serve_deployments.simulator.writer.outputs import REVISED_HEADING, Behaviour, quality
from serve_deployments.simulator.writer.tokens import BLOCK_TOKENS, split_blocks, token_id, tokenize
from tests.unit.facts_of import RUBRIC, specification

bounded = settings(max_examples=100, deadline=None, derandomize=True)

TASK = "Design a rate limiter for a multi-tenant HTTP API. It must survive restarts and be fair between tenants."
NONCE = "0123456789ab"


def shown_as(label: str, text: str) -> Labelled:
    return Labelled(label, text, NONCE)


ROLES = Path(__file__).parents[3] / "app" / "roles.yaml"
PERSONAS = {name: role["persona"] for name, role in yaml.safe_load(ROLES.read_text())["roles"].items()}
SPECIFICATION = specification(1, seed=1).model_copy(update={"task": TASK})
CRITERIA = tuple(criterion.id for criterion in RUBRIC)


def completions(
    messages: Sequence[ChatMessage] | str,
    *,
    role: str | None = None,
    script: Script | None = None,
    fault: FaultKind | None = None,
    server_seed: int = 0,
    **fields: Any,
) -> list[CompletionChoice]:
    if isinstance(messages, str):
        turns = [{"role": "user", "content": messages}]
    else:
        turns = [{"role": message.role, "content": message.content} for message in messages]
    if role is not None:
        turns[-1]["content"] += persona_section(PERSONAS[role])
    request, conversation = parse_chat(json.dumps({"messages": turns, **fields}).encode())
    settings = SimulatorSettings("simulated-test", server_seed)
    return complete(settings, request, render(conversation), script or Script(), fault)


def text(messages: Sequence[ChatMessage] | str, **options: Any) -> str:
    return completions(messages, **options)[0].text


def parsed(messages: Sequence[ChatMessage], output: Output, **options: Any) -> Any:
    wanted = {"type": "json_schema", "json_schema": {"name": "output", "schema": json_schema(output)}}
    return parse_output(output, text(messages, response_format=wanted, **options))


def behaving(behaviour: str, **fields: Any) -> Script:
    return Script(behaviour=Behaviour(behaviour), **fields)


@bounded
@given(st.text(max_size=400))
def test_every_character_is_in_exactly_one_token(written: str) -> None:
    tokens = tokenize(written)
    assert "".join(tokens) == written


@bounded
@given(st.text(max_size=400), st.integers(0, 100))
def test_a_text_cut_between_tokens_keeps_its_tokens(written: str, kept: int) -> None:
    tokens = tokenize(written)[:kept]
    assert tokenize("".join(tokens)) == tokens


@bounded
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=900))
def test_blocks_hold_sixteen_tokens_each_but_the_last(written: str) -> None:
    total, blocks = split_blocks(written)
    assert "".join(blocks) == written
    assert total == len(tokenize(written))
    assert all(len(tokenize(block)) == BLOCK_TOKENS for block in blocks[:-1])


def test_token_ids_are_stable() -> None:
    assert [token_id(token) for token in tokenize("a rate limiter")] == [114_243, 79_932, 33_079]


@pytest.mark.parametrize(
    "prompt", ["", " \n", "# Task\n", "# Task\n# Rubric\n- x: y", "你好", "?" * 5_000, "\u0000{a}%s{}"]
)
def test_any_prompt_gets_an_answer(prompt: str) -> None:
    assert text(prompt)


def test_the_same_seed_gives_the_same_words_in_every_process() -> None:
    """A golden line: drawing with a process-wide hash or the clock would change it."""
    assert text("# Task\nPlan the roll-out of a payment service.", seed=7).splitlines()[0] == (
        "“Plan the roll-out of a payment service” is decided by its limits, so they come first."
    )


@pytest.mark.parametrize(
    "changed",
    [{"seed": 2}, {"server_seed": 1}, {"script": behaving("excellent")}, {"role": "QA"}],
    ids=lambda changed: next(iter(changed)),
)
def test_an_answer_depends_on_the_seeds_the_behaviour_and_the_persona(changed: dict[str, Any]) -> None:
    fixed: dict[str, Any] = {"seed": 1, "role": "DEV"}
    assert text(propose(SPECIFICATION, 0), **fixed) != text(propose(SPECIFICATION, 0), **{**fixed, **changed})


def test_answers_are_about_the_task() -> None:
    for role in PERSONAS:
        answer: Answer = parsed(propose(SPECIFICATION, 0), Output(kind="answer"), role=role, seed=1)
        assert "rate limiter" in answer.answer
        assert 60 <= answer.confidence <= 95


def test_excellent_answers_are_longer_and_better_than_poor_ones() -> None:
    written = {str(name): text(propose(SPECIFICATION, 0), role="DEV", script=behaving(name)) for name in Behaviour}
    assert len(written["excellent"]) > 1.5 * len(written["normal"]) > 3 * len(written["poor"])
    grades = {name: quality(answer) for name, answer in written.items()}
    assert grades["excellent"] > grades["poor"] + 2
    assert grades["normal"] > grades["poor"] + 1


def test_a_verdict_follows_from_the_issues() -> None:
    for seed in range(40):
        found: Critique = parsed(
            critique(SPECIFICATION, shown_as("A", "Some text.")), Output(kind="critique"), seed=seed
        )
        severities = {issue.severity for issue in found.issues}
        expected = "reject" if "blocker" in severities else "revise" if "major" in severities else "accept"
        assert found.verdict == expected


def test_most_critiques_of_a_draft_demand_a_revision_and_few_of_a_revised_one() -> None:
    def demanding(candidate: str) -> float:
        asked = critique(SPECIFICATION, shown_as("A", candidate))
        return statistics.mean(parsed(asked, Output(kind="critique"), seed=seed).demands_revision for seed in range(60))

    assert demanding("A first draft.") > 0.6
    assert demanding(f"A draft.\n\n{REVISED_HEADING}\n\n- More.") == 0


def test_a_revision_answers_each_issue_and_contains_the_accepted_fixes() -> None:
    issues = [Issue(severity="major", where="x", claim="y", evidence="z", fix=f"Mend {place}.") for place in range(4)]
    for seed in range(20):
        asked = revise(SPECIFICATION, shown_as("A", "My own text."), issues, NONCE)
        revised: Revision = parsed(asked, Output(kind="revision", issues=4), seed=seed)
        assert [each.issue for each in revised.responses] == [1, 2, 3, 4]
        accepted = [each.decision == "accept" for each in revised.responses]
        assert [f"Mend {place}." in revised.answer for place in range(4)] == accepted
        assert revised.answer.startswith("My own text.")


GOOD = text(propose(SPECIFICATION, 0), role="DEV", seed=1, script=behaving("excellent"))
FAIR = text(propose(SPECIFICATION, 0), role="DATA", seed=2)
POOR = text(propose(SPECIFICATION, 0), role="QA", seed=3, script=behaving("poor"))


def mean_scores(shown: Sequence[tuple[str, str]], seed: int) -> dict[str, float]:
    output = Output(kind="score", labels=tuple(label for label, _ in shown), criteria=CRITERIA)
    ballot: Scores = parsed(score(SPECIFICATION, [shown_as(*each) for each in shown]), output, seed=seed)
    return {
        candidate: statistics.mean(entry.score for entry in ballot.candidates[label].criteria)
        for label, candidate in shown
    }


@pytest.mark.parametrize("order", list(itertools.permutations([GOOD, FAIR, POOR])))
def test_reviewers_agree_on_the_order_whatever_the_labels(order: tuple[str, ...]) -> None:
    shown = list(zip("ABC", order, strict=True))
    for seed in range(10):
        grades = mean_scores(shown, seed)
        assert grades[GOOD] > grades[FAIR] > grades[POOR]


def test_reviewers_give_one_text_nearly_the_same_score() -> None:
    grades = [
        mean_scores(list(zip("AB", order, strict=True)), seed)[FAIR]
        for order in ((GOOD, FAIR), (FAIR, GOOD), (FAIR, POOR))
        for seed in range(20)
    ]
    assert max(grades) - min(grades) <= 1.5


def test_a_pair_gets_the_same_winner_in_both_orders() -> None:
    for seed in range(20):
        forth: Pair = parsed(
            judge_pair(SPECIFICATION, shown_as("A", GOOD), shown_as("B", POOR)), Output(kind="pair"), seed=seed
        )
        back: Pair = parsed(
            judge_pair(SPECIFICATION, shown_as("A", POOR), shown_as("B", GOOD)), Output(kind="pair"), seed=seed
        )
        assert (forth.winner, back.winner) == ("A", "B")
        assert forth.margin >= 2
    same: Pair = parsed(judge_pair(SPECIFICATION, shown_as("A", GOOD), shown_as("B", GOOD)), Output(kind="pair"))
    assert same.winner == "tie"


def test_a_choice_between_candidates_takes_the_better_one() -> None:
    shown = judge_pair(SPECIFICATION, shown_as("A", POOR), shown_as("B", GOOD))
    assert parsed(shown, Output(kind="choice", labels=("A", "B"))).choice == "B"


@pytest.mark.parametrize("length", [1, 5, 32, 400, 3_000])
def test_a_fixed_length_holds_for_text(length: int) -> None:
    (choice,) = completions(TASK, script=Script(tokens=length))
    assert (len(tokenize(choice.text)), choice.finish_reason) == (length, "stop")


def test_a_fixed_length_holds_for_json_by_white_space_at_its_end() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": json_schema(Output(kind="answer"))}}
    (choice,) = completions(TASK, script=Script(tokens=64), response_format=wanted)
    assert len(tokenize(choice.text)) == 64
    parse_output(Output(kind="answer"), choice.text)


@pytest.mark.parametrize("limit", [1, 7, 20])
def test_max_tokens_cuts_the_text_with_finish_reason_length(limit: int) -> None:
    whole = completions(TASK)[0]
    (choice,) = completions(TASK, max_tokens=limit)
    assert choice.tokens == whole.tokens[:limit]
    assert choice.finish_reason == "length"


def test_ignore_eos_writes_up_to_the_limit() -> None:
    (choice,) = completions(TASK, max_tokens=700, ignore_eos=True)
    assert (len(choice.tokens), choice.finish_reason) == (700, "length")
