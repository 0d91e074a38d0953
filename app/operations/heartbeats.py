"""The heartbeats of agents' replicas, as one gateway hears them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from app.observability.replica_status import HEARTBEAT_S, AgentStatus

SILENT_AFTER_S = 3 * HEARTBEAT_S
# A replica that ended sooner has ended by a fault; several of them are a restart without end.
SHORT_LIFE_S = 30.0
REMEMBERED_S = 60.0
REPLICAS_MAX = 4_096


@dataclass(slots=True)
class _Life:
    status: AgentStatus
    first_s: float
    last_s: float


class Heartbeats:
    """The last heartbeat of each replica, bounded by `REPLICAS_MAX`; one that is silent is forgotten after a minute."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lives: dict[tuple[object, ...], _Life] = {}

    def note(self, data: bytes) -> None:
        try:
            status = AgentStatus.model_validate_json(data)
        except ValidationError:
            # An inquiry tells of replies of another version.
            return
        now_s = self._now_s()
        key = status.role, status.replica, status.started_at
        life = self._lives.get(key)
        if life is not None:
            life.status, life.last_s = status, now_s
            return
        self._lives = {known: life for known, life in self._lives.items() if now_s - life.last_s < REMEMBERED_S}
        if len(self._lives) < REPLICAS_MAX:
            self._lives[key] = _Life(status, now_s, now_s)

    def alive(self, role: str) -> tuple[AgentStatus, ...]:
        """The replicas of a role whose heartbeat is not late."""
        now_s = self._now_s()
        lives = (life for key, life in self._lives.items() if key[0] == role)
        return tuple(life.status for life in lives if now_s - life.last_s < SILENT_AFTER_S)

    def context_tokens(self, role: str) -> int | None:
        """The fewest tokens that an engine of the role takes; None where none says so."""
        engines = (engine.context_tokens for agent in self.alive(role) for engine in agent.engines)
        return min((tokens for tokens in engines if tokens), default=None)

    def short_lives(self, role: str) -> int:
        """Returns how many replicas of a role have ended in the last minute soon after their start."""
        now_s = self._now_s()
        return sum(
            SILENT_AFTER_S <= now_s - life.last_s < REMEMBERED_S and life.last_s - life.first_s < SHORT_LIFE_S
            for key, life in self._lives.items()
            if key[0] == role
        )
