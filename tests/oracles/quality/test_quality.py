import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product

import pytest

from app.deliberation.calls import Call
from app.deliberation.decider import Conclusion
from app.deliberation.specification import Purpose
from app.deliberation.strategies import STRATEGIES
from benchmarks.quality import closed_forms, contest_forms, experiments
from benchmarks.quality.__main__ import experiments as all_experiments
from benchmarks.quality.simulated_agents import RIGHT, WRONG, AgentModel, SimulatedAgents, chance
from benchmarks.quality.trials import Setting, agent_ids, deliberate, specification
from tests.fakes import Reply
from tests.unit.facts_of import BROKEN, run

DistributionOf = Callable[[int, float, float], closed_forms.Distribution]


@pytest.mark.parametrize(
    ("correlation", "published"),
    [(0.0, [0.784, 0.837, 0.901]), (0.1, [0.762, 0.794, 0.827]), (0.44, [0.718, 0.725, 0.730])],
)
def test_plurality_matches_the_published_figures(correlation: float, published: Sequence[float]) -> None:
    laws = [closed_forms.right_drafts(agents, 0.7, correlation) for agents in (3, 5, 9)]
    assert [round(closed_forms.plurality(distribution), 3) for distribution in laws] == published


def test_both_orders_match_the_published_figures() -> None:
    assert contest_forms.orders_agree(0.7, 0.15) == pytest.approx(0.535)
    assert contest_forms.right_when_consistent(0.7, 0.15) == pytest.approx(0.874, abs=5e-4)


@pytest.mark.parametrize(
    ("first", "second", "stops"), [(4, 0, True), (6, 1, True), (3, 0, False), (5, 1, False), (0, 0, False)]
)
def test_the_beta_rule_stops_at_the_published_counts(first: int, second: int, stops: bool) -> None:
    assert (closed_forms.beta_confidence(first, second) >= 0.95) == stops


@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.44])
@pytest.mark.parametrize("distribution_of", [closed_forms.right_drafts, closed_forms.common_cause])
def test_the_distribution_of_right_drafts_has_the_given_accuracy_and_correlation(
    distribution_of: DistributionOf, correlation: float
) -> None:
    distribution = distribution_of(6, 0.7, correlation)
    mean = closed_forms.expected(distribution, float)
    variance = closed_forms.expected(distribution, lambda k: (k - mean) ** 2)
    assert sum(distribution) == pytest.approx(1) and mean == pytest.approx(4.2)
    # Var = Np(1-p)·(1 + (N-1)ρ)
    assert variance == pytest.approx(6 * 0.21 * (1 + 5 * correlation))


def test_independent_reviewers_match_a_manual_count() -> None:
    q = 0.8
    given = closed_forms.selected_by_independent_reviewers(3, q)
    # Both reviewers of a single right draft must prefer it; a single wrong draft leads only if both prefer it.
    assert [given(k) for k in range(4)] == pytest.approx([0, q**2, 1 - (1 - q) ** 2, 1])
    with pytest.raises(ValueError, match="can tie"):
        closed_forms.selected_by_independent_reviewers(4, q)(2)


def test_identical_reviewers_match_a_manual_count() -> None:
    distribution = closed_forms.right_drafts(3, 0.7)
    given = closed_forms.selected_of_versions(3, kept=1.0, repaired=0.0, judge=0.8)
    assert closed_forms.expected(distribution, given) == pytest.approx(0.8 * (1 - 0.3**3) + 0.2 * 0.7**3)


@pytest.mark.parametrize(("fix", "harm"), [(0.4, 0.2), (0.0, 0.0), (1.0, 1.0), (0.3, 0.0)])
def test_the_chain_of_revisions_is_the_product_of_its_steps(fix: float, harm: float) -> None:
    kept, repaired = 1.0, 0.0
    for rounds in range(5):
        assert closed_forms.kept_and_repaired(fix, harm, rounds) == pytest.approx((kept, repaired))
        kept, repaired = kept * (1 - harm) + (1 - kept) * fix, repaired * (1 - harm) + (1 - repaired) * fix


