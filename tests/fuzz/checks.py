from typing import Any

import schemathesis

from app.api.problems import PROBLEM_JSON
from app.api.schemas import Problem
from tests.problem_text import repetitions

# Headers of the connection, implied by the declared media type, or the same in every answer.
TRANSPORT = {
    *("connection", "content-length", "content-type", "date", "keep-alive", "transfer-encoding"),
    "x-content-type-options",
}


@schemathesis.check
def every_header_is_declared(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    answers: dict[str, Any] = case.operation.definition.raw["responses"]
    declared = answers.get(str(response.status_code))
    if declared is None or case.method.upper() != case.operation.method.upper():
        return
    known = {name.lower() for name in declared.get("headers", {})} | TRANSPORT
    unknown = sorted(response.headers.keys() - known)
    assert not unknown, f"{response.status_code} has headers that are not declared: {', '.join(unknown)}"


@schemathesis.check
def a_problem_says_one_thing_once(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    if PROBLEM_JSON in response.headers.get("content-type", []):
        found = repetitions(Problem.model_validate_json(response.content))
        assert not found, f"the problem says twice: {'; '.join(found)}"
