"""Serve browser.html and the gateway's API from one origin, as a reverse proxy in front of both would.

    python examples/browser.py --url http://127.0.0.1:8080 --port 8090

The gateway answers pages of its own origin only. What comes is passed on piece by piece: a proxy that gathers an event
stream before it passes it on makes it useless. Needs httpx, starlette and uvicorn.
"""

import argparse
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
ASKED = ("accept", "content-type", "idempotency-key", "last-event-id", "prefer")
TOLD = ("content-type", "cache-control", "location", "retry-after", "x-request-id")


async def pieces(answer: httpx.Response) -> AsyncGenerator[bytes]:
    """The body as it comes; a viewer that leaves closes the connection to the gateway too."""
    try:
        async for piece in answer.aiter_bytes():
            yield piece
    finally:
        await answer.aclose()


def proxy(url: str, transport: httpx.AsyncBaseTransport | None = None) -> Starlette:
    """The page at `/`, and everything below `/deliberations` from the gateway at `url`."""
    client = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(10, read=70), transport=transport)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    async def page(_: Request) -> Response:
        return FileResponse(PAGE)

    async def passed_on(request: Request) -> Response:
        headers = {name: request.headers[name] for name in ASKED if name in request.headers}
        target = httpx.URL(path=request.url.path, query=request.url.query.encode())
        outgoing = client.build_request(request.method, target, headers=headers, content=await request.body())
        try:
            answer = await client.send(outgoing, stream=True)
        except httpx.TransportError as error:
            return Response(f"the gateway cannot be reached: {type(error).__name__}\n", 502)
        told = {name: answer.headers[name] for name in TOLD if name in answer.headers}
        return StreamingResponse(pieces(answer), answer.status_code, told)

    paths = ("/deliberations", "/deliberations/{rest:path}")
    routes = [Route("/", page), *(Route(path, passed_on, methods=["GET", "POST"]) for path in paths)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--port", type=int, default=8090)
    asked = parser.parse_args()
    print(f"open http://127.0.0.1:{asked.port}/", flush=True)
    uvicorn.run(proxy(asked.url), host="127.0.0.1", port=asked.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
