"""The gateway: builds the adapters and serves the routes. `python -m app.main` reads the environment."""

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from types import FrameType

import structlog
import uvicorn
from fastapi import Depends, FastAPI
from prometheus_client import disable_created_metrics
from pydantic import ValidationError

from app.access.authorization import ACCESS, Access, Sessions
from app.access.key_writer import KeyLog, KeyWriter
from app.access.keyring import Keyring
from app.access.keys import Pepper
from app.access.origins import Cors, cors
from app.access.rate_limit import Rates
from app.admission.backlog import Backlog
from app.admission.spends import DailySpends, SpendLimits
from app.api import problems
from app.archive.database.connection import Database
from app.archive.database.store import Store
from app.catalog.index import Catalog
from app.deliberation.errors import InvalidRequest
from app.deliberation.ports import Clock
from app.deliberation.roles import Role, placed
from app.deliberation.strategies import STRATEGIES
from app.facades import FACADES
from app.lifecycle.context import ContextHydrator
from app.lifecycle.context_fit import ContextFit
from app.lifecycle.deliberations import Deliberations, sweep
from app.lifecycle.files import FileLimits, Files
from app.lifecycle.lists import Lists
from app.log.gateway_log import GatewayLog, JetStreamLog
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.observability import logs
from app.observability.environment import tracer_of_environment
from app.observability.metrics import Metrics
from app.observability.process import print_faults, settle_heap
from app.observability.traces import Tracer
from app.openapi import document
from app.operations.heartbeats import Heartbeats
from app.operations.surveyor import Surveyor
from app.planning.consumer import PlanConsumer
from app.planning.plans import Plans
from app.process_settings import read_roles
from app.routes.connections import BoundedProtocol, ConnectionTable, available_connections
from app.routes.dependencies import Gateway, SystemClock, permitted
from app.routes.middleware import RequestContext, RequestGuard
from app.settings import Settings, check_exposure, declared_by
from app.streaming.answers import AnswerFrames
from app.streaming.feed import Feed
from app.streaming.snapshots import SnapshotCache
from app.streaming.streams import Streams
from app.tenant_slots import TenantTurns
from app.workspace.repositories import CommitLookup

STARTUP_WAIT_S = 5.0
KEYS_PER_MINUTE = 10

log = structlog.get_logger(__name__)


async def _follow(gateway: Gateway) -> None:
    journal, keyring, spends = gateway["journal"], gateway["access"].keyring, gateway["deliberations"].spends
    await journal.open()
    await gateway["surveyor"].listen()
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway["catalog"].follow(journal))
        group.create_task(sweep(journal))
        group.create_task(gateway["files"].sweep())
        if keyring is not None:
            group.create_task(keyring.follow(journal))
        if spends is not None:
            group.create_task(spends.follow(journal))


_Projection = Catalog | Keyring | DailySpends


async def _take_plans(consumer: PlanConsumer, projections: Iterable[_Projection | None]) -> None:
    """Take plans until cancelled, once the unfinished work and the day's spends are known."""
    await _until_caught_up(projections)
    await consumer.run()


async def _until_caught_up(projections: Iterable[_Projection | None]) -> None:
    for projection in projections:
        while projection is not None and not projection.caught_up:  # noqa: ASYNC110 -- rare
            await asyncio.sleep(0.01)


