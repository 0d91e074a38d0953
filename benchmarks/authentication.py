"""Measures the cost of authentication: a gateway with keys against one without, in this process.

    python -m benchmarks.authentication [--requests 20000]

Requests call the ASGI application directly, with a log in memory, so that only the gateway's CPU time counts. Both
gateways alternate in rounds, and the median round is printed, because a shared machine has slow moments.
"""

import argparse
import asyncio
import logging
import os
import statistics
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, cast

import structlog
from starlette.types import ASGIApp, Message

from app.access.keys import SCOPES, Pepper, created, key_subject
from app.api.schemas import dump
from app.main import create_app, lifespan_of
from app.routes.dependencies import Gateway, SystemClock
from app.settings import Settings
from app.testing import InMemoryJournal

ROUNDS = 40
PEPPER = "a pepper for this measurement alone"
Headers = list[tuple[bytes, bytes]]
_HOST = (b"host", b"localhost:8080")


@asynccontextmanager
async def running(settings: Settings, journal: InMemoryJournal) -> AsyncGenerator[Gateway, None]:
    """A gateway that has loaded its log and its keys."""
    app = create_app(settings)
    async with lifespan_of(settings, journal, SystemClock())(app) as gateway:
        ring = gateway["access"].keyring
        while not (gateway["catalog"].caught_up and (ring is None or ring.caught_up)):  # noqa: ASYNC110 -- a start
            await asyncio.sleep(0.01)
        yield gateway


def requests(
    app: ASGIApp, gateway: Gateway, path: str, headers: Headers
) -> Callable[[int], Coroutine[Any, Any, float]]:
    """A function that makes sequential requests and returns the mean microseconds."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    statuses: set[int] = set()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    async def make(count: int) -> float:
        began_s = perf_counter()
        for _ in range(count):
            scope = {
                "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
                "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
                "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "state": dict(cast(Any, gateway)),
            }  # fmt: skip
            await app(scope, receive, send)
        assert statuses == {200}, statuses
        return (perf_counter() - began_s) / count * 1e6

    return make


async def measure(count: int, keys: int) -> None:
    """Print the cost of a request without a key, with a key, and with a session."""
    journal = InMemoryJournal()
    pepper, key = Pepper(PEPPER), ""
    for _ in range(keys):
        fact, key = created(
            pepper, name="bench", tenant="bench", scopes=SCOPES, created_at=SystemClock().now(), expires_at=None
        )
        await journal.write(key_subject(fact), dump(fact))
    os.environ["TENANT_REQUESTS_PER_MINUTE"] = "10000000"
    open_settings = Settings()
    os.environ["KEY_PEPPER"] = PEPPER
    keyed_settings = Settings()
    async with running(open_settings, journal) as without, running(keyed_settings, journal) as keyed:
        access = keyed["access"]
        assert access.sessions is not None
        token, _ = access.sessions.begin(access.holder(key), access.now_s())
        open_app, keyed_app, path = create_app(open_settings), create_app(keyed_settings), "/deliberations"
        ways = {
            "no keys": requests(open_app, without, path, [_HOST]),
            "key": requests(keyed_app, keyed, path, [_HOST, (b"authorization", f"Bearer {key}".encode())]),
            "session": requests(keyed_app, keyed, path, [_HOST, (b"cookie", f"deliberate={token}".encode())]),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, make in ways.items():
                taken[name].append(await make(max(1, count // ROUNDS)))
    least = statistics.median(taken["no keys"])
    print(f"GET {path} in process, median of {ROUNDS} rounds of {max(1, count // ROUNDS)} requests, {keys} keys held")
    for name, rounds in taken.items():
        cost = statistics.median(rounds)
        more = statistics.median(a - b for a, b in zip(rounds, taken["no keys"], strict=True))
        print(
            f"  {name:8} {cost:7.1f} µs" + (f"   {more:+6.1f} µs ({cost / least:.2f} ×)" if name != "no keys" else "")
        )


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=20_000, help="requests per gateway")
    options.add_argument("--keys", type=int, default=1_000, help="number of keys")
    given = options.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(measure(given.requests, given.keys))


if __name__ == "__main__":
    main()
