"""An evil engine and an evil tenant, in a process of their own, which plays a mode for each line of its input.

`python -m tests.attack.evil` prints the engine's URL and reads one JSON line: the gateway's `port` and a `key`. It then
reads names of MODES. What a mode has begun is given PLAY_S, and then cancelled, read and deleted. It prints one JSON
line for each: counts by status of all answers, and the `faults`, which should be none.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from serve_deployments.engine.client import CHECK_INTERVAL_S
from tests.attack.attacker import ENDLESS, pour
from tests.attack.exploding_requests import BODIES, HEADERS, JSON, PATHS
from tests.integration.engine.evil_engines import EVIL_ENGINES, answered
from tests.integration.engine.raw_engine import RawEngine

PLAY_S = 1.0
# Attackers have machines of their own: here their work takes little time from the product, which has 5.
NICENESS = 10
ENDS_WITHIN_S = 10
PLAYED_WITHIN_S = 30.0
# Bounds of connections are those of an address: the tenant has one of its own.
ADDRESS = ("127.0.1.9", 0)
HEALTHY_ROLE, TENANTS_ROLE, EVIL_ROLE = "DEV", "QA", "EVIL"
TASK = "Write a function that merges two sorted lists."
MOST_TOKENS = {"sampling": {"max_tokens": 32_768}}


def integers(branches: int, **list_bounds: int) -> dict[str, Any]:
    """A schema whose `anyOf` tries many branches in vain for each integer of a list."""
    tried = [{"type": "integer", "minimum": 10**6 + number} for number in range(branches)]
    items = {"anyOf": [*tried, {"type": "integer"}]}
    return {"type": "object", "required": ["x"], "properties": {"x": {"type": "array", "items": items, **list_bounds}}}


def constants(count: int, levels: int, least: int) -> dict[str, Any]:
    """A schema of about 9 kB: constants before the type that fits, within lists that have a least length."""
    schema: dict[str, Any] = {
        "anyOf": [*({"const": f"constant number {number}"} for number in range(count)), {"type": "string"}]
    }
    for _ in range(levels):
        schema = {"type": "array", "minItems": least, "items": schema}
    return {"type": "object", "required": ["x"], "properties": {"x": schema}}


class EvilEngine:
    def __init__(self) -> None:
        self._playing = RawEngine([answered()])
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._lists_evil = False
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._playing.serve(reader, writer)
        finally:
            self._writers.discard(writer)

    async def play(self, mode: Mapping[str, Any]) -> None:
        """Answer as `mode` says from now on; an evil list of models is read before this returns."""
        evil = "models" in mode
        if evil and not self._lists_evil:
            # Lists are read after an outage, and again while there is something wrong with them.
            assert self._server is not None
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            # An engine that responded a moment ago is checked at the next time only.
            await asyncio.sleep(2 * CHECK_INTERVAL_S + 0.5)
        # Connections that are open go on with this object.
        vars(self._playing).update(vars(RawEngine(**{"replies": [answered()], **mode})))
        if evil and not self._lists_evil:
            await self.listen()
        if evil or self._lists_evil:
            while not any(path.endswith("/models") for path in self._playing.paths):
                await asyncio.sleep(0.02)
        self._lists_evil = evil


class EvilTenant:
    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self.headers = {"Authorization": f"Bearer {key}"}
        transport = httpx.AsyncHTTPTransport(local_address=ADDRESS[0], limits=httpx.Limits(max_connections=400))
        self.client = httpx.AsyncClient(
            base_url=f"http://localhost:{port}", headers=self.headers, transport=transport, timeout=30
        )
        self.answers = Counter[int]()
        self.faults: list[str] = []
        self.began: list[str] = []

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        answer = await self.client.request(method, f"http://localhost:{self.port}{path}", **request)
        self.answers[answer.status_code] += 1
        if answer.status_code >= 500:
            self.faults.append(f"{method} {path[:60]}: {answer.status_code} {answer.text[:300]}")
        if answer.status_code in (200, 202) and path == "/deliberations" and method == "POST":
            self.began.append(answer.json()["id"])
        return answer

    async def submit(self, **body: Any) -> httpx.Response:
        constraints = {"timeout_seconds": 6, **body.pop("constraints", {})}
        body = {"task": TASK, "role": TENANTS_ROLE, "strategy": "independent", "num_agents": 4, **body}
        return await self.ask("POST", "/deliberations", json={**body, "constraints": constraints})

    async def ended(self, id: str, wait_s: float) -> bool:
        """Whether it has ended, after a long poll."""
        answer = await self.ask("GET", f"/deliberations/{id}")
        if answer.json()["ended_at"] is None:
            known = {"If-None-Match": answer.headers["ETag"], "Prefer": f"wait={wait_s:.0f}"}
            answer = await self.ask("GET", f"/deliberations/{id}", headers=known)
        return answer.status_code == 200 and answer.json()["ended_at"] is not None

    async def until_ended(self) -> None:
        """Wait for the ends of all that was begun, for PLAY_S at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PLAY_S):
                while not all(await asyncio.gather(*(self.ended(each, 2 * PLAY_S) for each in self.began))):
                    await asyncio.sleep(0.05)

    async def clear(self) -> None:
        """Cancel, read and delete all that was begun."""

        async def clear(id: str) -> None:
            ended = await self.ask(
                "POST", f"/deliberations/{id}/cancel", json={}, headers={"Prefer": f"wait={ENDS_WITHIN_S}"}
            )
            read = await self.ask("GET", f"/deliberations/{id}")
            # The largest council has some ten thousand messages, each of which is overwritten.
            deleted = await self.ask("DELETE", f"/deliberations/{id}", timeout=120)
            if (found := [ended.status_code, read.status_code, deleted.status_code]) != [200, 200, 204]:
                self.faults.append(f"cancelled, read and deleted with {found}: {deleted.text[:300]}")

        began, self.began = self.began, []
        rest = iter(began)
        await self.repeat(lambda: clear(next(rest)), len(began), at_once=16)

    async def repeat(self, action: Callable[[], Awaitable[object]], count: int = 40, at_once: int = 4) -> None:
        numbers = iter(range(count))

        async def go_on() -> None:
            for _ in numbers:
                await action()

        await asyncio.gather(*(go_on() for _ in range(at_once)))

    async def hold(self, pieces: Iterable[bytes], count: int, *, drips: bool = False) -> None:
        """Hold connections for PLAY_S, on which these pieces were sent. Nothing is read; one that `drips` sends on."""
        opened = [await asyncio.open_connection("127.0.0.1", self.port, local_addr=ADDRESS) for _ in range(count)]
        try:
            for _, writer in opened:
                writer.writelines(pieces)
            for _ in range(round(10 * PLAY_S)):
                await asyncio.sleep(0.1)
                for _, writer in opened if drips else ():
                    writer.write(b" ")
        finally:
            for _, writer in opened:
                writer.transport.abort()

    def head(self, method: str, path: str, *lines: str) -> bytes:
        key = f"Authorization: {self.headers['Authorization']}"
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", key, *lines, "", ""]).encode()


