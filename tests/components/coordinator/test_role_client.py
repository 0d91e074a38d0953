import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import cast, get_args

import pytest
from ray.exceptions import ActorDiedError

from app.deliberation.calls import BATCH_AFTER, Call, ChatMessage, StageRequest, priority_number
from app.deliberation.decider import RunStage
from app.deliberation.fold import apply
from app.deliberation.outputs import Output
from app.deliberation.specification import Priority
from serve_deployments.coordinator import coordinator
from serve_deployments.coordinator.coordinator import RoleClient
from serve_deployments.coordinator.execution import Execution, ExecutionState
from serve_deployments.deployments import Handle, RayAgents
from tests.components.coordinator.executions import running
from tests.unit.facts_of import NOW, finished, opened

AGENTS = ("dev-001", "dev-002")
STAGE = RunStage(
    opened(),
    tuple(
        Call(
            call_id=f"s1-{agent}",
            agent_id=agent,
            role="DEV",
            messages=(ChatMessage(role="user", content="task"),),
            output=Output(kind="answer"),
            temperature=0.5,
            max_tokens=64,
            seed=1,
        )
        for agent in AGENTS
    ),
    opened().call_deadline_at,
)


@dataclass
class ScriptedHandle:
    steps: list[Callable[[], None]]
    requests: list[StageRequest] = field(default_factory=list[StageRequest])

    @property
    def run_stage(self) -> "ScriptedHandle":
        return self

    async def remote(self, payload: bytes) -> None:
        self.requests.append(StageRequest.model_validate_json(payload))
        self.steps.pop(0)()


def hear(execution: Execution, *agents: str) -> None:
    for agent in agents:
        execution.state = apply(execution.state, finished(agent))


def dies() -> None:
    raise ActorDiedError


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "RETRY_WAIT_S", (0.0,))
    monkeypatch.setattr(coordinator, "HEARD_WITHIN_S", 0.0)


async def run(execution: Execution, handle: ScriptedHandle) -> None:
    async with asyncio.timeout(5):
        await RoleClient({"DEV": RayAgents(cast("Handle", handle))}).run(execution, STAGE, "DEV", STAGE.calls)


async def test_returns_once_every_outcome_was_heard() -> None:
    execution = running()
    handle = ScriptedHandle([lambda: hear(execution, *AGENTS)])
    await run(execution, handle)
    assert execution.inbox.empty() and not execution.resumed
    assert [call.agent_id for call in handle.requests[0].calls] == list(AGENTS)


async def test_asks_for_a_read_of_the_log_when_an_outcome_was_not_heard() -> None:
    execution = running()
    handle = ScriptedHandle([lambda: hear(execution, AGENTS[0]), lambda: hear(execution, AGENTS[1])])
    await run(execution, handle)
    assert execution.inbox.get_nowait() is None
    assert handle.requests[1].resumed and [call.agent_id for call in handle.requests[1].calls] == [AGENTS[1]]


async def test_repeats_the_lacking_calls_when_a_replica_dies() -> None:
    execution = running()

    def heard_one_and_dies() -> None:
        hear(execution, AGENTS[0])
        dies()

    handle = ScriptedHandle([heard_one_and_dies, dies, lambda: hear(execution, AGENTS[1])])
    await run(execution, handle)
    assert [len(request.calls) for request in handle.requests] == [2, 1, 1]
    assert [request.resumed for request in handle.requests] == [False, True, True]
    assert execution.inbox.qsize() == 2


async def test_agents_know_all_calls_of_their_role_in_the_stage() -> None:
    """So they split a large stage alike, whichever of its calls lack an outcome."""
    execution, asked = running(), list[StageRequest]()
    hear(execution, AGENTS[0])
    other = STAGE.calls[0].model_copy(update={"call_id": "s1-qa-001", "role": "QA"})
    stage = replace(STAGE, calls=STAGE.calls[1:], stage_calls=(*STAGE.calls, other))

    class Agents:
        async def run(self, request: StageRequest) -> None:
            asked.append(request)
            hear(execution, AGENTS[1])

    await RoleClient({"DEV": Agents()}).run(execution, stage, "DEV", stage.calls)
    assert asked[0].calls == STAGE.calls[1:] and asked[0].stage_calls == STAGE.calls
    assert "stage_calls" not in asked[0].model_dump()


async def test_repeats_no_call_of_a_stopping_work() -> None:
    execution = running()
    execution.enter(ExecutionState.RUNNING)
    handle = ScriptedHandle([lambda: execution.enter(ExecutionState.STOPPING)])
    await run(execution, handle)
    assert len(handle.requests) == 1


def test_the_calls_of_older_deliberations_go_first_and_batch_work_after_all_interactive_work() -> None:
    sooner, later = NOW, NOW + timedelta(days=365 * 50)
    numbers = [priority_number(priority, at) for priority in get_args(Priority) for at in (sooner, later)]
    assert numbers == sorted(set(numbers)) and numbers[1] < BATCH_AFTER <= numbers[2]
