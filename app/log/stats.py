"""What the log's server tells of its streams and consumers, for `GET /cluster`."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from app.api.cluster_schemas import ConsumerFigures, LogFigures, MissingPart, StreamFigures


class Server(Protocol):
    """The server of the log, as `app.log.journal` reaches it."""

    @property
    def server_version(self) -> str | None:
        """Its version; None while it is away."""
        ...

    async def request(self, subject: str, payload: bytes = b"") -> dict[str, Any]:
        """One JSON reply of its own API; raises JournalUnavailable when none comes."""
        ...


async def log_figures(server: Server, streams: Sequence[str], consumers: Sequence[tuple[str, str]]) -> LogFigures:
    """The figures of these streams, and of these consumers by stream and name; raises JournalUnavailable."""
    asked = [f"STREAM.INFO.{name}" for name in streams]
    asked += [f"CONSUMER.INFO.{stream}.{name}" for stream, name in consumers]
    replies = await asyncio.gather(*(server.request(f"$JS.API.{subject}") for subject in asked))
    told, missing = dict[str, Any](), list[MissingPart]()
    for subject, reply in zip(asked, replies, strict=True):
        if error := reply.get("error"):
            kind, _, name = subject.partition(".INFO.")
            missing.append(MissingPart(part=f"{kind.lower()} {name}", detail=str(error.get("description"))))
        else:
            told[subject] = reply
    return LogFigures(
        server_version=server.server_version,
        streams=tuple(_stream(name, told[subject]) for name in streams if (subject := f"STREAM.INFO.{name}") in told),
        consumers=tuple(
            _consumer(stream, name, told[subject])
            for stream, name in consumers
            if (subject := f"CONSUMER.INFO.{stream}.{name}") in told
        ),
        missing=tuple(missing),
    )


def _stream(name: str, told: dict[str, Any]) -> StreamFigures:
    state = told["state"]
    empty = not state["messages"]
    return StreamFigures(
        name=name,
        messages=state["messages"],
        bytes=state["bytes"],
        first_sequence=state["first_seq"],
        last_sequence=state["last_seq"],
        # The server gives an empty stream the moments of what it held last, or the year 1.
        first_at=None if empty else state["first_ts"],
        last_at=None if empty else state["last_ts"],
    )


def _consumer(stream: str, name: str, told: dict[str, Any]) -> ConsumerFigures:
    return ConsumerFigures(
        stream=stream,
        name=name,
        lag=told["num_pending"],
        unacknowledged=told["num_ack_pending"],
        redelivered=told["num_redelivered"],
        pulls=told["num_waiting"],
    )
