from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from app.observability.history import SAMPLES_MAX, ClusterHistory
from app.observability.replica_status import AgentStatus, EngineStatus, ReplicaStatus
from tests.story import NOW


def agent(name: str = "a", started_s: float = 0, **engine: Any) -> AgentStatus:
    return AgentStatus(
        replica=name,
        started_at=NOW + timedelta(seconds=started_s),
        role="DEV",
        waiting=2,
        engines=(EngineStatus(url="http://e", in_flight=3, **engine),),
    )


def take(history: ClusterHistory, at_s: float, *agents: AgentStatus) -> None:
    history.take(NOW + timedelta(seconds=at_s), 1, agents, {"role DEV": agents})


def test_a_sample_has_what_ended_since_the_one_before() -> None:
    history = ClusterHistory()
    counted = {"answers": 9, "prompt_tokens": 900, "cached_tokens": 90, "completion_tokens": 9_000}
    take(history, 0, agent(**counted, recent=[(900, 100, 10)] * 9))
    grown = {"answers": 11, "prompt_tokens": 1_100, "cached_tokens": 190, "completion_tokens": 9_400}
    take(history, 10, agent(**grown, recent=[(900, 100, 10)] * 9 + [(100, 100, 50), (300, 100, 50)]))
    take(history, 20, agent(**grown, recent=[(900, 100, 10)] * 11))
    first, second, third = history.samples
    assert (first.tokens_per_s, first.cached_share, first.ttft_s) == (None, None, None), "what was before is unknown"
    assert (second.tokens_per_s, second.cached_share, second.ttft_s) == (40.0, 0.5, 0.2)
    assert (third.tokens_per_s, third.cached_share, third.ttft_s) == (0.0, None, None)
    assert (second.active, second.running, second.waiting) == (1, 3, 2)


def test_a_new_replica_counts_from_its_start_and_a_silent_one_from_its_return() -> None:
    history = ClusterHistory()
    take(history, 0, agent("a", completion_tokens=1_000))
    take(history, 10, agent("b", started_s=5, completion_tokens=50))
    take(history, 20, agent("a", completion_tokens=1_100), agent("b", started_s=5, completion_tokens=50))
    take(history, 30, agent("a", completion_tokens=1_200), agent("b", started_s=5, completion_tokens=50))
    assert [each.tokens_per_s for each in history.samples] == [None, 5.0, 0.0, 10.0]


def test_samples_are_bounded() -> None:
    history = ClusterHistory()
    for number in range(SAMPLES_MAX + 5):
        take(history, 10 * number)
    assert len(history.samples) == SAMPLES_MAX and history.samples[0].at == NOW + timedelta(seconds=50)


@pytest.mark.parametrize(
    ("seen", "restarts"),
    [
        (["a", "a"], 0),
        (["", "a"], 0),
        (["a", "b"], 1),
        (["a", "", "b", "b"], 1),
        (["a", "", "a"], 0),
        (["a", "ab"], 0),
        (["ab", "a"], 0),
        (["ab", "ac", "dc"], 2),
    ],
)
def test_a_restart_is_a_replica_after_one_that_has_gone(seen: Sequence[str], restarts: int) -> None:
    history = ClusterHistory()
    for names in seen:
        history.take(NOW, 0, (), {"coordinator": [ReplicaStatus(replica=name) for name in names]})
    gateway, part = history.parts({"coordinator": []})
    assert (gateway.part, gateway.restarts, gateway.started_at is not None) == ("gateway", None, True)
    assert (part.restarts, part.replicas, part.started_at) == (restarts, 0, None)


def test_a_container_that_starts_again_under_its_old_name_is_a_restart() -> None:
    history = ClusterHistory()
    for minutes in (0, 0, 5):
        started = ReplicaStatus(replica="pod-1", started_at=NOW + timedelta(minutes=minutes))
        history.take(NOW, 0, (), {"coordinator": [started]})
    part = history.parts({"coordinator": [started]})[1]
    assert (part.restarts, part.started_at) == (1, NOW + timedelta(minutes=5))
