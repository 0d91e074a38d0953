"""A reverse proxy that keeps what clients sent and the status of each answer, for a check against the document."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import ClientSession, ClientTimeout, web

# Of one connection, not of the request or the answer (RFC 9110, 7.6.1).
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request, and the status of its answer."""

    method: str
    path: str
    client: str
    body: bytes
    status: int


@dataclass(slots=True)
class Recorder:
    """The requests in the order of their answers; `url` is the proxy's."""

    upstream: str
    url: str = ""
    requests: list[Recorded] = field(default_factory=list[Recorded])

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Serve on a free port of the loopback until the block ends."""
        async with ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False) as session:

            async def forward(request: web.Request) -> web.StreamResponse:
                body = await request.read()
                headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
                target = f"{self.upstream}{request.raw_path}"
                async with session.request(
                    request.method, target, data=body, headers=headers, allow_redirects=False
                ) as answered:
                    client = request.headers.get("User-Agent", "")
                    self.requests.append(Recorded(request.method, request.path, client, body, answered.status))
                    kept = {name: value for name, value in answered.headers.items() if name.lower() not in HOP_BY_HOP}
                    response = web.StreamResponse(status=answered.status, headers=kept)
                    await response.prepare(request)
                    async for piece in answered.content.iter_any():
                        await response.write(piece)
                    return response

            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{path:.*}", forward)
            # A client that leaves ends its request at the gateway too.
            runner = web.AppRunner(app, handler_cancellation=True)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield
            finally:
                await runner.cleanup()
