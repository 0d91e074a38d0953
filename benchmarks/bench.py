"""`make bench`: compares the product with a floor, in one run on one machine, with the simulator at 500 ms per call.

The floor is a script in this process: httpx over aiohttp makes the same three calls concurrently, without a server, a
queue or a record. It streams and parses the tokens where the product does. The product is the whole stack as
`deliberate up` starts it, over HTTP (`POST /deliberations` with `Prefer: wait`, strategy `independent`, N = 3). Engine,
load and product share the machine's cores, so only the ratios within a run are meaningful.
"""

import argparse
import asyncio
import gc
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import get_args

import httpx
import uvloop
from httpx_aiohttp import AiohttpTransport
from rich.console import Console
from rich.table import Table

from app.cli.stack.layout import Layout, StackOptions
from app.cli.stack.up import running_stack
from app.deliberation.calls import Call
from app.deliberation.roles import AgentRunner
from app.deliberation.specification import DEFAULT_RUBRIC, AgentSpec, Constraints, Specification
from app.deliberation.strategies import STRATEGIES
from serve_deployments.engine.request_body import request_body

AGENTS = 3
CALL_MS = 500
TOKENS_PER_CHUNK = 8
TASK = "Write a function that merges two sorted lists, and say how you would test it."
# The simulator closes idle connections after 5 s, as vLLM does; the client must close them before.
LIMITS = httpx.Limits(max_connections=2_000, keepalive_expiry=3)
ROUNDS = ((1, 20), (50, 500), (200, 1_600))
QUICK_CALL_MS = 50
SLOW_CALL_MS = 20_000
HELD = (100, 1_000)
ADAPTERS: tuple[AgentRunner, ...] = get_args(AgentRunner)


@dataclass
class Sample:
    """The latencies and the duration of one round, in seconds."""

    in_flight: int
    latencies_s: list[float] = field(default_factory=list[float])
    took_s: float = 0.0

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.latencies_s) * 1_000

    @property
    def p99_ms(self) -> float:
        return sorted(self.latencies_s)[int(len(self.latencies_s) * 0.99)] * 1_000

    @property
    def per_second(self) -> float:
        return len(self.latencies_s) / self.took_s


async def closed_loop(in_flight: int, total: int, one: Callable[[], Awaitable[None]]) -> Sample:
    """Run `one` `total` times, `in_flight` at once."""
    # A collection of this process's modules lasts 0.2 s, which would be measured as the product's.
    gc.collect()
    gc.freeze()
    sample = Sample(in_flight)
    numbers = iter(range(total))

    async def worker() -> None:
        for _ in numbers:
            began = time.perf_counter()
            await one()
            sample.latencies_s.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())
    sample.took_s = time.perf_counter() - began
    return sample


def calls() -> tuple[Call, ...]:
    """The three calls of `independent` for the task; the floor sends the same prompts."""
    specification = Specification(
        task=TASK,
        agents=tuple(AgentSpec(agent_id=f"dev-{n:03d}", role="DEV") for n in range(1, AGENTS + 1)),
        strategy="independent",
        strategy_version=1,
        rounds=0,
        constraints=Constraints(rubric=DEFAULT_RUBRIC, timeout_seconds=300),
        quorum=2,
        seed=1,
    )
    return next(STRATEGIES["independent"].run(specification)).calls


def _whole_text(lines: Iterable[str]) -> str:
    return json.loads("".join(lines))["choices"][0]["message"]["content"]


def _streamed_text(lines: Iterable[str]) -> str:
    chunks = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


class Floor:
    """The same calls from a plain script, with their tokens streamed or not."""

    def __init__(self, engine_url: str, *, streamed: bool) -> None:
        self._streamed = streamed
        self._client = httpx.AsyncClient(
            base_url=engine_url,
            transport=AiohttpTransport(limits=LIMITS),
            timeout=httpx.Timeout(120),
        )
        model = httpx.get(f"{engine_url}/v1/models").json()["data"][0]["id"]
        self._bodies = [json.loads(request_body(call, model, call.seed, stream=streamed)) for call in calls()]

    async def _call(self, body: dict[str, object]) -> None:
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines()]
        text = _streamed_text(lines) if self._streamed else _whole_text(lines)
        if not text:
            raise SystemExit(f"the engine answered {response.status_code}: {lines[:1]}")

    async def once(self) -> None:
        async with asyncio.TaskGroup() as group:
            for body in self._bodies:
                group.create_task(self._call(body))

    async def close(self) -> None:
        await self._client.aclose()


