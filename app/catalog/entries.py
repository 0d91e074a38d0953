"""The entries of lists, and the filter of a list."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from sys import maxsize

from app.api.resource import links
from app.api.schemas import AgentCount, DeliberationSummary, StageProgress, Status
from app.deliberation.calls import Usage
from app.deliberation.facts import TERMINAL_STATUS, Accepted, CancelRequested, End, Event, StageOpened, TerminalStatus
from app.deliberation.specification import Priority

TASK_CHARS_MAX = 200
BENCH = ("bench", "quality")
"""The metadata of deliberations that `deliberate bench` submits."""


# As façades of chats write it; the mark is in the head, so that no message can forge another one.
_CONVERSATION = re.compile(
    r"Write the assistant's next message in the conversation below[^\n]* carries the mark ([0-9a-f]{12})\.\n"
)


# Of a task that is stored as an input, acceptances have the beginning and the end, where a conversation has its last
# message.
SHOWN_TASK_CHARS = 4_000
_LEFT_OUT = "\n[…]\n"


def shown_task(task: str) -> str:
    half = SHOWN_TASK_CHARS // 2
    return f"{task[:half]}{_LEFT_OUT}{task[-half:]}"


def headline(task: str) -> str:
    """The first TASK_CHARS_MAX characters of a task; of a conversation those of the user's last message.

    Of a message that is longer than the end of a stored task, the first that are left.
    """
    head = _CONVERSATION.match(task)
    if head is not None:
        half = SHOWN_TASK_CHARS // 2
        if task[half:-half] == _LEFT_OUT:
            task = task[-half:]
        _, asked, message = task.rpartition(f"[{head[1]} user")
        if asked:
            task = message.partition("]\n")[2].partition(f"\n\n[{head[1]} ")[0]
    return task[:TASK_CHARS_MAX]


@dataclass(slots=True)
class Entry:
    """A deliberation in a list. `sequence` is the acceptance's, other sequences are those of changes; 0 is unknown."""

    tenant: str
    id: str
    first_fact_at: datetime
    sequence: int = 0
    started_sequence: int = 0
    cancelled_sequence: int = 0
    ended_sequence: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended: TerminalStatus | None = None
    ended_at: datetime | None = None
    roles: Mapping[str, int] = field(default_factory=dict[str, int])
    strategy: str = ""
    priority: Priority = "interactive"
    cluster: str | None = None
    task: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    max_cost: Decimal | None = None
    progress: StageProgress | None = None
    usage: Usage | None = None
    winner: str | None = None
    degraded: bool | None = None

    def apply(self, fact: Event, sequence: int) -> None:
        """Apply a fact. Facts may come in any order; one that changes no status and no acceptance is ignored."""
        match fact:
            case Accepted():
                specification = fact.specification
                self.sequence, self.created_at = sequence, fact.ts
                self.roles = Counter(agent.role for agent in specification.agents)
                self.strategy, self.task = specification.strategy, headline(specification.task)
                self.priority, self.cluster = specification.priority, specification.cluster
                self.metadata, self.max_cost = specification.metadata, specification.budget.max_cost
            case StageOpened():
                self.started_at, self.started_sequence = fact.ts, sequence
            case CancelRequested():
                self.cancelled_sequence = sequence
            case _ if isinstance(fact, End) and self.ended is None:
                self.ended, self.ended_at, self.ended_sequence = TERMINAL_STATUS[fact.type], fact.ts, sequence
                self.usage = Usage(**{name: getattr(fact.usage, name) for name in Usage.model_fields})
                self.winner, self.degraded = fact.verdict and fact.verdict.winner, fact.degraded is not None
            case _:
                return

    @property
    def status(self) -> Status:
        return self._status_at(maxsize)

    def status_at(self, sequence: int) -> Status | None:
        return self._status_at(sequence) if 0 < self.sequence <= sequence else None

    def _status_at(self, sequence: int) -> Status:
        if self.ended is not None and self.ended_sequence <= sequence:
            return self.ended
        if 0 < self.cancelled_sequence <= sequence:
            return "cancelling"
        return "in_progress" if 0 < self.started_sequence <= sequence else "pending"


@dataclass(frozen=True, slots=True)
class ListFilter:
    """The filter of a list; None and empty do not filter. `role` is any member's; `bench` false omits benchmarks."""

    statuses: frozenset[Status] = frozenset()
    role: str | None = None
    strategy: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    bench: bool = True

    def shows(self, entry: Entry) -> bool:
        created_at = entry.created_at
        return (
            created_at is not None
            and (not self.statuses or entry.status in self.statuses)
            and (self.role is None or self.role in entry.roles)
            and (self.strategy is None or entry.strategy == self.strategy)
            and (self.created_after is None or created_at > self.created_after)
            and (self.created_before is None or created_at < self.created_before)
            and self.metadata.items() <= entry.metadata.items()
            and (self.bench or BENCH not in entry.metadata.items())
        )


def summary(entry: Entry) -> DeliberationSummary:
    assert entry.created_at is not None
    return DeliberationSummary(
        id=entry.id,
        status=entry.status,
        role=next(iter(entry.roles)) if len(entry.roles) == 1 else None,
        agents=tuple(AgentCount(role=role, count=count) for role, count in entry.roles.items()),
        strategy=entry.strategy,
        task=entry.task,
        metadata=dict(entry.metadata),
        created_at=entry.created_at,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
        progress=entry.progress,
        usage=entry.usage,
        winner=entry.winner,
        degraded=entry.degraded,
        links=links(entry.id, ended=entry.ended is not None),
    )
