"""The floors of computed tokens, read off prompts, and the limit of one GPU that follows from them."""

from collections.abc import Sequence

import pytest

from app.deliberation.choice.anonymity import fence
from benchmarks.gpu_limit import CARDS, MODELS, SAMPLE, Load, limit, load_of
from benchmarks.prefill import Floors, pieces
from benchmarks.prefix import ROLES, SIZES, TASK_TOKENS, Fleet, prefix_first, specification, stages
from serve_deployments.simulator.server.completion import RenderedPrompt, render
from serve_deployments.simulator.writer.tokens import split_blocks

SHARING = {strategy: size for strategy, size in SIZES.items() if size > 1}
RULES, TASK, WORK, PERSONA = (
    "The rules.",
    "# Task\nA question.",
    "# Your work: score\nScore.",
    "# Who you are\nA tester.",
)


def tokens(text: str) -> int:
    return split_blocks(text)[0]


def shown(*texts: str) -> list[str]:
    return [f"Candidate {letter}:\n{fence(text, text)}" for letter, text in zip("ABC", texts, strict=False)]


def prompt(*sections: str) -> RenderedPrompt:
    return render([("system", RULES), ("user", "\n\n".join([TASK, *sections, PERSONA]))])


def floors(*stages: Sequence[RenderedPrompt]) -> tuple[int, int]:
    found = Floors()
    for stage, prompts in enumerate(stages):
        for each in prompts:
            found.add(1, stage, each.rendered)
    return found.once, found.in_order


def test_the_pieces_of_a_prompt_are_the_whole_of_it() -> None:
    for strategy in SIZES:
        for stage in stages(specification(1, strategy, SIZES[strategy], ROLES[: SIZES[strategy]])):
            for each in stage:
                found = list(pieces(each.prompt.rendered))
                assert abs(sum(piece.tokens for piece in found) - each.prompt.tokens) <= len(found)
                kinds = {"rules", "task", "instructions"} | ({"call"} if SIZES[strategy] > 1 else set())
                assert {piece.kind for piece in found} >= kinds
                texts = sum(piece.kind == "text" for piece in found)
                assert texts == each.prompt.rendered.count("<<<end-of-peer-text")


def test_a_text_counts_once_for_a_stage_under_any_letter_and_again_in_the_next() -> None:
    one, two = prompt(*shown("alpha", "beta"), WORK), prompt(*shown("beta", "alpha"), WORK)
    persona = next(piece.tokens for piece in pieces(one.rendered) if piece.kind == "call")
    alone, _ = floors([one])
    assert alone == sum(piece.tokens for piece in pieces(one.rendered))
    assert floors([one, two])[0] == alone + persona
    texts = sum(piece.tokens for piece in pieces(one.rendered) if piece.kind in ("text", "instructions"))
    assert floors([one], [two])[0] == alone + texts + persona


def test_a_text_counts_again_in_order_wherever_other_texts_stand_before_it() -> None:
    same, other = prompt(WORK, *shown("alpha", "beta")), prompt(WORK, *shown("beta", "alpha"))
    alone, _ = floors([same])
    persona = next(piece.tokens for piece in pieces(same.rendered) if piece.kind == "call")
    texts = sum(piece.tokens for piece in pieces(same.rendered) if piece.kind == "text")
    assert floors([same, same])[1] == alone + persona
    assert floors([same, other])[1] == alone + persona + texts


@pytest.mark.parametrize("task_tokens", TASK_TOKENS[:2])
# With one role, a tournament's calls exceed the bound on one engine's load, and go to others too.
@pytest.mark.parametrize(("roles", "engines"), [(5, 1), (5, 4), (1, 1)])
@pytest.mark.parametrize("strategy", SHARING)
def test_a_strategys_prompts_reach_the_ideal_cached_share_of_their_order(
    strategy: str, roles: int, engines: int, task_tokens: int
) -> None:
    size, found = SHARING[strategy], Floors()
    fleet = Fleet(
        prefix_first, engines, strategy, size, ROLES[: min(roles, size)], task_tokens=task_tokens, sent=found.add
    ).run(8, in_flight=4)
    assert fleet.cached_share >= 0.95 * (1 - found.in_order / fleet.prompt_tokens)


@pytest.mark.parametrize("strategy", SHARING)
def test_a_persona_that_all_agents_share_is_computed_once(strategy: str) -> None:
    size = SIZES[strategy]
    first, last = (
        Fleet(prefix_first, 1, strategy, size, ROLES[:1], personas_last=personas_last).run(8, in_flight=4)
        for personas_last in (False, True)
    )
    assert first.prompt_tokens - first.cached_tokens < 0.95 * (last.prompt_tokens - last.cached_tokens)


@pytest.mark.parametrize(
    ("strategy", "first"), [("council", True), ("fuse", True), ("best_of_n", False), ("tournament", False)]
)
def test_candidates_stand_before_the_work_of_ballots_where_other_stages_begin_with_them(
    strategy: str, first: bool
) -> None:
    size = SIZES[strategy]
    sent = [each.prompt.rendered for stage in stages(specification(1, strategy, size, ROLES[:size])) for each in stage]
    ballots = [prompt for prompt in sent if "# Your work: score" in prompt or "# Your work: compare" in prompt]
    assert ballots
    assert {prompt.index("Candidate A:") < prompt.index("# Your work") for prompt in ballots} == {first}


def test_instructions_after_the_rules_are_computed_once_and_read_by_each_call() -> None:
    now, first = (load_of("council", 3, 200, one_role=True, instructions_first=first)[0] for first in (False, True))
    assert first.computed < now.computed and first.sent > now.sent and first.read > now.read
    assert (first.written, first.steps) == (now.written, now.steps)


def test_the_limit_of_a_gpu_is_that_of_its_formula() -> None:
    """Two stages of two calls each, by hand: 8.03 billion parameters at 494.5 TFLOP/s, 16.06 GB at 3.35 TB/s."""
    load = Load(sent=4_000, computed=1_000, written=600, steps=300, read=900_000)
    found = limit(load, load.computed, load.read, MODELS["8B"], CARDS["H100"], at_once=10, usable=0.5)
    assert found.prefill == pytest.approx(2 * 8.03e9 * 1_000 / 494.5e12)
    assert found.weights == pytest.approx(300 * 16.06e9 / 33.5e12)
    assert found.cache == pytest.approx(900_000 * 131_072 / 3.35e12)
    assert found.rate == pytest.approx(1 / (found.prefill + found.weights + found.cache))
    assert found.latency == pytest.approx(found.prefill + 10 * found.weights + found.cache)


def test_a_gpus_load_is_what_the_prompts_say() -> None:
    load, found = load_of("debate", 3, 200)
    assert found.once / SAMPLE <= load.computed * 1.05 and load.computed < load.sent
    assert load.steps < load.written < 3 * load.steps
    assert load.written * 200 < load.read_shared < load.read
