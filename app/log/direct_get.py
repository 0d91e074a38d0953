"""Batched direct gets (NATS ADR-31): one request reads many records, by subject or in stream order."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Record
from app.log.connection import REQUEST_TIMEOUT_S, UNREACHABLE


class TooManySubjects(Exception):
    """A batched direct get of last records answers for 1,024 subjects at most."""


@dataclass
class _Batch:
    """The replies to one request. `done` is set to the number of further records; each reply moves `limit` on."""

    done: asyncio.Future[int]
    limit: asyncio.Timeout
    records: list[Record] = field(default_factory=list[Record])

    def take(self, message: Msg) -> None:
        if not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + REQUEST_TIMEOUT_S)
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None:
            record = Record(headers["Nats-Subject"], int(headers["Nats-Sequence"]), message.data)
            self.records.append(record)
        elif self.done.done():
            return
        elif status == "404":
            self.done.set_result(0)
        elif status == "204":
            self.done.set_result(int(headers.get("Nats-Num-Pending", 0)))
        elif status == "413":
            self.done.set_exception(TooManySubjects)
        else:
            self.done.set_exception(JournalUnavailable(f"the log refused a read: {headers.get('Description', status)}"))


class DirectGet:
    """Reads over one connection. All replies come to one inbox, which `open` subscribes to."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batches: dict[str, _Batch] = {}
        self._inbox = ""
        self._number = 0

    async def open(self) -> None:
        """Subscribe to the replies; the client must be connected."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self.take)

    async def take(self, message: Msg) -> None:
        """Add a reply to its batch; one that comes too late is dropped."""
        batch = self._batches.get(message.subject.rpartition(".")[2])
        if batch is not None:
            batch.take(message)

    async def get(self, stream: str, query: dict[str, Any]) -> tuple[list[Record], int]:
        """The records of one batch, and the number of further ones that match.

        Raises TooManySubjects, and JournalUnavailable once no reply came for `REQUEST_TIMEOUT_S`.
        """
        self._number += 1
        token = str(self._number)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S) as limit:
                batch = self._batches[token] = _Batch(asyncio.get_running_loop().create_future(), limit)
                await self._client.publish(
                    f"$JS.API.DIRECT.GET.{stream}", json.dumps(query).encode(), reply=f"{self._inbox}.{token}"
                )
                return batch.records, await batch.done
        except UNREACHABLE as exc:
            raise JournalUnavailable(f"the log cannot be reached: {exc!r}") from exc
        finally:
            del self._batches[token]
