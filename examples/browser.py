"""Serve browser.html and the gateway's API from one origin, like a reverse proxy.

    python examples/browser.py --url http://127.0.0.1:8080 --port 8090

The gateway accepts changes from pages of its own origin alone. The proxy passes on which page a request comes from, so
that the gateway can refuse those of other sites. It forwards each piece at once, because a buffered event stream is
useless.

The environment gives DELIBERATE_URL, and DELIBERATE_API_KEY where the gateway asks for keys. The proxy adds the key
only to requests of its own page. Needs httpx, starlette and uvicorn.
"""

import argparse
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

PAGE = Path(__file__).with_name("browser.html")
REQUEST_HEADERS = (
    *("accept", "content-type", "idempotency-key", "last-event-id", "prefer"),
    *("host", "origin", "sec-fetch-site"),
)
RESPONSE_HEADERS = ("content-type", "cache-control", "location", "retry-after", "x-request-id")


def own_page(request: Request) -> bool:
    """Whether the proxy's own page sent the request: a browser names another site's in these headers."""
    host = request.headers.get("host", "")
    return (
        host.partition(":")[0] in ("127.0.0.1", "localhost")
        and request.headers.get("origin", f"http://{host}") == f"http://{host}"
        and request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


async def pieces(response: httpx.Response) -> AsyncGenerator[bytes]:
    """The body, piece by piece; a viewer that leaves also closes the connection to the gateway."""
    try:
        async for piece in response.aiter_bytes():
            yield piece
    finally:
        await response.aclose()


def proxy(url: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> Starlette:
    """The page at `/`, and everything below `/deliberations` from the gateway at `url`, by `key` if given."""
    client = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(10, read=70), transport=transport)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    async def page(_: Request) -> Response:
        return FileResponse(PAGE)

    async def forward(request: Request) -> Response:
        headers = {name: request.headers[name] for name in REQUEST_HEADERS if name in request.headers}
        if key and own_page(request):
            headers["authorization"] = f"Bearer {key}"
        target = httpx.URL(path=request.url.path, query=request.url.query.encode())
        outgoing = client.build_request(request.method, target, headers=headers, content=await request.body())
        try:
            response = await client.send(outgoing, stream=True)
        except httpx.TransportError as error:
            return Response(f"the gateway cannot be reached: {type(error).__name__}\n", 502)
        kept = {name: response.headers[name] for name in RESPONSE_HEADERS if name in response.headers}
        return StreamingResponse(pieces(response), response.status_code, kept)

    paths = ("/deliberations", "/deliberations/{rest:path}")
    routes = [Route("/", page), *(Route(path, forward, methods=["GET", "POST"]) for path in paths)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=os.environ.get("DELIBERATE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--port", type=int, default=8090)
    options = parser.parse_args()
    print(f"open http://127.0.0.1:{options.port}/", flush=True)
    app = proxy(options.url, os.environ.get("DELIBERATE_API_KEY"))
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
