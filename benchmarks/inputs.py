"""`python -m benchmarks.inputs [--long | --shared]`: what long evidence costs, with the simulator at 500 ms a call.

One council of three over a million tokens: what the streams store, the largest fact, how coordinator and gateway grow,
and what another client waits for its answers meanwhile. That client also waits while a bare client asks the same of
the engine, because engines work on machines of their own where users measure. Fifty councils over one file: the
cached share of prompt tokens, all at once beside one after another.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, cycle
from pathlib import Path
from pydoc_data.topics import topics
from statistics import quantiles
from typing import Any

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from app.cli.stack.layout import Layout, StackOptions
from benchmarks.bench import CALL_MS, closed_loop, running_stack, simulator
from benchmarks.cores import process
from benchmarks.footprint import Sizes, sizes
from benchmarks.scale import resident_kb
from serve_deployments.simulator.writer.tokens import split_blocks
from tests.conftest import free_port

CONTEXT = 1_048_576
LONG_TOKENS, SHARED_TOKENS = 1_000_000, 100_000
COUNCILS = 50
SAMPLE_S = 0.1
SMALL = 400
BYTES_MAX = 64 * 1_024
ENDED = ("completed", "failed", "cancelled")


def text_of(tokens: int) -> str:
    """Python's own help, again and again under other headings, with at most so many of the simulator's tokens."""
    chapters, left = list[str](), tokens
    for number, helped in enumerate(cycle(topics.values())):
        chapter = f"Chapter {number}\n{helped}\n"
        left -= split_blocks(chapter)[0]
        if left < 0:
            return "".join(chapters)
        chapters.append(chapter)
    raise AssertionError("a cycle does not end")


async def uploaded(client: httpx.AsyncClient, text: str) -> dict[str, Any]:
    answer = await client.post("/files", files={"file": ("evidence.txt", text.encode())})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def deliberated(client: httpx.AsyncClient, file: dict[str, Any], number: int = 0) -> dict[str, Any]:
    evidence = [{"id": "text", "title": "The text", "file": file["id"]}]
    asked = {"task": f"What does chapter {number} say?", "num_agents": 3, "evidence": evidence}
    answer = await client.post("/deliberations", json={**asked, "constraints": {"timeout_seconds": 600}})
    assert answer.status_code == 202, answer.text
    while (resource := answer.json())["status"] not in ENDED:
        answer = await client.get(f"/deliberations/{resource['id']}", headers={"Prefer": "wait=60"})
    assert resource["status"] == "completed", resource
    return resource


async def waits(client: httpx.AsyncClient) -> list[tuple[float, float]]:
    """The seconds until the acceptance and until the first piece of text of small deliberations, one after another."""
    measured = list[tuple[float, float]]()
    for number in range(SMALL):
        began = time.perf_counter()
        answer = await client.post(
            "/deliberations", json={"task": f"Name colour {number}.", "strategy": "single", "role": "QA"}
        )
        accepted_s = time.perf_counter() - began
        async with client.stream("GET", answer.json()["links"]["events"]) as events:
            async for line in events.aiter_lines():
                if line == "event: call.delta":
                    break
        measured.append((accepted_s, time.perf_counter() - began))
    return measured


async def engine_alone(url: str, text: str) -> None:
    """Ask the engine over the text, as three members do at once, until this is cancelled."""

    async def member(client: httpx.AsyncClient, body: bytes) -> None:
        while True:
            answer = await client.post("/v1/chat/completions", content=body)
            assert answer.status_code == 200, answer.text

    async with httpx.AsyncClient(base_url=url, timeout=600, headers={"Content-Type": "application/json"}) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
        await asyncio.gather(*(member(client, body) for _ in range(3)))


@asynccontextmanager
async def stack() -> AsyncGenerator[tuple[Layout, str]]:
    """A stack with two engines: role DEV reads long evidence on the one, whose URL is given, and QA asks the other."""
    ports = {role: free_port() for role in ("DEV", "QA")}
    # Python counts the tokens of all prompts at once, which takes it longer than an engine is silent.
    engine: dict[str, Any] = {"idle_timeout_s": 600}
    roles = {
        role: {"persona": "You answer.", "engines": [{"url": f"http://127.0.0.1:{port}", **engine}]}
        for role, port in ports.items()
    }
    options = (*simulator(CALL_MS), "--max-model-len", str(CONTEXT))
    async with AsyncExitStack() as entered:
        data = Path(entered.enter_context(tempfile.TemporaryDirectory()))
        for port in ports.values():
            command = ("-m", "serve_deployments.simulator", "--port", str(port), *options)
            pid = await entered.enter_async_context(process(port, *command))
            # Real engines count tokens on machines of their own.
            os.setpriority(os.PRIO_PROCESS, pid, 19)
        file = data / "roles.yaml"
        file.write_text(json.dumps({"roles": roles}))
        layout = StackOptions(data_dir=data / "data", port=0, nats_port=0, roles_file=file)
        yield await entered.enter_async_context(running_stack(layout)), f"http://127.0.0.1:{ports['DEV']}"


@asynccontextmanager
async def grown(mark: str) -> AsyncGenerator[Counter[str]]:
    """The KiB by which each part of the stack grows at most."""
    before, most = resident_kb(mark), Counter[str]()

    async def sample() -> None:
        while True:
            for part, resident in resident_kb(mark).items():
                most[part] = max(most[part], resident - before[part])
            await asyncio.sleep(SAMPLE_S)

    sampling = asyncio.create_task(sample())
    try:
        yield most
    finally:
        sampling.cancel()


async def largest_event(client: httpx.AsyncClient, deliberation_id: str) -> int:
    """The bytes of the largest fact or view, as JSON."""
    largest, page = 0, {"next": None, "ended": False}
    while not page["ended"]:
        after = {} if page["next"] is None else {"after": page["next"]}
        headers = {"Accept": "application/json"}
        answer = await client.get(f"/deliberations/{deliberation_id}/events", params=after, headers=headers)
        page = answer.raise_for_status().json()
        largest = max(largest, *(len(json.dumps(event)) for event in page["items"]))
    return largest


async def shared(in_flight: int) -> tuple[float, int, Sizes]:
    """Of councils over one file: the cached share of prompt tokens, the prompt tokens, and what the streams store."""
    async with (
        stack() as (layout, _),
        httpx.AsyncClient(base_url=layout.url, timeout=600) as client,
    ):
        file, numbers, usages = await uploaded(client, text_of(SHARED_TOKENS)), count(), list[dict[str, int]]()

        async def one() -> None:
            usages.append((await deliberated(client, file, next(numbers)))["usage"])

        await closed_loop(in_flight, COUNCILS, one)
        asked, cached = (sum(usage[name] for usage in usages) for name in ("prompt_tokens", "cached_tokens"))
        return cached / asked, asked, await sizes(client)


async def shared_file(table: Table) -> None:
    ideal, _, _ = await shared(1)
    achieved, asked, stored = await shared(COUNCILS)
    table.add_row(f"prompt tokens of {COUNCILS} councils over {SHARED_TOKENS:,} tokens", f"{asked:,}")
    table.add_row("cached share, one after another, and all at once", f"{ideal:.4f}, {achieved:.4f}")
    table.add_row("all at once to one after another", f"{achieved / ideal:.3f}")
    given = len(text_of(SHARED_TOKENS).encode())
    table.add_row("bytes of the stream of files to those of the text", f"{stored['INPUTS'][1] / given:.3f}")


def p99_ms(seconds: list[float]) -> float:
    return 1_000 * quantiles(seconds, n=100)[98]


async def long_council(table: Table) -> None:
    text = text_of(LONG_TOKENS)
    async with (
        stack() as (layout, engine_url),
        httpx.AsyncClient(base_url=layout.url, timeout=600) as client,
        httpx.AsyncClient(base_url=layout.url, timeout=600) as other,
    ):
        await waits(other)
        measured = {"alone": await waits(other)}
        asking = asyncio.create_task(engine_alone(engine_url, text))
        measured["engine at work"] = await waits(other)
        assert not asking.done(), asking
        asking.cancel()
        before = await sizes(client)
        async with grown(layout.mark) as most:
            file = await uploaded(client, text)
            resource = await deliberated(client, file)
        after = await sizes(client)
        bytes_by_stream = {name: after[name][1] - before[name][1] for name in after}
        largest = await largest_event(client, resource["id"])
        waiting = asyncio.create_task(waits(other))
        while not waiting.done():
            await deliberated(client, file, 1)
        measured["beside long ones"] = waiting.result()
        row = table.add_row
        row(
            "prompt tokens of a council of three over the evidence",
            f"{resource['usage']['prompt_tokens']:,}",
        )
        row("bytes of the evidence", f"{len(text.encode()):,}")
        row(
            "bytes stored, all streams, to bytes of the evidence",
            f"{sum(bytes_by_stream.values()) / len(text.encode()):.3f}",
        )
        row(
            "bytes stored of it beside files",
            f"{sum(size for name, size in bytes_by_stream.items() if name != 'INPUTS'):,}",
        )
        row("largest fact or view, bytes", f"{largest:,}")
        for part in ("coordinator", "gateway"):
            growth = max((kib for name, kib in most.items() if part in name.lower()), default=0)
            row(f"{part} grows at most, MB", f"{growth * 1_024 / 1e6:.1f}")
        for place, what in enumerate(("acceptance", "first piece of text")):
            figures = (f"{p99_ms([wait[place] for wait in waited]):.1f}" for waited in measured.values())
            row(f"p99 until the {what} of small ones, ms: {', '.join(measured)}", ", ".join(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description="What long evidence costs")
    parser.add_argument("--long", action="store_true", help="One council over a million tokens alone")
    parser.add_argument("--shared", action="store_true", help="Fifty councils over one file alone")
    parts = parser.parse_args()
    table = Table(title="Long evidence, simulated")
    table.add_column("figure")
    table.add_column("value", justify="right")
    if parts.shared or not parts.long:
        uvloop.run(shared_file(table))
    if parts.long or not parts.shared:
        uvloop.run(long_council(table))
    Console(width=max(110, Console().width)).print(table)


if __name__ == "__main__":
    main()
