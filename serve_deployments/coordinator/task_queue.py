"""The agents of a role as workers that pull from NATS: each request is a task in the role's work queue.

The queue redelivers the task of a worker that died, so nothing here watches workers. A task has its deadline as its
time to live. It has an id too: a request that is repeated while its task is stored is dropped by the server.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import ceil

from app.deliberation.calls import StageRequest
from app.deliberation.errors import FactTooLarge, JournalUnavailable
from app.deliberation.ports import Agents, AgentsLost
from app.log.journal import JetStreamJournal
from app.log.stream_settings import TASKS

# Room for subject and headers within the server's bound of a message.
HEAD_BYTES_MAX = 4_096


class WorkerAgents:
    """`ports.Agents` over the work queue of one role."""

    def __init__(self, journal: JetStreamJournal, role: str) -> None:
        self._journal = journal
        self._role = role

    async def run(self, request: StageRequest) -> None:
        """See `ports.Agents.run`. After a lost connection the task is offered again: the server may have lost it."""
        lost = asyncio.Event()
        forget = self._journal.on_reconnect(lost.set)
        try:
            bytes_max = self._journal.client.max_payload - HEAD_BYTES_MAX
            for name, data in tasks_of(request, bytes_max):
                await self._assign(f"{request.tenant}.{request.deliberation_id}.{name}", request.deadline_at, data)
            await lost.wait()
        except JournalUnavailable as error:
            raise AgentsLost(str(error)) from error
        finally:
            forget()
        raise AgentsLost("the connection to the log was lost")

    async def _assign(self, task_id: str, deadline_at: datetime, data: bytes) -> None:
        subject = f"{TASKS}.{self._role}"
        left_s = max(1, ceil((deadline_at - datetime.now(UTC)).total_seconds()))
        headers = {"Nats-Msg-Id": f"{task_id}.{self._role}", "Nats-TTL": f"{left_s}s"}
        headers |= self._journal.seal.headers(subject, data)
        if error := (await self._journal.request(subject, data, headers)).get("error"):
            raise AgentsLost(f"the log refused a task on {subject}: {error.get('description')}")


def worker_agents(journal: JetStreamJournal, roles: Iterable[str]) -> Mapping[str, Agents]:
    """The agents of these roles, whose workers pull from the queues of the journal's server."""
    return {role: WorkerAgents(journal, role) for role in roles}


def tasks_of(request: StageRequest, bytes_max: int) -> Iterator[tuple[str, bytes]]:
    """The request as one task, or as several where it is too large for one message: a name and the JSON of each.

    Tasks of one stage and role with the same name hold the same calls, or those of them that lacked an outcome later.
    Raises FactTooLarge for a single call that is too large.
    """
    data = request.__pydantic_serializer__.to_json(request)
    if len(data) <= bytes_max:
        yield str(request.stage), data
        return
    for part in _parts(request, bytes_max):
        ends = f"{part.calls[0].call_id}.{part.calls[-1].call_id}"
        yield f"{request.stage}.{ends}", part.__pydantic_serializer__.to_json(part)


def _parts(request: StageRequest, bytes_max: int) -> Iterator[StageRequest]:
    """The request halved until each part is small enough."""
    if len(request.__pydantic_serializer__.to_json(request)) <= bytes_max:
        yield request
        return
    half = len(request.calls) // 2
    if half == 0:
        raise FactTooLarge(f"the prompt of call {request.calls[0].call_id} exceeds what a task may hold")
    for calls in (request.calls[:half], request.calls[half:]):
        yield from _parts(request.model_copy(update={"calls": calls}), bytes_max)
