from collections.abc import Iterator

import pytest

from app.api.problems import STATUSES, pointer
from app.deliberation.errors import (
    CallFailure,
    DeliberationError,
    StrategyDrift,
    UnexpectedFact,
)
from app.facades.a2a.writer import RPC_CODES
from app.facades.openai_errors import OPENAI_STATUSES
from tests.components.routes.served import Served

# Clients never get these as problems: they are recorded as facts, or are defects.
INTERNAL = {
    "internal_error",
    "archive_refused",
    "unexpected_fact",
    "strategy_drift",
    "no_answers",
    "budget_exhausted",
    "deadline_exceeded",
    "poisoned",
}


def tree(error: type[DeliberationError]) -> Iterator[type[DeliberationError]]:
    yield error
    for narrower in error.__subclasses__():
        yield from tree(narrower)


def test_every_error_that_a_client_can_meet_has_a_status() -> None:
    codes = {error.code for error in tree(DeliberationError) if not issubclass(error, CallFailure)}
    assert codes - STATUSES.keys() - OPENAI_STATUSES.keys() - RPC_CODES.keys() - INTERNAL == set()
    assert {UnexpectedFact.code, StrategyDrift.code} & STATUSES.keys() == set()


def test_retryable_errors_have_a_retryable_status() -> None:
    for error in tree(DeliberationError):
        if error.retryable and error.code in STATUSES:
            assert STATUSES[error.code][0] in (408, 429, 503), error


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (("a", 0, "b"), "/a/0/b"),
        (("a/b", "c~d"), "/a~1b/c~0d"),
        (("metadata", "k", "[key]"), "/metadata/k"),
        ((), ""),
        (("x" * 1_000,), "/" + "x" * 255),
    ],
)
def test_pointers_are_rfc_6901_and_bounded(location: tuple[int | str, ...], expected: str) -> None:
    assert pointer(location) == expected


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/nowhere", 404, "not_found", None),
        ("GET", "/nothing", 404, "not_found", None),
        ("GET", "/deliberations/a/b/c", 404, "not_found", None),
        ("PUT", "/deliberations", 405, "method_not_allowed", "GET, HEAD, POST"),
        ("PATCH", "/deliberations/d1", 405, "method_not_allowed", "DELETE, GET, HEAD"),
        ("GET", "/deliberations/d1/cancel", 405, "method_not_allowed", "POST"),
        ("POST", "/healthz", 405, "method_not_allowed", "GET, HEAD"),
        ("GET", "/deliberations/quote", 405, "method_not_allowed", "POST"),
        ("DELETE", "/deliberations/quote", 405, "method_not_allowed", "POST"),
        ("BREW", "/roles", 405, "method_not_allowed", "GET, HEAD"),
        ("GET", "/roles/NOBODY", 404, "not_found", None),
    ],
)
async def test_router_errors_are_problem_documents(
    gateway: Served, method: str, path: str, status: int, code: str, allow: str | None
) -> None:
    response = await gateway.client.request(method, path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["code"], problem["status"], problem["instance"]) == (code, status, path)
    assert problem["request_id"] == response.headers["x-request-id"]
    assert response.headers.get("allow") == allow
