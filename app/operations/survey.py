"""The survey of an installation: what its parts said at one moment, and the questions to its log."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from app.api.installation import LogFigures, QueueView
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.roles import Role
from app.observability.replica_status import (
    AgentStatus,
    CoordinatorStatus,
    ProcessStatus,
    ProjectorStatus,
    SenderStatus,
)

if TYPE_CHECKING:
    from app.log.gateway_log import GatewayLog

INQUIRY_TIMEOUT_S = 0.5
LOG_TIMEOUT_S = 1.0


class LogState(NamedTuple):
    """What the log's server said: why it is of no use, or refuses this client, and its sizes, where it told them."""

    url: str = ""
    failure: str = ""
    refusal: str = ""
    differences: Sequence[str] = ()
    figures: LogFigures | None = None
    refused: int = 0


class DeclaredParts(NamedTuple):
    """What the settings declare of an installation."""

    roles: Mapping[str, Role]
    clusters: Sequence[str] = ()
    nats_store_max: int | None = None
    keys: bool = False
    log_key: bool = False


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The answers of an installation's parts at one moment; None of a part that was not asked, or is off.

    `unread` names what the gateway has not read of the log. `invalid` counts the faults of replies that are not valid,
    by part, and `short_lives` the replicas of each role that ended soon after their start. `archive_failure` is empty
    while the database serves.
    """

    at: datetime
    declared: DeclaredParts
    log: LogState | None = None
    unread: Sequence[str] = ()
    draining: bool = False
    agents: tuple[AgentStatus, ...] | None = None
    coordinators: tuple[CoordinatorStatus, ...] | None = None
    senders: tuple[SenderStatus, ...] | None = None
    projectors: tuple[ProjectorStatus, ...] | None = None
    invalid: Mapping[str, int] = field(default_factory=dict[str, int])
    short_lives: Mapping[str, int] = field(default_factory=dict[str, int])
    archive_failure: str | None = None
    queue: QueueView | None = None

    @property
    def parts(self) -> Mapping[str, Sequence[ProcessStatus]]:
        """The processes that answered, by part and role."""
        processes = {
            "coordinator": self.coordinators,
            **{f"role {name}": self.agents_of(name) for name in self.declared.roles},
            "webhooks": self.senders,
            "archive": self.projectors,
        }
        return {part: answered for part, answered in processes.items() if answered is not None}

    def agents_of(self, role: str) -> tuple[AgentStatus, ...]:
        return tuple(agent for agent in self.agents or () if agent.role == role)


async def log_state(log: "GatewayLog", url: str, *, figures: bool = False) -> LogState:
    """Whether the log at `url` can be reached and written, and has the declared streams; with `figures`, its sizes."""

    async def differences() -> tuple[Sequence[str], str]:
        try:
            return await log.differences(), ""
        except JournalUnavailable as exc:
            return (), str(exc)
        except StreamsDiffer as exc:
            return [str(exc)], ""

    async def known() -> tuple[LogFigures | None, str]:
        if not figures:
            return None, ""
        try:
            async with asyncio.timeout(LOG_TIMEOUT_S):
                return await log.figures(), ""
        except JournalUnavailable as exc:
            return None, str(exc)
        except TimeoutError:
            return None, f"no figures within {LOG_TIMEOUT_S:g} s"

    (different, failure), (sizes, silence) = await asyncio.gather(differences(), known())
    return LogState(url, failure or silence, log.refusal, different, sizes, log.refused)
