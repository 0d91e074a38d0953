import re
from collections import Counter

import pytest

from app.deliberation import errors
from app.deliberation.decider import problem_of
from app.deliberation.errors import DeliberationError


def below(root: type[DeliberationError]) -> list[type[DeliberationError]]:
    return [each for child in root.__subclasses__() for each in (child, *below(child))]


def test_the_tree_that_is_printed_is_the_tree_that_is() -> None:
    printed: list[tuple[int, str]] = []
    for indent, name in re.findall(r"^([│ ]*)[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE):
        printed.append((len(indent) // 4 + 1, name))
    own = [each for each in below(DeliberationError) if each.__module__ == errors.__name__]
    actual = {(len([b for b in each.__mro__ if issubclass(b, DeliberationError)]) - 1, each.__name__) for each in own}
    assert set(printed) == actual
    assert len(printed) == len(own)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = Counter(each.code for each in {DeliberationError, *below(DeliberationError)} if "code" in vars(each))
    assert set(codes.values()) == {1}
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


@pytest.mark.parametrize(
    ("error", "detail"),
    [(errors.CallTimeout("no answer in 5 s"), "no answer in 5 s"), (errors.CallTimeout(), "call_timeout")],
)
def test_a_recorded_problem_always_has_a_detail(error: DeliberationError, detail: str) -> None:
    problem = problem_of(error)
    assert (problem.code, problem.detail, problem.retryable) == ("call_timeout", detail, True)