def test_neutral_revisions_keep_the_accuracy() -> None:
    kept, repaired = closed_forms.kept_and_repaired(0.28, 0.12, 3)
    assert 0.7 * kept + 0.3 * repaired == pytest.approx(0.7)


def test_a_stopped_vote_matches_the_published_calls_and_accuracy() -> None:
    five = closed_forms.stopped_vote(5, 0.7, closed_forms.unassailable)
    fifteen = closed_forms.stopped_vote(15, 0.8, closed_forms.unassailable)
    assert five.calls == pytest.approx(3.90, abs=0.006) and fifteen.calls == pytest.approx(9.99, abs=0.005)
    # An exact stop changes no winner.
    assert five.right == pytest.approx(closed_forms.plurality(closed_forms.right_drafts(5, 0.7)))
    beta = closed_forms.stopped_vote(15, 0.8, closed_forms.beta_rule)
    assert beta.calls < fifteen.calls and beta.right < fifteen.right


def test_several_wrong_answers_split_the_wrong_votes() -> None:
    assert closed_forms.plurality_of_many(5, 0.4, 4) == pytest.approx(0.549, abs=5e-4)
    one_wrong = closed_forms.plurality(closed_forms.right_drafts(5, 0.4))
    assert closed_forms.plurality_of_many(5, 0.4, 1) == pytest.approx(one_wrong) == pytest.approx(0.317, abs=5e-4)


def test_debate_changes_nothing_with_a_majority_and_decides_a_draw() -> None:
    distribution = closed_forms.right_drafts(5, 0.7)
    assert closed_forms.debated(distribution, 0.8, 0.5, 0.2).right == pytest.approx(
        closed_forms.plurality(distribution)
    )
    # Three of five, two dissent: 7 calls; four or five agree: 5.
    assert closed_forms.debated(distribution, 0.8, 0.5, 0.2).calls == pytest.approx(
        5 + 2 * (distribution[2] + distribution[3])
    )
    drawn: closed_forms.Distribution = [0, 1, 0]
    assert closed_forms.debated(drawn, 0.8, fix=1.0, harm=0.0) == closed_forms.Prediction(1.0, 4.0)
    assert closed_forms.debated(drawn, 0.8, fix=0.0, harm=0.0) == closed_forms.Prediction(0.5, 4.0)


def test_a_perfect_gate_adds_the_writers_gains_and_a_closed_one_adds_nothing() -> None:
    right, _ = contest_forms.fused(0.6, 0.9, writer=0.5, judge=1.0, bias=0.0)
    assert right == pytest.approx(0.6 + 0.3 * 0.5)
    assert contest_forms.fused(0.6, 0.9, writer=0.5, judge=0.5, bias=0.5) == pytest.approx((0.6, 0.0))


@pytest.mark.parametrize("bias", [0.0, 0.15, 0.3])
def test_perfect_judges_find_a_right_draft_and_random_judges_any(bias: float) -> None:
    distribution = closed_forms.right_drafts(4, 0.6)
    some_right = 1 - 0.4**4
    assert contest_forms.knockout_of_four(0.6, judge=1.0, bias=0.0) == pytest.approx(some_right)
    assert closed_forms.expected(distribution, contest_forms.round_robin(4, 1.0, 0.0)) == pytest.approx(some_right)
    assert contest_forms.knockout_of_four(0.6, judge=0.5, bias=bias) == pytest.approx(0.6)
    assert closed_forms.expected(distribution, contest_forms.round_robin(4, 0.5, bias)) == pytest.approx(0.6)


def test_escalation_equals_its_target_without_unanimity_and_stops_with_it() -> None:
    sure: closed_forms.Distribution = [0, 0, 0, 1]
    assert closed_forms.escalated(sure, 3, float, 12) == closed_forms.Prediction(1.0, 3.0)
    split: closed_forms.Distribution = [0, 0, 1, 0]
    assert closed_forms.escalated(split, 3, lambda _: 0.8, 12) == closed_forms.Prediction(0.8, 12.0)
    # Of two wrong ones among five, the first three are all right in one of ten cases.
    assert closed_forms.unanimous(5, 3, 3) == (0.1, 0.0)


