"""The gateway: builds the adapters, ties them to the routes, and serves. `python -m app.main` reads the environment."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import FrameType
from typing import Protocol

import structlog
import uvicorn
from fastapi import Depends, FastAPI
from prometheus_client import disable_created_metrics
from pydantic import ValidationError
from starlette.middleware.cors import CORSMiddleware

from app.access.authorization import ACCESS, Access
from app.access.keyring import Keyring
from app.access.keys import Pepper
from app.access.origins import CORS, is_loopback
from app.access.rate_limit import Rates
from app.access.sessions import Sessions
from app.admission.backlog import Backlog
from app.api import problems
from app.api.cluster_schemas import LogFigures
from app.catalog.index import Catalog
from app.deliberation.errors import InvalidRequest
from app.deliberation.ports import Clock, Control, Journal
from app.deliberation.strategies import STRATEGIES
from app.lifecycle.delete import sweep
from app.log.journal import JetStreamJournal
from app.log.stats import log_figures
from app.log.stream_settings import StreamSettings
from app.log.streams import declared_consumers, declared_streams, plan, prove_writes
from app.observability import logs
from app.observability.metrics import Metrics
from app.openapi import document as openapi
from app.routes.dependencies import Gateway, SystemClock, permitted
from app.routes.middleware import RequestContext
from app.routes.request_guard import RequestGuard
from app.routes.roles import read_roles
from app.routes.routers import ROUTERS
from app.settings import Settings
from app.streaming.connection import StreamingProtocol
from app.streaming.feed import Feed
from app.streaming.single_flight import SingleFlightCache
from app.streaming.snapshots import SnapshotCache

READ_AT_FIRST_S = 5.0

log = structlog.get_logger(__name__)

# How long all who ask get the same `GET /cluster`.
CLUSTER_FRESH_S = 1.0


class Log(Journal, Control, Protocol):
    """The log and the questions asked over its connection."""


async def _follow(journal: Log, catalog: Catalog, keyring: Keyring | None) -> None:
    """Wait for the log as long as it takes, then keep catalog and keys.

    The gateway answers 503 meanwhile.
    """
    if isinstance(journal, JetStreamJournal):
        await journal.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(catalog.follow(journal))
        group.create_task(sweep(journal, catalog))
        if keyring is not None:
            group.create_task(keyring.follow(journal))


async def _read_at_first(catalog: Catalog, keyring: Keyring | None) -> None:
    """Wait a while, before anyone is listened to, until enough has been read for work to be accepted.

    A browser comes back to a stream when nobody listens, and gives it up when it is refused.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_AT_FIRST_S):
            while not catalog.backlog_known or (keyring is not None and not keyring.caught_up):  # noqa: ASYNC110 -- rare
                await asyncio.sleep(0.01)


def access_of(settings: Settings, clock: Clock) -> Access:
    """Who may ask what, under these settings; development mode without KEY_PEPPER."""
    rates = Rates(settings.tenant_requests_per_minute)
    if settings.key_pepper is None:
        return Access(clock, None, None, rates, settings.cors_origins)
    pepper = Pepper(settings.key_pepper.get_secret_value())
    return Access(clock, Keyring(pepper), Sessions(pepper, settings.session_lifetime_s), rates, settings.cors_origins)


def check_exposure(settings: Settings) -> None:
    """Raise InvalidRequest when others could reach a gateway that asks for no keys."""
    if settings.key_pepper is None and not is_loopback(settings.host):
        raise InvalidRequest(
            f"HOST={settings.host}: without keys the gateway listens on loopback only. Set KEY_PEPPER to a secret of "
            "at least 32 characters, for example of `openssl rand -hex 32`, and make keys by `deliberate keys create`; "
            "or leave HOST out."
        )


def _differences(journal: Log, settings: Settings) -> Callable[[], Awaitable[list[str]]]:
    """Asks for every difference between the declared streams and the log's; a log in memory has none.

    Raises JournalUnavailable, also when the log can be read but stores nothing.
    """
    declared = StreamSettings(
        retention_s=settings.retention_s, replicas=settings.stream_replicas, ack_wait_s=settings.ack_wait_s
    )

    async def differences() -> list[str]:
        if not isinstance(journal, JetStreamJournal):
            await journal.state()
            return []
        # First: a server whose store is full may answer no question about its streams either.
        await prove_writes(journal)
        missing, different = await plan(journal, declared)
        return [*(f"{name} is missing" for name in missing), *different]

    return differences


