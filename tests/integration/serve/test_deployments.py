import asyncio
from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any, cast

import pytest
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from app.deliberation.roles import EngineSpec, Role
from serve_deployments import deployments
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.deployments import Agent, replicas_for_calls
from serve_deployments.engine.client import Engines
from tests.fakes import InMemoryJournal


class UnaskedJournal(InMemoryJournal):
    async def answer(self, subject: str, describe: Callable[[bytes], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        return


async def fault(agent: Agent) -> str | None:
    try:
        await agent.check_health()
    except RuntimeError as error:
        return f"{error}, {error.__cause__!r}"
    return None


@pytest.mark.parametrize(("of", "task"), [(Engines, "watch"), (AgentReplica, "keep")])
async def test_an_agent_whose_task_has_ended_is_unhealthy(of: type, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = asyncio.Event()

    async def breaks(_: object) -> None:
        await broken.wait()
        raise TypeError("a defect")

    async def connect(*_: Any, **__: Any) -> InMemoryJournal:
        return UnaskedJournal()

    monkeypatch.setattr(of, task, breaks)
    monkeypatch.setattr(deployments.JetStreamJournal, "connect", connect)
    for prepares_the_process in ("outlast_output", "keep_replica_on_loopback", "settle_heap"):
        monkeypatch.setattr(deployments, prepares_the_process, lambda: None)
    # Python would call it without awaiting it.
    monkeypatch.delattr(Agent, "__del__")
    agent = Agent.__new__(Agent)
    role = Role(persona="p", engines=(EngineSpec(url="http://127.0.0.1:1"),))
    await cast("Any", agent).__init__("DEV", role, "", stream_deltas=True, publications=(), engine_away_timeout_s=30)
    assert await fault(agent) is None
    broken.set()
    await asyncio.wait(agent._tasks, return_when=asyncio.FIRST_COMPLETED)  # pyright: ignore[reportPrivateUsage]
    assert await fault(agent) == f"a task of the replica has ended: {task}, TypeError('a defect')"
    for running in agent._tasks:  # pyright: ignore[reportPrivateUsage]
        running.cancel()
    await agent._replica.engines.close()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("metrics", "wanted"),
    [({"calls": {"a": 4.0, "b": 0.0}}, 1.0), ({"calls": {"a": 4.0, "b": 5.0}}, 2.25), ({}, 2)],
    ids=["calls that one replica takes", "waiting calls", "no replica has reported"],
)
def test_serve_wants_the_replicas_that_the_calls_of_a_role_fill(
    metrics: dict[str, dict[str, float]], wanted: float
) -> None:
    options: dict[str, Any] = dict.fromkeys(signature(AutoscalingContext).parameters)
    options |= {"aggregated_metrics": metrics, "target_num_replicas": 2}
    options |= {"config": AutoscalingConfig(target_ongoing_requests=4)}
    context = AutoscalingContext(**options)
    assert replicas_for_calls(context)[0] == wanted
