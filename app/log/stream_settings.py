"""The names and settings of the streams, read where they are declared, used and checked."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from app.deliberation.specification import TIMEOUT_S_MAX

STREAM = "DELIBERATIONS"
KEYS_STREAM = "KEYS"
WEBHOOKS_STREAM = "WEBHOOKS"
CONSUMER = "coordinator"
ARCHIVE_CONSUMER = "archive"
PLANNING_STREAM = "PLANNING_EVENTS"
PLANNING_CONSUMER = "planning"
# The priority group of exclusive consumers (NATS ADR-42): the server pins one of its clients.
EXCLUSIVE_GROUP = "exclusive"
STORIES_STREAM = "STORIES"
CONTEXT_STREAM = "CONTEXT_EVENTS"
# Of a context service, on the stream of announcements: declared here, so that its user need not create consumers.
CONTEXT_CONSUMER = "context"
ANNOUNCEMENTS_STREAM = "ORCHESTRATOR_EVENTS"
ANNOUNCED_END = "orchestration.deliberation"
# The subject of the empty message that claims the id of an erased announcement.
ERASED_END = "orchestration.erased"
# An empty message there is the mark of a deliberation: its announcement was published minutes after its end.
LATE_END = "orchestration.late"
DUPLICATE_WINDOW_S = 600
RESPONSES_STREAM = "AGENT_RESPONSES"
RESPONSES = "agent.response"
INPUTS_STREAM = "INPUTS"
TASKS_STREAM = "AGENT_TASKS"
SPENDS_STREAM = "SPENDS"
TASKS = "agent.task.assigned"
# Streams that copy events to subjects with the id alone (`app.log.streams`), and the prefix of these subjects.
COPIES = {"AGENT_RESULTS": "agent.results", "VLLM_STREAMING": "vllm.streaming"}
Publication = Literal["announcements", "responses", "results", "texts"]
"""Messages for other services, each kept in a stream of its own: ends, outcomes, outcomes as facts, texts."""
PUBLICATIONS: tuple[Publication, ...] = get_args(Publication)
DEFAULT_PUBLICATIONS: tuple[Publication, ...] = ("announcements",)
PUBLICATION_STREAMS: dict[str, Publication] = {
    ANNOUNCEMENTS_STREAM: "announcements",
    RESPONSES_STREAM: "responses",
    "AGENT_RESULTS": "results",
    "VLLM_STREAMING": "texts",
}
_STREAMS = {
    "agent": RESPONSES_STREAM,
    "inputs": INPUTS_STREAM,
    "keys": KEYS_STREAM,
    "orchestration": ANNOUNCEMENTS_STREAM,
    "spends": SPENDS_STREAM,
    "stories": STORIES_STREAM,
    "webhooks": WEBHOOKS_STREAM,
}

DAY_S = 86_400
RETENTION_S_MIN = TIMEOUT_S_MAX
"""An acceptance must outlive the longest deadline, because it is redelivered when its coordinator fails."""
RETENTION_S_MAX = 31_536_000
ACK_WAIT_S_MIN = 6.0
"""Three heartbeats of a coordinator, so that a late one is not taken for a failure. Three servers need 20 s."""
ACK_WAIT_S_MAX = 600.0
REPLICAS_MAX = 5


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Retention of facts, servers that hold them, and the time after which a silent holder loses its work.

    Streams of messages for other services exist for the `publications` alone. Each label of `clusters` has a queue of
    acceptances of its own.
    """

    retention_s: int = DAY_S
    replicas: int = 1
    ack_wait_s: float = ACK_WAIT_S_MIN
    worker_roles: tuple[str, ...] = ()
    publications: Collection[Publication] = DEFAULT_PUBLICATIONS
    clusters: tuple[str, ...] = ()


def coordinator_queue(cluster: str | None) -> str:
    """The consumer of the acceptances with this label, or of those without a label."""
    return CONSUMER if cluster is None else f"{CONSUMER}-{cluster}"


def coordinator_queues(clusters: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(coordinator_queue, (None, *clusters)))


def worker_consumer(role: str) -> str:
    return f"worker-{role}"


def task_subject(role: str, tenant: str, deliberation_id: str) -> str:
    """The subject of a deliberation's tasks for a role; `*` stands for any."""
    return f"{TASKS}.{role}.{tenant}.{deliberation_id}"


def stream_of(pattern: str) -> str:
    return _STREAMS.get(pattern.partition(".")[0], STREAM)
