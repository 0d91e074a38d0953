"""The agents of a role as workers that pull from NATS: each request is a task in the role's work queue.

The queue redelivers the task of a dead worker, so nothing here watches workers. A task lives until its deadline.
The server drops a repeated request while its task, which has the same id, is stored.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import ceil

from app.deliberation.calls import Call, StageRequest
from app.deliberation.errors import FactTooLarge, JournalUnavailable
from app.deliberation.ports import Agents, AgentsLost
from app.log.journal import JetStreamJournal
from app.log.stream_settings import task_subject

# Room for subject and headers within the server's bound of a message.
HEAD_BYTES_MAX = 4_096
# Room for the fields of a task beside its calls.
FIELDS_BYTES_MAX = 1_024


class WorkerAgents:
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
                await self._assign(request, name, data)
            await lost.wait()
        except JournalUnavailable as error:
            raise AgentsLost(str(error)) from error
        finally:
            forget()
        raise AgentsLost("the connection to the log was lost")

    async def _assign(self, request: StageRequest, name: str, data: bytes) -> None:
        subject = task_subject(self._role, request.tenant, request.deliberation_id)
        task_id = f"{request.tenant}.{request.deliberation_id}.{name}.{self._role}"
        left_s = max(1, ceil((request.deadline_at - datetime.now(UTC)).total_seconds()))
        headers = {"Nats-Msg-Id": task_id, "Nats-TTL": f"{left_s}s"}
        headers |= self._journal.signer.headers(subject, data)
        if error := (await self._journal.request(subject, data, headers)).get("error"):
            raise AgentsLost(f"the log refused a task on {subject}: {error.get('description')}")


def worker_agents(journal: JetStreamJournal, roles: Iterable[str]) -> Mapping[str, Agents]:
    return {role: WorkerAgents(journal, role) for role in roles}


def tasks_of(request: StageRequest, bytes_max: int) -> Iterator[tuple[str, bytes]]:
    """The names and the JSON of a request's tasks: one, or several where the stage's calls exceed one message.

    All calls of the stage are split, so that a name means the same calls whichever of them lack an outcome. Raises
    FactTooLarge for a single call that is too large.
    """
    parts = _parts(request.stage_calls or request.calls, bytes_max - FIELDS_BYTES_MAX)
    lacking = {call.call_id for call in request.calls}
    for place, part in enumerate(parts, start=1):
        if calls := tuple(call for call in part if call.call_id in lacking):
            name = f"{request.stage}.{place}" if len(parts) > 1 else str(request.stage)
            yield name, request.__pydantic_serializer__.to_json(request.model_copy(update={"calls": calls}))


def _parts(calls: Iterable[Call], bytes_max: int) -> list[list[Call]]:
    parts, left = list[list[Call]](), 0
    for call in calls:
        size = len(call.__pydantic_serializer__.to_json(call)) + 1
        if size > bytes_max:
            raise FactTooLarge(f"the prompt of call {call.call_id} exceeds what a task may hold")
        if size > left:
            parts.append([])
            left = bytes_max
        parts[-1].append(call)
        left -= size
    return parts