Play = Callable[[EvilTenant], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Mode:
    """What a tenant plays while the engine is as `engine` says: fields of `RawEngine`; by default it answers well."""

    play: Play
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])


# Beyond what a mode of the engine asks by default: two deliberations of four agents.
ASKED: Mapping[str, Mapping[str, Any]] = {
    **{
        name: MOST_TOKENS for name in EVIL_ENGINES if name.startswith(("half a megabyte", "30,000", "an answer 30,000"))
    },
    "every recorded reply in turn": {"num_agents": 32},
}


def evil_engine(name: str) -> Mode:
    return Mode(submitting(2, role=EVIL_ROLE, **ASKED.get(name, {})), EVIL_ENGINES[name])


def answer_of_integers(count: int, branches: int) -> Mode:
    text = json.dumps({"reasoning": "r", "answer": {"x": list(range(count))}, "confidence": 80})

    async def play(tenant: EvilTenant) -> None:
        await submitting(role=EVIL_ROLE, constraints={"answer_schema": integers(branches)}, **MOST_TOKENS)(tenant)
        for id in tenant.began:
            await asking("GET", f"/deliberations/{id}")(tenant)

    return Mode(play, {"replies": [answered(text)]})


def asking(method: str, path: str, **request: Any) -> Play:
    return lambda tenant: tenant.repeat(lambda: tenant.ask(method, path, **request))