class Product:
    """The stack over HTTP."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            transport=AiohttpTransport(limits=LIMITS),
            timeout=httpx.Timeout(120),
        )
        self._body = {"task": TASK, "strategy": "independent", "num_agents": AGENTS}

    async def _deliberated(self) -> tuple[httpx.Response, bool]:
        response = await self._client.post("/deliberations", json=self._body, headers={"Prefer": "wait=60"})
        return response, response.status_code == 200 and response.json()["status"] == "completed"

    async def completes(self) -> bool:
        _, completed = await self._deliberated()
        return completed

    async def once(self) -> None:
        response, completed = await self._deliberated()
        if not completed:
            raise SystemExit(f"the product answered {response.status_code}: {response.text[:500]}")

    async def watch(self, deliberation_id: str) -> int:
        """Read the stream of events to its end over a socket, and return the number of its pieces of text."""
        url = self._client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        request = (
            f"GET /deliberations/{deliberation_id}/events HTTP/1.1\r\nHost: {url.host}\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode())
        found = await reader.read()
        writer.close()
        return found.count(b"event: call.delta")

    async def submit(self) -> str:
        response = await self._client.post("/deliberations", json=self._body)
        if response.status_code != 202:
            raise SystemExit(f"the product answered {response.status_code}: {response.text[:500]}")
        return response.json()["id"]

    async def until_running(self, count: int) -> None:
        """Wait until the coordinators run at least `count` deliberations."""
        while True:
            coordinators = (await self._client.get("/status")).json()["coordinators"]
            if sum(each["in_hand"] for each in coordinators) >= count:
                return
            await asyncio.sleep(0.5)

    async def begun(self) -> int:
        """The deliberations that coordinators have begun, of those that they hold."""
        coordinators = (await self._client.get("/status")).json()["coordinators"]
        return sum(turn["begun"] for each in coordinators for turn in each["turns"])

    async def read(self, deliberation_id: str) -> None:
        (await self._client.get(f"/deliberations/{deliberation_id}")).raise_for_status()

    async def ended(self, deliberation_id: str) -> None:
        """Long-poll until it has ended."""
        headers = {"Prefer": "wait=60"}
        while True:
            response = await self._client.get(f"/deliberations/{deliberation_id}", headers=headers)
            if response.status_code == 200 and response.json()["ended_at"]:
                return
            headers["If-None-Match"] = response.headers["ETag"]

    async def archived(self) -> None:
        """Wait until the archive has everything."""
        while any(each["pending"] for each in (await self._client.get("/status")).json()["projectors"]):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.2)

    async def drained(self) -> None:
        """Wait until no deliberation is active."""
        while (await self._client.get("/status")).json()["queue"]["depth"]:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        await self._client.aclose()


async def measure(engine_url: str, url: str, *, deltas: bool) -> list[tuple[str, str, str, str]]:
    """Measures one stack: rows of (what, floor, product, ratio)."""
    floor, product = Floor(engine_url, streamed=deltas), Product(url)
    await closed_loop(20, 100, product.once)
    rows: list[tuple[str, str, str, str]] = []
    streamed = "tokens streamed to the log" if deltas else "tokens not streamed"
    for in_flight, total in ROUNDS:
        below = await closed_loop(in_flight, total, floor.once)
        above = await closed_loop(in_flight, total, product.once)
        if in_flight == 1:
            what, a, b = f"p50 latency, {streamed}", below.p50_ms, above.p50_ms
            rows.append((what, f"{a:.1f} ms", f"{b:.1f} ms", f"{b / a:.3f}"))
        else:
            what, a, b = f"deliberations/s, {in_flight} in flight, {streamed}", below.per_second, above.per_second
            rows.append((what, f"{a:.0f}", f"{b:.0f}", f"{b / a:.2f}"))
    if not deltas:
        rows += await submits(product)
    await floor.close()
    await product.close()
    return rows


async def submits(product: Product) -> list[tuple[str, str, str, str]]:
    """Measures submissions and reads."""
    ids: list[str] = []
    alone = Sample(1)
    for _ in range(30):
        began = time.perf_counter()
        ids.append(await product.submit())
        alone.latencies_s.append(time.perf_counter() - began)
        await product.ended(ids[-1])

    async def read() -> None:
        await product.read(ids[0])

    burst = await closed_loop(200, 1_000, submitting(product))
    await product.drained()
    steady = Sample(200)

    async def submit_and_wait() -> None:
        began = time.perf_counter()
        deliberation_id = await product.submit()
        steady.latencies_s.append(time.perf_counter() - began)
        await product.ended(deliberation_id)

    await closed_loop(200, 1_200, submit_and_wait)
    del steady.latencies_s[:200]  # the initial burst, which the row above measures
    reads = await closed_loop(1, 200, read)
    return [
        ("submit p50, nothing else in flight", "", f"{alone.p50_ms:.2f} ms", ""),
        ("submit p99, 1,000 submissions, 200 at once", "", f"{burst.p99_ms:.0f} ms", ""),
        ("submit p99, 200 deliberations in flight", "", f"{steady.p99_ms:.0f} ms", ""),
        ("GET of a finished deliberation, p50", "", f"{reads.p50_ms:.2f} ms", ""),
    ]


def simulator(call_ms: int) -> tuple[str, ...]:
    """The simulator's arguments for calls of `call_ms`."""
    return ("--duration-ms", str(call_ms), "--chunk-tokens", str(TOKENS_PER_CHUNK))