def test_disagreeing_tests_choose_the_larger_group() -> None:
    given = closed_forms.tested_by_two(5, 0.7)
    assert [given(k) for k in (0, 1, 3, 5)] == pytest.approx([0, 0.49, 0.49 + 0.42, 1])


def test_a_band_is_three_standard_errors_and_zero_for_an_exact_prediction() -> None:
    halves = [True] * 50 + [False] * 50
    assert experiments.share("x", halves, 0.5).band == pytest.approx(0.15)
    assert experiments.share("x", halves, 0.64).within and not experiments.share("x", halves, 0.66).within
    assert (
        experiments.share("x", [True] * 9, 1.0).within and not experiments.share("x", [True] * 9 + [False], 1.0).within
    )
    assert experiments.mean("calls", [6, 6, 6], 6).within and not experiments.mean("calls", [6, 6, 6], 6.001).within
    assert experiments.mean("calls", [6], 6).sigma == 0
    with pytest.raises(ValueError, match="at least one"):
        experiments.mean("calls", [], 6)


def asked(setting: Setting, purpose: Purpose, seed: int = 3) -> Call:
    return deliberate(setting, seed).of(purpose)[0].call


def test_a_simulated_agent_reads_only_its_prompt() -> None:
    setting = Setting(
        strategy="best_of_n",
        agents=3,
        model=AgentModel(planted=dict(zip(agent_ids(3), (RIGHT, "41", "43"), strict=True))),
    )
    call = asked(setting, "score")
    agents = SimulatedAgents(AgentModel(), 3)
    blind = call.model_copy(update={"labels": dict.fromkeys(call.labels, "dev-009")})
    assert agents.answer(call, "score") == agents.answer(blind, "score")
    swapped = call.messages[-1].content.replace(f"\n{RIGHT}\n", "\n40\n")
    other = call.model_copy(
        update={"messages": (call.messages[0], call.messages[-1].model_copy(update={"content": swapped}))}
    )
    assert (agents.answer(call, "score") == agents.answer(other, "score")) == (call.agent_id == agent_ids(1)[0])


def test_the_simulated_sandbox_passes_the_expected_result() -> None:
    given = {"tests": [{"name": "t", "call": "solve", "expected": RIGHT}], "test_writers": 0}
    planted = dict(zip(agent_ids(2), (RIGHT, "41"), strict=True))
    trial = deliberate(
        Setting(strategy="execute", agents=2, rounds=0, model=AgentModel(planted=planted), parameters=given), 1
    )
    reports = [json.loads(each.text or "")["outcomes"] for each in trial.of("check")]
    assert [[outcome["passed"] for outcome in report] for report in reports] == [[True], [False]]
    # A check makes no engine request.
    assert trial.calls == 2 and trial.right


def test_a_fused_text_is_right_only_if_some_candidate_is() -> None:
    for drafts, writer, right in (
        ((RIGHT, "41", "41"), 1.0, True),
        (("41",) * 3, 1.0, False),
        ((RIGHT,) * 3, 0.0, False),
    ):
        model = AgentModel(writer=writer, planted=dict(zip(agent_ids(3), drafts, strict=True)))
        trial = deliberate(Setting(strategy="fuse", agents=3, model=model), 1)
        (written,) = trial.of("fuse")
        assert (json.loads(written.text or "")["answer"] == RIGHT) == right


def rate(hits: Iterable[bool], wanted: float) -> None:
    assert experiments.share("rate", list(hits), wanted).within


@pytest.mark.parametrize("common_cause", [False, True])
def test_drafts_have_the_accuracy_and_correlation_of_their_model(common_cause: bool) -> None:
    model = AgentModel(accuracy=0.7, correlation=0.44, common_cause=common_cause)
    setting = Setting(strategy="independent", agents=2, model=model)
    drafts = [
        [json.loads(each.text or "")["answer"] == RIGHT for each in deliberate(setting, seed).trial_calls]
        for seed in range(800)
    ]
    rate((first for first, _ in drafts), 0.7)
    # Both right: p² + ρp(1-p).
    rate((first and second for first, second in drafts), 0.49 + 0.44 * 0.21)


