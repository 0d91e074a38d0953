"""The log as the gateway needs it, and its adapter: a journal, its control subjects, and the server's own figures."""

from typing import Protocol

from app.api.cluster_schemas import LogFigures
from app.deliberation.ports import Control, Journal
from app.log.journal import JetStreamJournal
from app.log.seal import LogSeal
from app.log.stats import log_figures
from app.log.stream_settings import StreamSettings
from app.log.streams import declared_consumers, declared_streams, plan, prove_writes


class GatewayLog(Journal, Control, Protocol):
    """A journal with a connection, declared streams and figures."""

    async def open(self) -> None:
        """Connect; waits for the server."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...

    async def differences(self) -> list[str]:
        """Every difference between the declared streams and the log's.

        Raises JournalUnavailable, also when the log can be read but refuses writes, and StreamsDiffer.
        """
        ...

    @property
    def refused(self) -> int:
        """Records that were read and not believed, because their seal does not verify."""
        ...

    async def figures(self) -> LogFigures:
        """The server's figures of the streams and consumers; raises JournalUnavailable."""
        ...


class JetStreamLog(JetStreamJournal):
    """`GatewayLog` over JetStream; `declared` are the settings that the streams should have."""

    def __init__(self, url: str, declared: StreamSettings, seal: LogSeal) -> None:
        super().__init__(url, name="gateway", seal=seal)
        self._declared = declared

    @property
    def refused(self) -> int:
        """See `GatewayLog.refused`."""
        return self.seal.refusals.count

    async def differences(self) -> list[str]:
        """See `GatewayLog.differences`."""
        # First, because a server with a full store may not answer questions about its streams.
        await prove_writes(self)
        missing, different = await plan(self, self._declared)
        return [*(f"{name} is missing" for name in missing), *different]

    async def figures(self) -> LogFigures:
        """See `GatewayLog.figures`."""
        streams = [str(stream["name"]) for stream in declared_streams(self._declared)]
        consumers = [(stream, str(consumer["name"])) for stream, consumer in declared_consumers(self._declared)]
        return await log_figures(self, streams, consumers)
