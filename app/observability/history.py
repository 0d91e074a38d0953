"""The last quarter of an hour of the installation, as one gateway saw it: a ring of samples, and restarts of parts."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from app.api.cluster_schemas import ClusterSample, PartView
from app.observability.process import STARTED_AT
from app.observability.replica_status import AgentStatus, EngineStatus, ProcessStatus

SAMPLE_EVERY_S = 10.0
SAMPLES_MAX = 90

_Start = tuple[str, datetime | None]


def cached_share(prompt_tokens: int, cached_tokens: int) -> float | None:
    return round(cached_tokens / prompt_tokens, 3) if prompt_tokens else None


def median_s(ttft_ms: Iterable[int | None]) -> float | None:
    known = [each for each in ttft_ms if each is not None]
    return round(median(known) / 1_000, 3) if known else None


@dataclass(slots=True)
class _Starts:
    """The starts of a part's replicas. One that follows another that has gone is a restart; one more is not."""

    present: set[_Start] | None = None
    gone: set[_Start] = field(default_factory=set[_Start])
    restarts: int = 0

    def take(self, found: set[_Start]) -> None:
        before = found if self.present is None else self.present
        came = found - before - self.gone
        self.gone = (self.gone | before) - found
        # A container that starts again keeps its name and process id.
        for _ in range(min(len(came), len(self.gone))):
            self.gone.pop()
            self.restarts += 1
        self.present = found


def _start(replica: ProcessStatus) -> _Start:
    return replica.replica, replica.started_at


def _growth(engine: EngineStatus, known: EngineStatus) -> EngineStatus:
    answers = engine.answers - known.answers
    return engine.model_copy(
        update={
            "prompt_tokens": engine.prompt_tokens - known.prompt_tokens,
            "cached_tokens": engine.cached_tokens - known.cached_tokens,
            "completion_tokens": engine.completion_tokens - known.completion_tokens,
            "recent": engine.recent[-answers:] if answers else (),
        }
    )


class ClusterHistory:
    """Filled by `take` every `SAMPLE_EVERY_S`; bounded by `SAMPLES_MAX` and the number of replicas."""

    def __init__(self) -> None:
        self.samples: deque[ClusterSample] = deque(maxlen=SAMPLES_MAX)
        self._parts: dict[str, _Starts] = {}
        # The counters of each engine at the last sample, by role, replica and URL.
        self._counted: dict[tuple[str, _Start, str], EngineStatus] = {}

    def take(
        self, at: datetime, active: int, agents: Sequence[AgentStatus], parts: Mapping[str, Sequence[ProcessStatus]]
    ) -> None:
        for part, replicas in parts.items():
            self._parts.setdefault(part, _Starts()).take({_start(replica) for replica in replicas})
        ended = self._since_last(agents)
        passed_s = (at - self.samples[-1].at).total_seconds() if self.samples else None
        self.samples.append(
            ClusterSample(
                at=at,
                active=active,
                running=sum(engine.in_flight for agent in agents for engine in agent.engines),
                waiting=sum(agent.waiting for agent in agents),
                tokens_per_s=round(sum(each.completion_tokens for each in ended) / passed_s, 1) if passed_s else None,
                cached_share=cached_share(
                    sum(each.prompt_tokens for each in ended), sum(each.cached_tokens for each in ended)
                ),
                ttft_s=median_s(ttft_ms for each in ended for ttft_ms, _, _ in each.recent),
            )
        )

    def _since_last(self, agents: Sequence[AgentStatus]) -> list[EngineStatus]:
        """The counters' growth since the last sample, with the answers of that time in `recent`."""
        found, grown = dict[tuple[str, _Start, str], EngineStatus](), list[EngineStatus]()
        last_at = self.samples[-1].at if self.samples else None
        for agent in agents:
            new = last_at is not None and agent.started_at is not None and agent.started_at > last_at
            for engine in agent.engines:
                key = agent.role, _start(agent), engine.url
                # A replica that was silent in the last sample counts from now.
                known = self._counted.get(key) or (EngineStatus(url=engine.url) if new else engine)
                found[key] = engine
                grown.append(_growth(engine, known))
        self._counted = found
        return grown

    def parts(self, parts: Mapping[str, Sequence[ProcessStatus]]) -> tuple[PartView, ...]:
        """Each part with its replicas that answered now; the gateway's own restarts are unknown to it."""
        own = PartView(part="gateway", replicas=1, started_at=datetime.fromisoformat(STARTED_AT), restarts=None)
        return (own, *(self._part(part, replicas) for part, replicas in parts.items()))

    def _part(self, part: str, replicas: Sequence[ProcessStatus]) -> PartView:
        started = [replica.started_at for replica in replicas if replica.started_at is not None]
        known = self._parts.get(part)
        return PartView(
            part=part,
            replicas=len(replicas),
            started_at=max(started, default=None),
            restarts=known.restarts if known else 0,
        )