def test_wrong_answers_are_equally_likely() -> None:
    setting = Setting(strategy="independent", agents=4, model=AgentModel(accuracy=0.0, wrong_answers=4))
    answers = [
        json.loads(each.text or "")["answer"] for seed in range(300) for each in deliberate(setting, seed).trial_calls
    ]
    for wrong in WRONG[:4]:
        rate((answer == wrong for answer in answers), 0.25)


NUMBERS = {"normaliser": "number"}
IMPERFECT = AgentModel(accuracy=0.5, detect=0.5, alarm=0.5, fix=0.5, harm=0.5, judge=0.7, pair_bias=0.1, tester=0.6)
SETTINGS = [
    Setting(strategy="single", agents=2),
    Setting(strategy="independent", agents=2),
    Setting(strategy="best_of_n", agents=3, model=AgentModel(judge=0.7, place_bias=0.15)),
    Setting(strategy="best_of_n", agents=5, model=AgentModel(planted={"dev-001": RIGHT, "dev-004": "41"})),
    Setting(strategy="council", agents=4, rounds=2, model=IMPERFECT),
    Setting(strategy="vote", agents=9, model=IMPERFECT, parameters=NUMBERS),
    Setting(strategy="vote", agents=4, model=IMPERFECT, parameters={"normaliser": "none"}),
    Setting(strategy="debate", agents=4, rounds=2, model=IMPERFECT, parameters=NUMBERS),
    Setting(strategy="fuse", agents=4, model=IMPERFECT),
    Setting(strategy="tournament", agents=4, model=IMPERFECT),
    Setting(strategy="auto", agents=4, model=IMPERFECT, parameters=NUMBERS),
    Setting(strategy="execute", agents=3, rounds=2, model=IMPERFECT),
]


def test_every_strategy_has_experiments() -> None:
    assert {setting.strategy for setting in SETTINGS} == STRATEGIES.keys(), "add the new strategy to SETTINGS here"
    # `independent` has no verdict.
    measured = {each.setting.strategy for each in all_experiments()}
    assert measured == STRATEGIES.keys() - {"independent"}, "add an experiment to benchmarks/quality"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.strategy}-{setting.agents}")
def test_a_trial_reaches_the_same_conclusion_as_the_engine(setting: Setting) -> None:
    for seed in range(3):
        trial = deliberate(setting, seed)
        agents = SimulatedAgents(setting.model, seed)
        purposes: dict[str, Purpose] = {each.call.call_id: each.purpose for each in trial.trial_calls}

        def reply(call: Call, agents: SimulatedAgents = agents, purposes: dict[str, Purpose] = purposes) -> Reply:
            text = agents.answer(call, purposes[call.call_id])
            return Reply(text=text, problem=BROKEN if text is None else None)

        full = run(specification(setting, seed), reply)
        assert full.calls == [each.call for each in trial.trial_calls]
        verdict = full.completed.verdict
        assert verdict is not None and full.degraded == trial.conclusion.degraded
        fields = {name for name in Conclusion.__dataclass_fields__ if name != "degraded"}
        assert {name: getattr(verdict, name) for name in fields} == {n: getattr(trial.conclusion, n) for n in fields}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("accuracy", {"accuracy": 0.6}),
        ("judge", {"judge": 0.6}),
    ],
)
def test_detects_agents_that_differ_from_the_prediction(name: str, changed: dict[str, float]) -> None:
    experiment = next(each for each in all_experiments(["best_of_n"]))
    setting = replace(experiment.setting, model=replace(experiment.setting.model, **changed))
    row = experiments.run(replace(experiment, setting=setting), 300, seed=1)
    assert [figure.what for figure in row.outside] == [experiments.RIGHT_VERDICT]


def test_chance_depends_on_its_whole_key() -> None:
    keys = list(product(("a", "b"), range(3)))
    assert len({chance(*key) for key in keys}) == len(keys) and chance("a", 1) == chance("a", 1)
    assert all(0 <= chance(*key) < 1 for key in keys)