def asking_each(*requests: tuple[str, str, dict[str, Any]]) -> Play:
    async def play(tenant: EvilTenant) -> None:
        numbers = iter(range(4 * len(requests)))
        await tenant.repeat(
            lambda: tenant.ask(*(each := requests[next(numbers) % len(requests)])[:2], **each[2]), 4 * len(requests)
        )

    return play


def submitting(count: int = 4, **body: Any) -> Play:
    async def play(tenant: EvilTenant) -> None:
        await asyncio.gather(*(tenant.submit(**body) for _ in range(count)))
        await tenant.until_ended()

    return play


def searching(*queries: str) -> Play:
    asked = [("GET", "/deliberations", {"params": {"q": query}}) for query in queries]
    return asking_each(*(each for each in asked for _ in range(4)))


def holding(count: int, *pieces: bytes | tuple[str, ...], drips: bool = False) -> Play:
    return lambda tenant: tenant.hold(
        [tenant.head(*piece) if isinstance(piece, tuple) else piece for piece in pieces], count, drips=drips
    )


async def cancel_storm(tenant: EvilTenant) -> None:
    await asyncio.gather(*(tenant.submit(role=EVIL_ROLE, num_agents=1) for _ in range(60)))
    paths = [f"/deliberations/{id}/cancel" for id in tenant.began for _ in range(3)]
    await asyncio.gather(*(tenant.ask("POST", path, json={}) for path in paths))


async def abandoned_streams(tenant: EvilTenant) -> None:
    await tenant.submit(num_agents=8, rounds=2, strategy="council")
    (id,) = tenant.began

    async def glance() -> None:
        async with tenant.client.stream("GET", f"/deliberations/{id}/events?after=0") as stream:
            await anext(stream.aiter_raw())

    await tenant.repeat(glance, 200, 20)


async def abandoned_polls(tenant: EvilTenant) -> None:
    await tenant.submit(role=EVIL_ROLE)
    (id,) = tenant.began

    async def poll() -> None:
        etag = (await tenant.ask("GET", f"/deliberations/{id}")).headers["ETag"]
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await tenant.ask(
                    "GET", f"/deliberations/{id}", headers={"Prefer": "wait=60", "If-None-Match": f"{etag}"}
                )

    await tenant.repeat(poll, 200, 20)


async def silent_readers(tenant: EvilTenant) -> None:
    """Streams of all events that nobody reads, while there is much to send."""
    async with asyncio.TaskGroup() as group:
        group.create_task(submitting(8, num_agents=8)(tenant))
        group.create_task(tenant.hold([tenant.head("GET", "/events?after=now")], 200))


async def endless_heads(tenant: EvilTenant) -> None:
    await asyncio.gather(*(pour(tenant.port, kind) for kind in ENDLESS))


async def one_key_for_all(tenant: EvilTenant) -> None:
    headers = {"Idempotency-Key": "one"}
    body = {"task": TASK, "role": TENANTS_ROLE, "strategy": "single"}
    answers = await asyncio.gather(
        *(tenant.ask("POST", "/deliberations", json=body, headers=headers) for _ in range(100))
    )
    tenant.began = list({answer.json()["id"] for answer in answers if answer.status_code in (200, 202)})
    if len(tenant.began) != 1:
        tenant.faults.append(f"one key began {len(tenant.began)} deliberations")


