import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.deliberation.choice.anonymity import arrangements
from app.deliberation.choice.ballots import Ballot, author, ballot
from app.deliberation.outputs import Scores
from app.deliberation.strategies import strategy_run as steps
from app.deliberation.strategies import vote
from app.deliberation.strategies.strategy_run import Candidate, Step, StrategyRun
from app.deliberation.strategies.vote import VoteStopRule
from app.deliberation.strategies.vote import wave as exact_wave
from benchmarks.quality.__main__ import experiments, main, proof
from benchmarks.quality.closed_forms import plurality
from benchmarks.quality.experiments import Experiment, distribution_of, matched_votes, run
from benchmarks.quality.simulated_agents import AgentModel

SEED, RUNS = 1, 600
# Fewer than `python -m benchmarks.quality` runs.
TABLE_RUNS = 200
EXPERIMENTS = {each.name: each for each in experiments()}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
def test_every_figure_lies_within_three_standard_errors_of_theory(experiment: Experiment) -> None:
    assert run(experiment, TABLE_RUNS, SEED).outside == []


def misread_letters(patch: pytest.MonkeyPatch) -> None:
    def shifted(reviewer: str, labels: Mapping[str, str], scores: Scores) -> Ballot:
        shown = list(labels.values())
        return ballot(reviewer, dict(zip(labels, [*shown[1:], shown[0]], strict=True)), scores)

    patch.setattr(steps, "ballot", shifted)


def count_one_ballot(patch: pytest.MonkeyPatch) -> None:
    scored = StrategyRun.scored

    def the_first_alone(
        course: StrategyRun, candidates: Sequence[Candidate], round: int, stages_left: int = 1, **form: bool
    ) -> Step[list[Ballot]]:
        found = yield from scored(course, candidates, round, stages_left, **form)
        return found[:1]

    patch.setattr(StrategyRun, "scored", the_first_alone)


def show_everybody_the_same_order(patch: pytest.MonkeyPatch) -> None:
    def fixed(
        candidates: Collection[str], reviewers: Collection[str], seed: int, round: int
    ) -> dict[str, tuple[str, ...]]:
        return {
            reviewer: tuple(each for each in sorted(candidates) if author(each) != reviewer) for reviewer in reviewers
        }

    assert fixed(["a", "b"], ["c"], 1, 1).keys() == arrangements(["a", "b"], ["c"], 1, 1).keys()
    patch.setattr(steps, "arrangements", fixed)


def believe_one_order(patch: pytest.MonkeyPatch) -> None:
    judged = StrategyRun.judged

    def first_alone(
        course: StrategyRun, first: Candidate, second: Candidate, judges: Sequence[str], round: int, **form: bool
    ) -> Step[list[tuple[str, str | None]]]:
        heard = yield from judged(course, first, second, judges, round, **form)
        return heard[:1] * 2

    patch.setattr(StrategyRun, "judged", first_alone)


def stop_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    def hasty(rule: VoteStopRule, first: int, second: int, left: int, needed: int) -> int:
        # Too early by one vote: with two answers and an odd number of agents, no lead equals the votes left.
        return 0 if first and first - second >= left - 1 else exact_wave(rule, first, second, left, needed)

    patch.setattr(vote, "wave", hasty)


def ask_one_vote_more(patch: pytest.MonkeyPatch) -> None:
    def greedy(rule: VoteStopRule, first: int, second: int, left: int, needed: int) -> int:
        asked = exact_wave(rule, first, second, left, needed)
        return min(left, asked + 1) if asked else 0

    patch.setattr(vote, "wave", greedy)


BROKEN: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, set[str]]] = {
    misread_letters: ("best_of_n: N=5 p=.7 ρ=0 q=.8, reviewers alone", {"right"}),
    count_one_ballot: ("best_of_n: N=3 p=.7 ρ=0 q=.8, reviewers alone", {"right"}),
    show_everybody_the_same_order: (
        "best_of_n: N=3 equal answers, b=.15, places rotated",
        {"agent 1 of 3 wins", "agent 3 of 3 wins"},
    ),
    believe_one_order: ("best_of_n: a pair in both orders, q=.7 b=.15", {"both orders agree"}),
    stop_before_it_is_decided: ("vote: N=5 p=.7, stop unassailable", {"calls", "winner is the full vote's"}),
    ask_one_vote_more: ("vote: N=5 p=.7, stop unassailable", {"calls"}),
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_the_table_detects_broken_code(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, outside = BROKEN[broken]
    broken(monkeypatch)
    found = run(EXPERIMENTS[name], RUNS * EXPERIMENTS[name].effort, SEED)
    assert outside <= {figure.what for figure in found.outside}, found.figures


def test_the_command_prints_every_figure_and_fails_when_one_is_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quality", "--runs", "20", "--strategy", "single"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert printed.startswith("SIMULATED") and "2 of 2 figures lie within 3σ" in printed and "exact" in printed
    single = EXPERIMENTS["single: p=.7"]
    clever = replace(single, setting=replace(single.setting, model=AgentModel(accuracy=1.0)))
    assert not proof([clever], 100, 1, as_json=False)
    printed = capsys.readouterr().out
    assert "✘ outside" in printed and "1 of 2 figures lie within" in printed


def test_the_docs_show_every_row_with_its_prediction() -> None:
    page = (Path(__file__).parents[3] / "docs" / "quality.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 6]
    rows = [theory(each) for each in EXPERIMENTS.values()]
    assert table == rows, "write these rows into docs/quality.md, in this order:\n" + "\n".join(
        row for row in rows if row not in table
    )


def theory(experiment: Experiment) -> str:
    right = "–" if experiment.right is None else f"{experiment.right:.3f}"
    votes = matched_votes(experiment)
    vote = "–" if votes is None else f"{plurality(distribution_of(experiment.setting, votes)):.3f} of {votes}"
    return f"| `{experiment.setting.strategy}` | {experiment.about} | {right} | {experiment.calls:.2f} | {vote} |"
