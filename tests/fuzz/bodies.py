"""Mutated bodies for POST /deliberations, in process: each gets a declared answer, and accepted ones can be run.

python -m tests.fuzz.bodies --count 100000
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from starlette.types import ASGIApp

from app.api.schemas import Deliberation, Problem
from app.deliberation.calls import FactProblem
from app.deliberation.decider import Finish, OpenStage, decide
from app.deliberation.facts import Accepted, Deleted, Fact, Failed, decode
from app.deliberation.fold import begin
from app.deliberation.ports import Appended
from app.deliberation.strategies import STRATEGIES
from app.main import create_app, lifespan_of
from app.observability import logs
from app.settings import Settings
from tests.components.routes.served import COORDINATOR
from tests.conditions import until
from tests.fakes import FakeClock, InMemoryJournal
from tests.fuzz.mutations import Mutator
from tests.problem_text import repetitions

DECLARED = {202, 400, 413, 422}
SETTINGS = Settings(queue_depth_max=1_000_000, webhooks=True, log_level="error")


class ShortJournal(InMemoryJournal):
    async def append(self, tenant: str, fact: Fact | Deleted) -> Appended:
        self.records.clear()
        return await super().append(tenant, fact)


@dataclass
class Answers:
    statuses: Counter[int] = field(default_factory=Counter[int])
    faults: list[tuple[bytes, str]] = field(default_factory=list[tuple[bytes, str]])


async def _posted(app: ASGIApp, state: object, body: bytes) -> tuple[int, bytes]:
    sent, received = [{"type": "http.request", "body": body, "more_body": False}], list[MutableMapping[str, Any]]()
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/deliberations",
        "raw_path": b"/deliberations",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": dict(state) if isinstance(state, dict) else {},  # pyright: ignore[reportUnknownArgumentType]
    }

    async def receive() -> dict[str, Any]:
        return sent.pop() if sent else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        received.append(message)

    await app(scope, receive, send)
    return received[0]["status"], b"".join(message.get("body", b"") for message in received[1:])


def fault_of(status: int, content: bytes, journal: InMemoryJournal) -> str | None:
    if status not in DECLARED:
        return f"{status}: {content[:500]!r}"
    try:
        if status != 202:
            problem = Problem.model_validate_json(content)
            declared = problem.status == status and (problem.errors or status != 422)
            return None if declared and not repetitions(problem) else f"the problem is {problem}"
        Deliberation.model_validate_json(content)
        accepted = decode(journal.records[-1].data)
    except ValidationError as invalid:
        return f"{status}: {invalid}"
    assert isinstance(accepted, Accepted)
    match decide(begin(accepted, 1), accepted.ts, STRATEGIES[accepted.specification.strategy]):
        case OpenStage() | Finish(fact=Failed(problem=FactProblem(code="budget_exhausted"))):
            return None
        case decision:
            return f"{status}, and then {decision}"


async def post_all(count: int, seed: int) -> Answers:
    logs.configure(SETTINGS.log_level)
    answers, mutator = Answers(), Mutator(seed)
    journal = ShortJournal(replies={"control.coordinator": [COORDINATOR]})
    app, clock = create_app(SETTINGS), FakeClock()
    async with lifespan_of(SETTINGS, journal, clock)(app) as gateway:
        await until(lambda: gateway["catalog"].caught_up)
        for _ in range(count):
            body = mutator.body()
            status, content = await _posted(app, gateway, body)
            answers.statuses[status] += 1
            fault = fault_of(status, content, journal)
            if status == 202:
                await journal.append("default", Failed(deliberation_id=json.loads(content)["id"], ts=clock.now()))
            if fault is not None:
                answers.faults.append((body, fault))
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.perf_counter()
    answers = asyncio.run(post_all(options.count, options.seed))
    taken_s = time.perf_counter() - began_s
    print(json.dumps({"bodies": options.count, "statuses": dict(sorted(answers.statuses.items())), "seconds": taken_s}))
    for body, fault in answers.faults[:20]:
        print(f"{fault}\n    {body[:2_000]!r}", file=sys.stderr)
    print(f"{len(answers.faults)} with a wrong answer")
    return 1 if answers.faults else 0


if __name__ == "__main__":
    sys.exit(main())
