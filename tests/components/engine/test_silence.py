"""How long an engine may be silent, by what its last answers took."""

from collections.abc import Sequence

import pytest

from app.deliberation.budget import BYTES_PER_TOKEN
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.state import EngineState

PROMPT_TOKENS = 700
PROMPT_BYTES = BYTES_PER_TOKEN * PROMPT_TOKENS


def silence_s(*answers: tuple[int | None, int, int], body_bytes: int = PROMPT_BYTES) -> float:
    """Of an engine with these last answers: milliseconds to the first token, prompt tokens, cached ones."""
    engine = EngineState(EngineSpec(url="http://engine", idle_timeout_s=20))
    engine.recent.extend(answers)
    return engine.silence_s(body_bytes)


def test_a_fast_engine_counts_as_hung_soon_after_its_idle_time() -> None:
    assert silence_s((100, PROMPT_TOKENS, 0)) == pytest.approx(20.4)


def test_a_laptops_engine_may_compute_four_prompts_before_it_says_something() -> None:
    assert silence_s((23_000, PROMPT_TOKENS, 0)) == pytest.approx(20 + 4 * 23)
    assert silence_s((100, PROMPT_TOKENS, 0), (23_000, PROMPT_TOKENS, 0)) == pytest.approx(20 + 4 * 23)


def test_a_long_prompt_may_take_as_long_as_the_pace_of_short_ones_says() -> None:
    million = BYTES_PER_TOKEN * 1_048_576
    assert silence_s((100, PROMPT_TOKENS, 0), body_bytes=million) == pytest.approx(20 + 4 * 1_048_576 * 0.1 / 700)


@pytest.mark.parametrize(
    "answers",
    [(), ((50, PROMPT_TOKENS, 690),), ((None, PROMPT_TOKENS, 0),)],
    ids=["no answer", "one from its cache", "one that was not streamed"],
)
def test_an_engine_whose_pace_is_unknown_may_be_a_laptops(answers: Sequence[tuple[int | None, int, int]]) -> None:
    assert silence_s(*answers) == pytest.approx(4 * 20 + PROMPT_TOKENS / 200)