@asynccontextmanager
async def stack_of(call_ms: int, *more: str, agents: AgentRunner = "ray") -> AsyncGenerator[Layout, None]:
    """The stack with an engine that takes `call_ms` per call. `more` are further arguments of the simulator."""
    simulate = (*simulator(call_ms), *more)
    with tempfile.TemporaryDirectory() as data:
        options = StackOptions(data_dir=Path(data), port=0, nats_port=0, simulate=simulate, agents=agents)
        async with running_stack(options) as stack:
            yield stack


async def quick_calls(agents: AgentRunner) -> list[tuple[str, str, str, str]]:
    """The rows of the overhead of one stage of quick calls, and of 200 in flight, by what runs the agents."""
    async with stack_of(QUICK_CALL_MS, agents=agents) as stack:
        floor, product = Floor(stack.engine_urls[0], streamed=True), Product(stack.url)
        await closed_loop(20, 100, product.once)
        below, above = await closed_loop(1, 50, floor.once), await closed_loop(1, 50, product.once)
        less, many = await closed_loop(200, 1_000, floor.once), await closed_loop(200, 1_000, product.once)
        await floor.close()
        await product.close()
    what, added = f"{QUICK_CALL_MS} ms per call, agents={agents}", f"{above.p50_ms - below.p50_ms:+.1f} ms"
    return [
        (f"p50 latency of one stage, {what}", f"{below.p50_ms:.1f} ms", f"{above.p50_ms:.1f} ms", added),
        (
            f"deliberations/s, 200 in flight, {what}",
            f"{less.per_second:.0f}",
            f"{many.per_second:.0f}",
            f"{many.per_second / less.per_second:.2f}",
        ),
    ]


def resident_kb(name: str) -> int:
    """Memory of the only process with `name` in its command line."""
    (status,) = (
        (path / "status").read_text()
        for path in Path("/proc").glob("[0-9]*")
        if name in (path / "cmdline").read_bytes().decode(errors="replace")
    )
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])


def submitting(product: Product) -> Callable[[], Awaitable[None]]:
    """A function that submits and does not wait."""

    async def submit() -> None:
        await product.submit()

    return submit


async def memory() -> tuple[str, str, str, str]:
    """The row of the coordinator's memory per deliberation in flight."""
    taken: list[int] = []
    async with stack_of(SLOW_CALL_MS) as stack:
        product = Product(stack.url)
        for before, count in pairwise((0, *HELD)):
            await closed_loop(50, count - before, submitting(product))
            await product.until_running(count)
            taken.append(resident_kb(":Coordinator"))
        await product.close()
    few, many = HELD
    what = f"the coordinator's memory, each of {few} to {many:,} in flight"
    return what, "", f"{(taken[1] - taken[0]) / (many - few):.0f} KB", ""


async def main(*, adapters_alone: bool) -> None:
    console = Console(width=max(100, Console().width))
    table = Table("what (simulated engine)", "floor", "product", "ratio", title=f"N = {AGENTS}, {CALL_MS} ms per call")
    for deltas in () if adapters_alone else (False, True):
        os.environ["STREAM_DELTAS"] = str(deltas).lower()
        began = time.perf_counter()
        async with stack_of(CALL_MS) as stack:
            if not deltas:
                took_s = time.perf_counter() - began
                table.add_row("cold start to ready, five roles", "", f"{took_s:.1f} s", "")
            for row in await measure(stack.engine_urls[0], stack.url, deltas=deltas):
                table.add_row(*row)
    for agents in ADAPTERS:
        for row in await quick_calls(agents):
            table.add_row(*row)
    if not adapters_alone:
        # An hour to the deadline, so that nothing is refused because other work waits.
        os.environ["DELIBERATION_TIMEOUT"] = "3600"
        table.add_row(*await memory())
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", action="store_true", help="only compare what runs the agents")
    uvloop.run(main(adapters_alone=parser.parse_args().adapters))