async def _wait_until_accepting(projections: Iterable[_Projection | None], timeout_s: float) -> None:
    """Wait until enough of the log has been read to accept work, for `timeout_s` at most.

    A browser reconnects to a stream while no port is open, but gives the stream up when it is refused. Unfinished
    work is read first, which brings the first 202 after 1.0 s in place of 10.8 (p50, `python -m benchmarks.chaos`).
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await _until_caught_up(projections)


def access_of(settings: Settings, clock: Clock) -> Access:
    keyring = sessions = None
    if settings.key_pepper is not None:
        pepper = Pepper(settings.key_pepper.get_secret_value())
        keyring, sessions = Keyring(pepper), Sessions(pepper, settings.session_lifetime_s)
    rates = Rates(settings.tenant_requests_per_minute)
    return Access(clock, keyring, sessions, rates, origins=settings.cors_origins, hosts=settings.allowed_hosts)


def _key_writer(settings: Settings, log: KeyLog | None) -> KeyWriter | None:
    pepper = settings.key_pepper
    return None if pepper is None or log is None else KeyWriter(log, Pepper(pepper.get_secret_value()))


def _key_log(settings: Settings, signer: LogSigner) -> JetStreamJournal | None:
    url = settings.keys_nats_url
    if settings.key_pepper is None or url is None or not url.get_secret_value():
        return None
    return JetStreamJournal(url.get_secret_value(), name="gateway keys", signer=signer)


def _plan_consumer(journal: GatewayLog, gateway: Gateway) -> PlanConsumer | None:
    settings = gateway["settings"]
    if not settings.planning:
        return None
    assert isinstance(journal, JetStreamJournal), "plans come over NATS"
    return PlanConsumer(journal, Plans(gateway["deliberations"], settings.plan_roles), settings.planning_tenants)


def _refused(journal: GatewayLog, access: Access) -> Mapping[str, int]:
    return {"log": journal.refused, "key": access.keyring.refusals.count if access.keyring else 0}


# Long by its parts: each is made once and named where others need it.
def gateway_over(
    journal: GatewayLog,
    settings: Settings,
    clock: Clock,
    roles: Mapping[str, Role],
    connections: ConnectionTable,
    archive: Store | None = None,
    spend_limits: SpendLimits | None = None,
    key_log: KeyLog | None = None,
    tracer: Tracer | None = None,
) -> Gateway:
    role_depth_max = {name: role.queue_max for name, role in roles.items() if role.queue_max is not None}
    access = access_of(settings, clock)
    tenant_depth_max = None if access.development else settings.tenant_in_flight_max
    backlog = Backlog(clock, settings.queue_depth_max, role_depth_max, tenant_depth_max)
    catalog = Catalog(clock, backlog, retention_s=settings.retention_s, clusters=settings.clusters)
    lists = Lists(journal, catalog, clock, archive)
    feed = Feed(
        journal,
        streams_max=settings.streams_max,
        streams_per_client_max=settings.streams_per_client_max,
        observe=catalog.observe,
    )
    heartbeats = Heartbeats()
    files = Files(journal, journal.inputs, clock, FileLimits(settings.file_bytes_max, settings.tenant_file_bytes_max))
    service = Deliberations(
        journal,
        clock,
        catalog,
        roles,
        STRATEGIES,
        files=files,
        context_fit=ContextFit(journal, roles, STRATEGIES, heartbeats.context_tokens),
        kept_s=settings.kept_s,
        timeout_s=settings.deliberation_timeout_s,
        draining=feed.draining.is_set,
        archive=archive,
        context=ContextHydrator(journal, settings.context_timeout_s) if settings.context else None,
        spends=None if spend_limits is None else DailySpends(clock, spend_limits),
        tenant_clusters=settings.tenant_clusters,
        repositories=CommitLookup(settings.repositories),
    )
    streams = Streams(
        journal,
        catalog,
        lists,
        feed,
        clock,
        SnapshotCache(journal, service.check_present),
        AnswerFrames(journal),
        service.archived,
        kept_s=settings.kept_s,
        heartbeat_s=settings.heartbeat_s,
        age_max_s=settings.stream_age_max_s,
        send_timeout_s=settings.stream_send_timeout_s,
    )
    return Gateway(
        settings=settings,
        journal=journal,
        access=access,
        key_writer=_key_writer(settings, key_log),
        key_rates=Rates(KEYS_PER_MINUTE),
        body_turns=TenantTurns(),
        clock=clock,
        catalog=catalog,
        deliberations=service,
        files=files,
        lists=lists,
        feed=feed,
        streams=streams,
        roles=roles,
        strategies=STRATEGIES,
        metrics=Metrics(
            catalog,
            service.outcomes,
            connections,
            partial(_refused, journal, access),
            None if service.context is None else service.context.counts,
            service.spends,
        ),
        surveyor=Surveyor(journal, settings, roles, clock, catalog, access, service, feed, heartbeats),
        tracer=tracer,
    )


def lifespan_of(
    settings: Settings, journal: GatewayLog | None, clock: Clock, *, startup_wait_s: float = STARTUP_WAIT_S
) -> Callable[[FastAPI], AbstractAsyncContextManager[Gateway]]:
    """The lifespan of an application; without `journal` it opens the log of the settings.

    Raises InvalidRequest when the roles or the log key cannot be read, and for a limit of spends without prices.
    """
    roles = placed(read_roles(settings.roles_file), settings.agents)
    signer = LogSigner.of_file(settings.log_key_file)
    limits = SpendLimits.of(settings.spend_per_day, settings.spends_per_day, roles)
    database = None if settings.database_url is None else Database(settings.database_url.get_secret_value())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[Gateway, None]:
        opened = journal or JetStreamLog(settings.nats_url, declared_by(settings, roles), signer)
        archive = None if database is None else Store(database)
        key_log, tracer = _key_log(settings, signer), tracer_of_environment("gateway")
        gateway = gateway_over(opened, settings, clock, roles, app.state.connections, archive, limits, key_log, tracer)
        feed, catalog, keyring = gateway["feed"], gateway["catalog"], gateway["access"].keyring
        spends, plans = gateway["deliberations"].spends, _plan_consumer(opened, gateway)
        async with feed, asyncio.TaskGroup() as group:
            running, taking = [group.create_task(_follow(gateway))], list[asyncio.Task[None]]()
            if plans is not None:
                gateway["metrics"].show_plans(plans.counts)
                taking.append(group.create_task(_take_plans(plans, (catalog, spends))))
            if key_log is not None:
                running.append(group.create_task(key_log.open()))
            # The client must begin to connect before the first request; until then its requests do not even fail.
            await asyncio.sleep(0)
            app.state.drain = lambda: (feed.drain(), catalog.dismiss_waiters(), [task.cancel() for task in taking])
            await _wait_until_accepting((catalog, keyring, spends), startup_wait_s)
            yield gateway
            for task in running + taking:
                task.cancel()
        await opened.close()
        if key_log is not None:
            await key_log.close()
        if database is not None:
            await database.close()
        if tracer is not None:
            await tracer.close()

    return lifespan


def create_app(settings: Settings, journal: GatewayLog | None = None, clock: Clock | None = None) -> FastAPI:
    """The application, whose lifespan yields `Gateway`. Raises InvalidRequest when roles or log key cannot be read."""
    lifespan = lifespan_of(settings, journal, clock or SystemClock())
    app = FastAPI(title=document.TITLE, lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.state.connections = ConnectionTable(
        available_connections(settings.connections_max),
        settings.connections_per_client_max,
        [proxy.strip() for proxy in settings.forwarded_allow_ips.split(",")],
    )
    document.install(app, development=settings.key_pepper is None)
    app.add_middleware(RequestGuard)
    if settings.cors_origins:
        app.add_middleware(Cors, allow_origins=settings.cors_origins, **cors())
    app.add_middleware(RequestContext)
    served = list(app.routes)
    operations = {getattr(route, "unique_id", None) for router in document.ROUTERS for route in router.routes}
    assert operations <= ACCESS.keys(), (
        f"ACCESS in app/access/authorization.py lacks {operations - ACCESS.keys()}: add their scopes there"
    )
    for router in document.ROUTERS:
        app.include_router(router, dependencies=[Depends(permitted)])
        served += router.routes
    problems.install(app, served, formats={facade.prefix: facade.errors for facade in FACADES})
    return app


ACCEPTED_AT_ONCE = 16


class DrainingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_delay_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._drain_delay_s = drain_delay_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        settle_heap()
        for listening in [listener for server in self.servers for listener in server.sockets]:
            host, port = listening.getsockname()[:2]
            log.info("gateway_listening", host=host, port=port)
            await self._accept_more(listening)

    async def _accept_more(self, listening: socket.socket) -> None:
        """Let one turn of the loop accept several connections. libuv accepts one, so a burst would wait for seconds."""
        protocol = partial(
            self.config.http_protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for _ in range(ACCEPTED_AT_ONCE - 1):
            copy = listening.dup()
            server = await asyncio.get_running_loop().create_server(protocol, sock=copy, backlog=self.config.backlog)
            self.servers.append(server)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notify viewers and probes, then stop and exit with 0; a second signal stops at once."""
        if self._draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        self._draining = True
        log.info("gateway_draining", signal=signal.Signals(sig).name)
        self._loop.call_soon_threadsafe(self._app.state.drain)
        self._loop.call_soon_threadsafe(self._loop.call_later, self._drain_delay_s, self._stop)

    def _stop(self) -> None:
        self.should_exit = True


def serve(settings: Settings) -> None:
    check_exposure(settings)
    disable_created_metrics()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=partial(BoundedProtocol, app.state.connections),  # pyright: ignore[reportArgumentType] -- called
        ws="none",
        lifespan="on",
        access_log=False,
        # Longer than clients and proxies keep idle connections, so that they close first.
        timeout_keep_alive=75,
        log_config=None,
        server_header=False,
        forwarded_allow_ips=settings.forwarded_allow_ips,
        timeout_graceful_shutdown=settings.drain_timeout_s,
    )
    DrainingServer(config, app, settings.drain_delay_s).run()


def main() -> None:
    try:
        settings = Settings()
        logs.configure(settings.log_level)
        serve(settings)
    except (ValidationError, InvalidRequest) as exc:
        print_faults(exc)
        raise SystemExit(2) from exc


if __name__ == "__main__":
    main()