def _log_told(journal: Log) -> Callable[[], Awaitable[LogFigures]]:
    """Asks the log's server for its figures; a log in memory has none. Raises JournalUnavailable."""
    declared = StreamSettings()
    streams = [str(stream["name"]) for stream in declared_streams(declared)]
    consumers = [(stream, str(consumer["name"])) for stream, consumer in declared_consumers(declared)]

    async def told() -> LogFigures:
        if isinstance(journal, JetStreamJournal):
            return await log_figures(journal, streams, consumers)
        await journal.state()
        return LogFigures(server_version=None, streams=(), consumers=())

    return told


def lifespan_of(
    settings: Settings, journal: Log | None, clock: Clock
) -> Callable[[FastAPI], AbstractAsyncContextManager[Gateway]]:
    """The lifespan of an application with these parts. Raises InvalidRequest when the roles cannot be read."""
    roles = read_roles(settings.roles_file)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[Gateway, None]:
        opened = journal or JetStreamJournal(settings.nats_url, name="gateway")
        role_depth_max = {name: role.queue_max for name, role in roles.items() if role.queue_max is not None}
        access = access_of(settings, clock)
        tenant_depth_max = None if access.development else settings.tenant_in_flight_max
        backlog = Backlog(clock, settings.queue_depth_max, role_depth_max, tenant_depth_max)
        catalog = Catalog(clock, backlog, retention_s=settings.retention_s, size_max=settings.catalog_size_max)
        feed = Feed(
            opened,
            streams_max=settings.streams_max,
            streams_per_client_max=settings.streams_per_client_max,
            observe=catalog.observe,
        )
        async with feed, asyncio.TaskGroup() as group:
            following = group.create_task(_follow(opened, catalog, access.keyring))
            # Connecting must have begun before the first request: until then the client takes none, not even to fail.
            await asyncio.sleep(0)
            app.state.drain = lambda: (feed.drain(), catalog.dismiss_waiters())
            if isinstance(opened, JetStreamJournal):
                await _read_at_first(catalog, access.keyring)
            yield Gateway(
                settings=settings,
                journal=opened,
                control=opened,
                access=access,
                clock=clock,
                catalog=catalog,
                feed=feed,
                looks=SnapshotCache(opened),
                roles=roles,
                strategies=STRATEGIES,
                metrics=Metrics(catalog),
                streams_differ=_differences(opened, settings),
                log_told=_log_told(opened),
                cluster=SingleFlightCache[bytes](CLUSTER_FRESH_S),
            )
            following.cancel()
        if isinstance(opened, JetStreamJournal):
            await opened.close()

    return lifespan


def create_app(settings: Settings, journal: Log | None = None, clock: Clock | None = None) -> FastAPI:
    """The application. Its lifespan opens the log of the settings, unless one is given, and yields `Gateway`.

    Raises InvalidRequest when the roles cannot be read.
    """
    lifespan = lifespan_of(settings, journal, clock or SystemClock())
    app = FastAPI(title=openapi.TITLE, lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    openapi.install(app, development=settings.key_pepper is None)
    app.add_middleware(RequestGuard)
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, **CORS)
    app.add_middleware(RequestContext)
    own = list(app.routes)
    operations = {getattr(route, "operation_id", None) for router in ROUTERS for route in router.routes}
    assert operations <= ACCESS.keys(), (
        f"app.access.authorization.ACCESS must say what these need: {operations - ACCESS.keys()}"
    )
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(permitted)])
        own += router.routes
    problems.install(app, own)
    return app


class DrainingServer(uvicorn.Server):
    """A server that says that it is stopping before it stops, and where it listens once it does."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_delay_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._drain_delay_s = drain_delay_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell where: with port 0 nobody knew."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        # What was loaded at start stays: no collection needs to walk it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                log.info("gateway_listening", host=host, port=port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First tell viewers and probes, then stop and exit with 0; a second signal stops at once."""
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
    """Serve until a signal ends it. Raises InvalidRequest when the roles cannot be read, or others could reach it."""
    check_exposure(settings)
    disable_created_metrics()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=StreamingProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        # Above what clients and proxies keep idle connections for: they should be the ones who close.
        timeout_keep_alive=75,
        log_config=None,
        server_header=False,
        forwarded_allow_ips=settings.forwarded_allow_ips,
        timeout_graceful_shutdown=settings.drain_timeout_s,
    )
    DrainingServer(config, app, settings.drain_delay_s).run()


def main() -> None:
    """Read the settings and serve; exits with 2 when a setting or the roles are not valid."""
    try:
        settings = Settings()
        logs.configure(settings.log_level)
        serve(settings)
    except (ValidationError, InvalidRequest) as exc:
        print(exc, file=sys.stderr)
        raise SystemExit(2) from exc


if __name__ == "__main__":
    main()
