"""The whole product in one process: gateway, coordinators and agents as simulated processes that die and restart."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import httpx
from ray.exceptions import ActorDiedError, RayError

from app.deliberation.calls import Call, StageRequest
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Event, decode
from app.deliberation.roles import AgentRunner, EngineSpec, Role
from app.log.journal import JetStreamJournal
from app.log.stream_settings import PUBLICATIONS
from app.main import lifespan_of
from app.process_settings import read_roles
from app.settings import Settings
from serve_deployments.agent.agent import APPEND_TIMEOUT_S as AGENT_TIMEOUT_S
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.agent.replicas import keep_up
from serve_deployments.agent.worker import RoleWorker
from serve_deployments.coordinator.coordinator import CoordinatorReplica
from serve_deployments.coordinator.fact_store import APPEND_TIMEOUT_S
from serve_deployments.coordinator.local_agents import LocalAgents
from serve_deployments.coordinator.task_queue import worker_agents
from serve_deployments.deployments import Handle, RayAgents
from serve_deployments.engine.client import Engines
from tests.components.routes.served import APP, answering
from tests.crash.client import InMemoryClient, journal_over
from tests.crash.clock import VirtualLoop
from tests.crash.engine import Engine, EngineTransport
from tests.crash.points import Points, Process, adopting, nothing
from tests.crash.server import InMemoryServer

_roles = cache(read_roles)

SETTINGS = Settings()
RESTART_S = 0.5
RETRY_S = 0.3
DRAIN_S = 5.0
TENANT = "default"
# The sweep of a directory that exists starts a child, which no simulated process can wait for.
_MISSING = Path("/nonexistent/workspaces")


class _Response:
    def __init__(self) -> None:
        self.result: asyncio.Queue[RayError | None] = asyncio.Queue()


@dataclass
class RoleHandle:
    stack: "Stack"
    process: Process

    @property
    def run_stage(self) -> "RoleHandle":
        return self

    async def remote(self, payload: bytes) -> None:
        response = _Response()
        # Without a replica the router waits for one.
        while not self.stack.agent.ready:
            await asyncio.sleep(RETRY_S)
        await self.process.step("ask the agent", lambda: self.stack.ask(payload, response))
        error = await response.result.get()
        if error is not None:
            raise error
        await self.process.step("stage end", nothing)


class _Replica(AgentReplica):
    def __init__(self, engine: Engine, engines: Engines, journal: JetStreamJournal) -> None:
        role = Role(persona="You test.")
        super().__init__(
            "DEV",
            role,
            engines,
            journal,
            stream_deltas=True,
            publications=PUBLICATIONS,
            engine_away_timeout_s=30,
            workspace_dir=_MISSING,
        )
        self._engine = engine

    async def run_stage(self, request: StageRequest) -> None:
        self._engine.calls.update({(request.deliberation_id, call.call_id): call for call in request.calls})
        await super().run_stage(request)


class Service:
    """A service in a process of its own, which is restarted when it dies.

    `serve(process, ready)` runs as long as the process lives, and calls `ready` with the part that others use.
    """

    def __init__(
        self, name: str, points: Points, serve: Callable[[Process, Callable[[Any], None]], Coroutine[Any, Any, None]]
    ) -> None:
        self.name = name
        self.part: Any = None
        self.process = Process(name, points)
        self._running: asyncio.Task[None] | None = None
        self._points = points
        self._serve = serve
        self._over = False

    @property
    def ready(self) -> bool:
        return self.part is not None and self.process.alive

    def start(self) -> None:
        if self._over:
            return
        self.part = None
        self.process = Process(self.name, self._points)
        loop = asyncio.get_running_loop()
        self.process.on_death(lambda: loop.call_later(RESTART_S, self.start))  # pyright: ignore[reportArgumentType]
        self._running = self.process.start(self._run(self.process))

    async def _run(self, process: Process) -> None:
        try:
            await self._serve(process, lambda part: setattr(self, "part", part))
        except (JournalUnavailable, ExceptionGroup):
            # Without the log some services cannot start; their supervisor restarts them.
            process.die()

    def replace(self) -> None:
        process, running = self.process, self._running
        if running is not None:
            running.add_done_callback(lambda _: process.die())
            running.cancel()

    def end(self) -> None:
        self._over = True
        self.process.go_on()
        self.process.die()


@dataclass
class Stack:
    loop: VirtualLoop
    points: Points
    answer: Callable[[Call], str]
    coordinators: int = 1
    agents: AgentRunner = "ray"
    server: InMemoryServer = field(default_factory=InMemoryServer)
    services: list[Service] = field(default_factory=list[Service])
    _clients: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def __post_init__(self) -> None:
        self.loop.set_task_factory(adopting)  # pyright: ignore[reportArgumentType]
        self.server.now = self.loop.now
        self.engine = Engine(self.answer, self.stands)
        self.gateway = Service("gateway", self.points, self._serve_gateway)
        self.agent = Service("agent", self.points, self._serve_agent)
        names = ["coordinator", "coordinator2"][: self.coordinators]
        self.coordinator, *self.others = [Service(name, self.points, self._serve_coordinator) for name in names]
        agents = [] if self.agents == "local" else [self.agent]
        self.services = [self.gateway, *agents, self.coordinator, *self.others]

    def start(self) -> None:
        for service in self.services:
            service.start()

    async def stop(self) -> None:
        for service in self.services:
            service.end()
        await asyncio.sleep(1)

    def die(self) -> None:
        for service in self.services:
            service.process.die()

    def stands(self, deliberation_id: str, tail: str) -> bool:
        return f"deliberations.{TENANT}.{deliberation_id}.{tail}" in self.server.log.last

    def events(self, deliberation_id: str) -> list[Event]:
        return [decode(each.data) for each in self.server.log.matching(f"deliberations.{TENANT}.{deliberation_id}.>")]

    def ask(self, payload: bytes, response: _Response) -> None:
        request = StageRequest.model_validate_json(payload)
        process = self.agent.process
        process.on_death(lambda: response.result.put_nowait(ActorDiedError()))
        if self.agent.ready:
            process.start(self._stage(process, self.agent.part, request, response))

    async def _stage(self, process: Process, replica: AgentReplica, request: StageRequest, response: _Response) -> None:
        try:
            await replica.run_stage(request)
            await process.step("stage end", lambda: response.result.put_nowait(None))
        except JournalUnavailable as error:
            # Ray wraps what a replica raises.
            response.result.put_nowait(RayError(repr(error)))

    async def _journal(self, process: Process, timeout_s: float) -> JetStreamJournal:
        return await journal_over(self.server, process.name, process, timeout_s)

    @property
    def connections(self) -> list[InMemoryClient]:
        owners = {id(each.owner): each.owner for each in self.server.interests}
        return [owner for owner in owners.values() if isinstance(owner, InMemoryClient)]

    async def _serve_gateway(self, process: Process, ready: Callable[[Any], None]) -> None:
        journal = await self._journal(process, 2.5)
        # Reading the roles' file would take longer than the rest of a start.
        with patch("app.main.read_roles", _roles):
            lifespan = lifespan_of(SETTINGS, journal, self.loop, startup_wait_s=0.0)
        async with lifespan(APP) as gateway, answering(gateway) as client:
            ready(client)
            await asyncio.Event().wait()

    async def _replica(self, process: Process, journal: JetStreamJournal) -> _Replica:
        engines = Engines([EngineSpec(url="http://engine")], transport=EngineTransport(self.engine, process))
        await engines.probe()
        return _Replica(self.engine, engines, journal)

    async def _serve_agent(self, process: Process, ready: Callable[[Any], None]) -> None:
        journal = await self._journal(process, AGENT_TIMEOUT_S)
        replica = await self._replica(process, journal)
        if self.agents == "nats":
            ready(replica)
            await RoleWorker(replica).run()
        await replica.listen()
        ready(replica)
        await replica.keep()

    async def _serve_coordinator(self, process: Process, ready: Callable[[Any], None]) -> None:
        if self.agents == "local":
            return await self._serve_with_agents(process, ready)
        journal = await self._journal(process, APPEND_TIMEOUT_S)
        over_ray = RayAgents(cast("Handle", RoleHandle(self, process)))
        agents = {"DEV": over_ray} if self.agents == "ray" else worker_agents(journal, ["DEV"])
        replica = CoordinatorReplica(journal, agents, slots=10, publications=PUBLICATIONS)
        ready(replica)
        await replica.serve(asyncio.Event())

    async def _serve_with_agents(self, process: Process, ready: Callable[[Any], None]) -> None:
        """As `serve_deployments.coordinator.__main__` does, with a cancellation in place of the signal."""
        journal = await self._journal(process, AGENT_TIMEOUT_S)
        agents = await self._replica(process, journal)
        coordinator = CoordinatorReplica(journal, {"DEV": LocalAgents(agents)}, slots=10, publications=PUBLICATIONS)
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_up(agents))
            group.create_task(coordinator.serve(asyncio.Event()))
            ready(coordinator)
            try:
                await asyncio.Event().wait()
            finally:
                await coordinator.pause()
                await agents.finish(DRAIN_S)

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        if not self.gateway.ready:
            return None
        process, client = self.gateway.process, cast("httpx.AsyncClient", self.gateway.part)
        answer: asyncio.Future[httpx.Response | None] = self.loop.create_future()

        def answered(response: httpx.Response | None) -> None:
            if not answer.done():
                answer.set_result(response)

        async def handle() -> None:
            response = await client.request(method, path, **options)
            await process.step("answer", lambda: answered(response))

        process.on_death(lambda: answered(None))
        process.start(handle())
        return await answer

    async def insist(self, method: str, path: str, **options: Any) -> httpx.Response:
        while True:
            response = await self.request(method, path, **options)
            if response is not None and response.status_code not in (429, 503):
                return response
            await asyncio.sleep(RETRY_S)

    async def submit(self, body: dict[str, Any], key: str) -> str:
        response = await self.insist("POST", "/deliberations", json=body, headers={"Idempotency-Key": key})
        assert response.status_code in (200, 202), response.text
        return response.json()["id"]

    async def cancel(self, deliberation_id: str) -> None:
        response = await self.insist("POST", f"/deliberations/{deliberation_id}/cancel")
        assert response.status_code in (200, 202), response.text

    def outside(self, work: Coroutine[Any, Any, None]) -> None:
        self._clients.append(asyncio.get_running_loop().create_task(work, context=Context()))

    async def idle(self) -> None:
        await asyncio.gather(*self._clients)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def steps(self, count: int, within_s: float) -> None:
        until_s, enough = self.loop.time() + within_s, len(self.points.reached) + count
        while self.loop.time() < until_s and (reached := len(self.points.reached)) < enough:
            # One loop turn at a time, because many steps may share one moment; time passes when no step is made.
            for _ in range(4):
                await asyncio.sleep(0)
            if len(self.points.reached) == reached:
                await asyncio.sleep(0.02)

    async def kill(self, service: Service) -> None:
        service.process.die()

    async def kill_server(self, down_s: float) -> None:
        self.server.kill()
        self.loop.call_later(down_s, self.server.start)

    async def heal(self) -> None:
        self.server.fates.clear()
        for service in self.services:
            service.process.go_on()

    async def quiet(self, deliberation_ids: list[str], within_s: float) -> bool:
        until_s = self.loop.time() + within_s
        while self.loop.time() < until_s:
            if self.server.idle and all(self.stands(each, "end") for each in deliberation_ids):
                return True
            await asyncio.sleep(0.2)
        return False
