"""One survey of an installation: a gateway asks every part once, and whoever shows its state reads the answers."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.access.authorization import Access
from app.api.installation import QueueOfRole, QueueView
from app.catalog.index import Catalog
from app.deliberation.ports import Clock
from app.deliberation.roles import Role
from app.lifecycle.deliberations import Deliberations
from app.log.gateway_log import GatewayLog
from app.observability.replica_status import (
    COORDINATORS_MAX,
    COORDINATORS_SUBJECT,
    HEARTBEATS_SUBJECT,
    PROCESSES_MAX,
    PROJECTORS_SUBJECT,
    SENDERS_SUBJECT,
    AgentStatus,
    CoordinatorStatus,
    ProjectorStatus,
    SenderStatus,
    StatusType,
    read,
)
from app.operations.heartbeats import Heartbeats
from app.operations.survey import INQUIRY_TIMEOUT_S, DeclaredParts, Survey, log_state
from app.settings import Settings
from app.streaming.feed import Feed
from app.streaming.single_flight import SingleFlightCache

# A replica that is asked to probe answers once its engines have, or after 1.6 s (`serve_deployments.agent.agent`).
PROBED_WITHIN_S = 2.0
# Strangers may ask `/readyz`: its checks hold for as long as they took, at most for this long.
READINESS_FRESH_S = 0.2
WHOLE_FRESH_S = 1.0


class Surveyor:
    """Surveys an installation for one gateway. Requests at once, and those right after, share a survey."""

    def __init__(
        self,
        journal: GatewayLog,
        settings: Settings,
        roles: Mapping[str, Role],
        clock: Clock,
        catalog: Catalog,
        access: Access,
        deliberations: Deliberations,
        feed: Feed,
        heartbeats: Heartbeats,
    ) -> None:
        self.settings = settings
        self.roles = roles
        self.heartbeats = heartbeats
        self._journal = journal
        self._clock = clock
        self._catalog = catalog
        self._access = access
        self._deliberations = deliberations
        self._feed = feed
        self._whole = SingleFlightCache[Survey](WHOLE_FRESH_S)
        self._brief = SingleFlightCache[Survey](READINESS_FRESH_S, pace=1.0)

    async def listen(self) -> None:
        await self._journal.listen(HEARTBEATS_SUBJECT.format(role="*"), self.heartbeats.note)

    async def whole(self) -> Survey:
        """A survey of everything; each replica asks its engines anew, so it takes up to two seconds."""
        return await self._whole.get(lambda: self._ask(whole=True))

    async def brief(self) -> Survey:
        """A survey for readiness: who works at all. Agents whose heartbeats say so are not asked."""
        return await self._brief.get(lambda: self._ask(whole=False))

    def forget(self) -> None:
        """Answer the next request by a survey of its own."""
        self._whole.clear()
        self._brief.clear()

    async def agents(
        self, names: Iterable[str], *, probe: bool = False, heard: bool = False
    ) -> tuple[tuple[AgentStatus, ...], Mapping[str, int]]:
        """The replicas of roles that answered, and the faults of invalid replies.

        With `probe` they ask their engines anew; with `heard` only roles without enough heartbeats are asked.
        """
        asked = list(names)
        answered = await asyncio.gather(*(self._of_role(name, probe=probe, heard=heard) for name in asked))
        invalid = {f"role {name}": faults for name, (_, faults) in zip(asked, answered, strict=True) if faults}
        return tuple(agent for agents, _ in answered for agent in agents), invalid

    async def _of_role(self, name: str, *, probe: bool, heard: bool) -> tuple[tuple[AgentStatus, ...], int]:
        alive, bounds = self.heartbeats.alive(name), self.roles[name].replicas
        if heard and len(alive) >= max(1, bounds.min):
            return alive, 0
        # The heartbeats say how many to wait for. Whoever only wants to know whether one lives waits for no others.
        known = max(len(alive), bounds.min) if alive or heard else bounds.max
        timeout_s = PROBED_WITHIN_S if probe else INQUIRY_TIMEOUT_S
        replies = await self._journal.inquire(
            f"control.role.{name}", b"probe" if probe else b"", timeout_s=timeout_s, replies_max=max(1, known)
        )
        agents, faults = read(AgentStatus, replies)
        return tuple(sorted(agents, key=lambda agent: agent.replica)), sum(faults)

    async def _ask(self, *, whole: bool) -> Survey:
        settings, archive = self.settings, self._deliberations.archive
        async with asyncio.TaskGroup() as group:
            log = group.create_task(log_state(self._journal, settings.nats_url, figures=whole))
            agents = group.create_task(self.agents(self.roles, probe=whole, heard=not whole))
            every = whole or bool(settings.clusters)
            coordinators = group.create_task(self._processes(COORDINATORS_SUBJECT, COORDINATORS_MAX, every=every))
            asked = {
                part: group.create_task(self._processes(subject, PROCESSES_MAX, every=whole))
                for part, subject, runs in (
                    ("webhooks", SENDERS_SUBJECT, settings.webhooks),
                    ("archive", PROJECTORS_SUBJECT, archive is not None),
                )
                if runs
            }
            database = group.create_task(self._archive_failure())
        invalid = dict(agents.result()[1])

        def valid(of: type[StatusType], part: str, replies: Sequence[dict[str, Any]]) -> tuple[StatusType, ...]:
            processes, faults = read(of, replies)
            if faults:
                invalid[part] = sum(faults)
            return processes

        def optional(of: type[StatusType], part: str) -> tuple[StatusType, ...] | None:
            return valid(of, part, asked[part].result()) if part in asked else None

        return Survey(
            at=self._clock.now(),
            declared=DeclaredParts(
                self.roles,
                settings.clusters,
                settings.nats_store_max,
                settings.key_pepper is not None,
                settings.log_key_file is not None,
            ),
            log=log.result(),
            unread=self._unread(),
            draining=self._feed.draining.is_set(),
            agents=agents.result()[0],
            coordinators=tuple(
                sorted(
                    valid(CoordinatorStatus, "coordinator", coordinators.result()),
                    key=lambda coordinator: coordinator.replica,
                )
            ),
            senders=optional(SenderStatus, "webhooks"),
            projectors=optional(ProjectorStatus, "archive"),
            invalid=invalid,
            short_lives={name: self.heartbeats.short_lives(name) for name in self.roles},
            archive_failure=database.result(),
            queue=self._queue() if whole else None,
        )

    async def _processes(self, subject: str, most: int, *, every: bool) -> list[dict[str, Any]]:
        """The replies of processes whose number is unknown; of one of them unless `every` is asked for."""
        if every and (replies := await self._journal.inquire(subject, timeout_s=INQUIRY_TIMEOUT_S, replies_max=most)):
            return replies
        return await self._journal.inquire(subject, timeout_s=2 * INQUIRY_TIMEOUT_S)

    async def _archive_failure(self) -> str | None:
        archive = self._deliberations.archive
        return None if archive is None else await archive.failure()

    def _unread(self) -> tuple[str, ...]:
        readers = {"catalog": self._catalog, "keys": self._access.keyring, "spends": self._deliberations.spends}
        return tuple(name for name, reader in readers.items() if reader is not None and not reader.caught_up)

    def _queue(self) -> QueueView:
        settings, now_s, backlog = self.settings, self._clock.now().timestamp(), self._catalog.backlog
        work = backlog.throughput()
        return QueueView(
            depth=work.depth,
            depth_max=settings.queue_depth_max,
            waiting=len(work.waiting),
            in_hand=len(work.in_hand),
            head_waited_s=work.head_waited_s(now_s),
            ended_per_s=work.observed_per_s(now_s),
            roles=tuple(
                QueueOfRole(
                    role=name,
                    depth=backlog.throughput(name).depth,
                    depth_max=role.queue_max,
                    ended_per_s=backlog.throughput(name).observed_per_s(now_s),
                    admitted=backlog.admitted(name, settings.deliberation_timeout_s),
                )
                for name, role in self.roles.items()
            ),
        )
