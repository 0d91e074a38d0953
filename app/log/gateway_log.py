"""The log as the gateway needs it, and its adapter: a journal, its control subjects, and the server's own figures."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from app.api.installation import ConsumerFigures, LogFigures, StreamFigures
from app.deliberation.ports import Control, Journal
from app.log.inputs import InputStore
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.log.stream_settings import StreamSettings
from app.log.streams import declared_consumers, declared_streams, plan, prove_writes


class GatewayLog(Journal, Control, Protocol):
    @property
    def inputs(self) -> InputStore: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def refusal(self) -> str:
        """Why the server refuses this client: its credentials, or a right; empty where it does not."""
        ...

    async def differences(self) -> list[str]:
        """Returns differences from the declared streams; raises JournalUnavailable, also when writes fail."""
        ...

    @property
    def refused(self) -> int:
        """Records that were read and refused, because their signature does not verify."""
        ...

    async def figures(self) -> LogFigures: ...


class JetStreamLog(JetStreamJournal):
    def __init__(self, url: str, declared: StreamSettings, signer: LogSigner) -> None:
        super().__init__(url, name="gateway", signer=signer)
        self._declared = declared

    @property
    def refused(self) -> int:
        return self.signer.refusals.count

    async def differences(self) -> list[str]:
        # First, because a server with a full store may not answer questions about its streams.
        await prove_writes(self)
        missing, different = await plan(self, self._declared)
        return [*(f"{name} is missing" for name in missing), *different]

    async def figures(self) -> LogFigures:
        streams = [str(stream["name"]) for stream in declared_streams(self._declared)]
        consumers = [(stream, str(consumer["name"])) for stream, consumer in declared_consumers(self._declared)]
        return await log_figures(self, streams, consumers)


async def log_figures(
    server: JetStreamJournal, streams: Sequence[str], consumers: Sequence[tuple[str, str]]
) -> LogFigures:
    subjects = [f"STREAM.INFO.{name}" for name in streams]
    subjects += [f"CONSUMER.INFO.{stream}.{name}" for stream, name in consumers]
    replies = await asyncio.gather(*(server.request(f"$JS.API.{subject}") for subject in subjects))
    # `differences` tells of one that is missing.
    infos = {subject: reply for subject, reply in zip(subjects, replies, strict=True) if not reply.get("error")}
    return LogFigures(
        server_version=server.server_version,
        server_at=max((info["ts"] for info in infos.values() if "ts" in info), default=None),
        streams=tuple(_stream(name, infos[subject]) for name in streams if (subject := f"STREAM.INFO.{name}") in infos),
        consumers=tuple(
            _consumer(stream, name, infos[subject])
            for stream, name in consumers
            if (subject := f"CONSUMER.INFO.{stream}.{name}") in infos
        ),
    )


def _stream(name: str, info: dict[str, Any]) -> StreamFigures:
    state = info["state"]
    empty = not state["messages"]
    return StreamFigures(
        name=name,
        messages=state["messages"],
        bytes=state["bytes"],
        first_sequence=state["first_seq"],
        last_sequence=state["last_seq"],
        # For an empty stream the server reports the times of its last messages, or the year 1.
        first_at=None if empty else state["first_ts"],
        last_at=None if empty else state["last_ts"],
    )


def _consumer(stream: str, name: str, info: dict[str, Any]) -> ConsumerFigures:
    return ConsumerFigures(
        stream=stream,
        name=name,
        lag=info["num_pending"],
        unacknowledged=info["num_ack_pending"],
        redelivered=info["num_redelivered"],
        pulls=info["num_waiting"],
    )
