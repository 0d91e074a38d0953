"""How long an engine may be silent, by what its last answers took."""

import pytest

from app.deliberation.budget import BYTES_PER_TOKEN
from app.deliberation.calls import Usage
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.replies import EngineReply
from serve_deployments.engine.state import RECENT_MAX, EngineState

PROMPT_TOKENS = 700
PROMPT_BYTES = BYTES_PER_TOKEN * PROMPT_TOKENS


def answer(ttft_s: float | None, prompt_tokens: int = PROMPT_TOKENS, cached_tokens: int = 0) -> EngineReply:
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=1, cached_tokens=cached_tokens)
    return EngineReply("", "stop", usage, ttft_s)


def silence_s(*answers: EngineReply, body_bytes: int = PROMPT_BYTES) -> float:
    engine = EngineState(EngineSpec(url="http://engine", idle_timeout_s=20))
    for each in answers:
        engine.paced(each)
    return engine.silence_s(body_bytes)


def test_a_fast_engine_counts_as_hung_soon_after_its_idle_time() -> None:
    assert silence_s(answer(0.1)) == pytest.approx(20.4)


def test_a_laptops_engine_may_compute_four_prompts_before_it_says_something() -> None:
    assert silence_s(answer(23.0)) == pytest.approx(20 + 4 * 23)
    assert silence_s(answer(0.1), answer(23.0), answer(0.1)) == pytest.approx(20 + 4 * 23)


def test_a_slow_answer_counts_until_as_many_others_came() -> None:
    assert silence_s(answer(23.0), *[answer(0.1)] * RECENT_MAX) == pytest.approx(20.4)


def test_a_long_prompt_may_take_as_long_as_the_pace_of_short_ones_says() -> None:
    million = BYTES_PER_TOKEN * 1_048_576
    assert silence_s(answer(0.1), body_bytes=million) == pytest.approx(20 + 4 * 1_048_576 * 0.1 / 700)


@pytest.mark.parametrize(
    "untold",
    [[], [answer(0.05, cached_tokens=690)], [answer(None)]],
    ids=["no answer", "one from its cache", "one that was not streamed"],
)
def test_an_engine_whose_pace_is_unknown_may_be_a_laptops(untold: list[EngineReply]) -> None:
    assert silence_s(*untold) == pytest.approx(4 * 20 + PROMPT_TOKENS / 200)
