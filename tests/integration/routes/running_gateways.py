"""A gateway in this process over a real nats-server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx

from app.main import lifespan_of
from app.routes.dependencies import Gateway, SystemClock
from app.settings import Settings
from tests.components.routes.served import APP, answering
from tests.conftest import NatsServer


@asynccontextmanager
async def gateway_on(
    server: NatsServer, startup_wait_s: float = 5.0
) -> AsyncGenerator[tuple[Gateway, httpx.AsyncClient], None]:
    async with lifespan_of(Settings(nats_url=server.url), None, SystemClock(), startup_wait_s=startup_wait_s)(
        APP
    ) as gateway:
        async with answering(gateway) as client:
            yield gateway, client
