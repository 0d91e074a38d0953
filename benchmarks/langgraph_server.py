"""`python -m benchmarks.langgraph_server PYTHON`: the product beside LangGraph's server, in one run on one engine.

PYTHON is the interpreter of an environment of its own with `pip install "langgraph-cli[inmem]" langchain-openai`. The
server runs in memory, with `--jobs` runs at once. Its graph makes the calls of one `independent` at once and streams
each; `POST /runs/wait` returns their texts. LangChain's `ChatOpenAI` makes the calls, or with `--bare` one session of
aiohttp. The product is the whole stack with tokens streamed. CPU is that of all processes of each side but the engine.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import uvloop
from httpx_aiohttp import AiohttpTransport
from rich.console import Console
from rich.table import Table

from benchmarks.bench import AGENTS, CALL_MS, LIMITS, Product, Sample, calls, closed_loop, stack_of
from benchmarks.cores import cpu_s, process
from benchmarks.footprint import SIMULATOR, ticks_by_part
from serve_deployments.engine.request_body import request_body
from tests.conftest import free_port

ROUNDS = 2
# Of the deliberations that are measured, those that run before.
WARM_UP = 0.1
GRAPH = """
import json, operator
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

ENGINE_URL, BODIES, BARE = json.loads(Path(__file__).with_name("calls.json").read_text())
session = None


class State(TypedDict):
    texts: Annotated[list[str], operator.add]


def bare(body):
    import aiohttp

    async def call(state: State):
        global session
        session = session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3))
        text = ""
        async with session.post(f"{ENGINE_URL}/v1/chat/completions", json=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
        return {"texts": [text] if text else []}

    return call


def modelled(body):
    from langchain_openai import ChatOpenAI

    rest = {name: value for name, value in body.items() if name not in ("model", "messages", "stream")}
    model = ChatOpenAI(
        model=body["model"], base_url=f"{ENGINE_URL}/v1", api_key="none", streaming=True, extra_body=rest
    )

    async def call(state: State):
        text = (await model.ainvoke(body["messages"])).content
        return {"texts": [text] if text else []}

    return call


graph = StateGraph(State)
for number, body in enumerate(BODIES):
    graph.add_node(str(number), (bare if BARE else modelled)(body))
    graph.add_edge(START, str(number))
    graph.add_edge(str(number), END)
graph = graph.compile()
"""


class _Asked(argparse.Namespace):
    python: Path
    in_flight: int
    count: int
    jobs: int
    bare: bool


class Server:
    """LangGraph's server over HTTP."""

    def __init__(self, url: str, leader: int) -> None:
        self.leader = leader
        transport = AiohttpTransport(limits=LIMITS)
        self._client = httpx.AsyncClient(base_url=url, transport=transport, timeout=httpx.Timeout(120))

    async def once(self) -> None:
        response = await self._client.post("/runs/wait", json={"assistant_id": "council", "input": {"texts": []}})
        if response.status_code != 200 or len(response.json().get("texts", ())) != AGENTS:
            raise SystemExit(f"LangGraph's server answered {response.status_code}: {response.text[:500]}")

    async def close(self) -> None:
        await self._client.aclose()


@asynccontextmanager
async def langgraph_server(asked: _Asked, engine_url: str, bodies: list[object]) -> AsyncGenerator[Server]:
    """The server with the graph, and nothing of it reported to others."""
    with tempfile.TemporaryDirectory() as directory:
        place, port = Path(directory), free_port()
        (place / "calls.json").write_text(json.dumps([engine_url, bodies, asked.bare]))
        (place / "graph.py").write_text(GRAPH)
        (place / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"council": "./graph.py:graph"}}')
        options = (
            f"dev --no-browser --no-reload --host 127.0.0.1 --port {port} --n-jobs-per-worker {asked.jobs}".split()
        )
        environment = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
        program = str(asked.python.absolute().with_name("langgraph"))
        async with process(
            port, program, *options, python=str(asked.python.absolute()), cwd=directory, **environment
        ) as leader:
            server = Server(f"http://127.0.0.1:{port}", leader)
            yield server
            await server.close()


class Measured(NamedTuple):
    sample: Sample
    cpu_ms: float


async def measured(asked: _Asked, side: Product | Server, spent_s: Callable[[], float]) -> Measured:
    """A side's rate, and its CPU for each deliberation."""
    await closed_loop(asked.in_flight, round(asked.count * WARM_UP), side.once)
    before_s = spent_s()
    sample = await closed_loop(asked.in_flight, asked.count, side.once)
    return Measured(sample, 1_000 * (spent_s() - before_s) / asked.count)


def product_s(mark: str) -> float:
    ticks = ticks_by_part(mark)
    return (ticks.total() - ticks[SIMULATOR]) / os.sysconf("SC_CLK_TCK")


async def main(asked: _Asked) -> None:
    os.environ["STREAM_DELTAS"] = "true"
    found: dict[str, list[Measured]] = {"product": [], "LangGraph's server": []}
    async with stack_of(CALL_MS) as stack:
        product, engine_url = Product(stack.url), stack.engine_urls[0]
        async with httpx.AsyncClient() as client:
            model = (await client.get(f"{engine_url}/v1/models")).json()["data"][0]["id"]
        bodies = [json.loads(request_body(call, model, call.seed, stream=True)) for call in calls()]
        for _ in range(ROUNDS):
            found["product"].append(await measured(asked, product, partial(product_s, stack.mark)))
            async with langgraph_server(asked, engine_url, bodies) as server:
                found["LangGraph's server"].append(await measured(asked, server, partial(cpu_s, server.leader)))
        await product.close()
    title = f"{asked.in_flight} in flight, {CALL_MS} ms a call, simulated engine, {os.cpu_count()} cores"
    table = Table("", "each second", "p50, ms", "CPU of each, ms", title=title)
    for name, rounds in found.items():
        columns = zip(*((f"{of.per_second:.1f}", f"{of.p50_ms:.0f}", f"{ms:.1f}") for of, ms in rounds), strict=True)
        table.add_row(name, *map(", ".join, columns))
    console = Console(width=max(100, Console().width))
    console.print(table)
    rounds = list(zip(*found.values(), strict=True))
    rate = statistics.median(ours.sample.per_second / theirs.sample.per_second for ours, theirs in rounds)
    cpu = statistics.median(ours.cpu_ms / theirs.cpu_ms for ours, theirs in rounds)
    console.print(f"product over LangGraph's server: {rate:.1f} of its rate, {cpu:.2f} of its CPU")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("python", type=Path, help="Interpreter of an environment with LangGraph's server")
    options.add_argument("--in-flight", type=int, default=200)
    options.add_argument("--count", type=int, default=800, help="Deliberations of each in each round")
    options.add_argument("--jobs", type=int, default=300, help="Runs of LangGraph's server at once; its default is 10")
    options.add_argument("--bare", action="store_true", help="Make its calls by aiohttp instead of LangChain's model")
    uvloop.run(main(options.parse_args(namespace=_Asked())))