PAGES = {"Accept": "application/json"}
LONGEST = {
    "task": "x " * 16_384,
    "evidence": [{"id": f"e{n}", "title": "t" * 200, "text": "y" * 1_000} for n in range(32)],
    "metadata": {f"{'k' * 60}{n}": "v" * 512 for n in range(16)},
}
LABELS = {
    "strategy": "vote",
    "parameters": {"options": [f"option {'(' * number}{'a' * 40}{')*' * number}" for number in range(32)]},
}
TENANTS: Mapping[str, Play] = {
    **{
        f"a body: {name}": asking(
            "POST", "/v1/chat/completions" if "messages" in name else "/deliberations", content=content, headers=JSON
        )
        for name, content in BODIES.items()
    },
    "paths": asking_each(*(("GET", path, {}) for path in PATHS.values())),
    "headers": asking_each(
        *(("GET", "/deliberations", {"headers": {name: value}}) for name, value in HEADERS.values())
    ),
    "answer schemas of 9 kB": submitting(8, constraints={"answer_schema": constants(250, 1, 90)}),
    "an answer schema whose lists multiply": submitting(8, constraints={"answer_schema": constants(20, 3, 16)}),
    "an answer schema that forces a list": submitting(8, constraints={"answer_schema": integers(200, minItems=64)}),
    "the longest texts": submitting(8, **LONGEST),
    "the largest council": submitting(2, num_agents=32, strategy="council", rounds=5),
    "labels like patterns": submitting(8, num_agents=8, **LABELS),
    "searches for beginnings": searching("common -wa* -wb* -wc* -wd*", "wri* fun* mer* sor*", "a* b* c*"),
    "searches of a hundred phrases": searching('"a b" OR ' * 28 + "x", "-x " * 80 + "y", '"' * 255, "OR " * 80),
    "cursors": asking_each(
        *(("GET", "/deliberations", {"params": {"cursor": "A" * size}}) for size in (1, 64, 128)),
        *(("GET", "/events", {"params": {"after": each}, "headers": PAGES}) for each in ("9" * 18, "-1", "a-0")),
    ),
    "metadata in filters": asking_each(
        *(("GET", "/deliberations", {"params": {f"metadata.{'k' * n}": "v%" * n}}) for n in (1, 60, 500))
    ),
    "statistics": asking("GET", "/stats", params={"by": "day", "from": "2000-01-01T00:00:00Z"}),
    "a burst of submissions": submitting(100, strategy="single", num_agents=1),
    "one key for a hundred submissions": one_key_for_all,
    "abandoned streams": abandoned_streams,
    "streams that nobody reads": silent_readers,
    "heads without an end": endless_heads,
    "half heads": holding(400, b"GET / HTTP/1.1\r\nHost: loc", drips=True),
    "slow bodies": holding(
        400, ("POST", "/deliberations", "Content-Type: application/json", "Content-Length: 200000"), b"{", drips=True
    ),
    "idle connections": holding(2_000),
    "pipelined requests": holding(50, *[("GET", "/deliberations")] * 100),
    "the document of the API": asking("GET", "/openapi.json"),
    "wrong keys": asking("POST", "/login", json={"key": "dlb_aaaaaaaaaaaa_" + "a" * 43}),
    "deletions of what runs": asking("DELETE", "/deliberations/" + "a" * 26),
}  # fmt: skip
MODES: Mapping[str, Mode] = {
    **{f"engine: {name}": evil_engine(name) for name in EVIL_ENGINES},
    **{name: Mode(play) for name, play in TENANTS.items()},
    "16,000 integers against 250 branches": answer_of_integers(16_000, 250),
    "4,000 integers against 100 branches": answer_of_integers(4_000, 100),
    "a cancel storm": Mode(cancel_storm, EVIL_ENGINES["silence"]),
    "abandoned long polls": Mode(abandoned_polls, EVIL_ENGINES["silence"]),
}


async def played(mode: Mode, tenant: EvilTenant, evil: EvilEngine) -> dict[str, object]:
    tenant.answers.clear()
    tenant.faults.clear()
    try:
        async with asyncio.timeout(PLAYED_WITHIN_S):
            await evil.play(mode.engine)
            await mode.play(tenant)
    except Exception as error:  # Whatever breaks a mode is a fault that its test shows.
        tenant.faults.append(repr(error))
    try:
        await tenant.clear()
    except httpx.TransportError as error:
        tenant.faults.append(repr(error))
    return {"answers": dict(tenant.answers), "faults": tenant.faults}


async def main() -> None:
    os.nice(NICENESS)
    evil = EvilEngine()
    await evil.listen()
    print(f"http://127.0.0.1:{evil.port}", flush=True)
    reader = asyncio.StreamReader(limit=2**20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tenant = EvilTenant(**json.loads(await reader.readline()))
    while name := (await reader.readline()).decode().strip():
        print(json.dumps(await played(MODES[name], tenant, evil)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
