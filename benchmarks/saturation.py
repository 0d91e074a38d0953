"""`python -m benchmarks.saturation [PROCESS…]`: the highest rate of each process with one core for itself.

The process under test has the machine's last core; nats-server, load and all else share the others. Little but the
process runs: one recorded deliberation (`independent`, three calls of 32 pieces), under other ids, stands for the parts
that are left out.

- gateway: clients POST with `Prefer: wait`; each acceptance is answered by the recorded facts.
- coordinator: stored acceptances; each task is answered by the recorded outcomes.
- agent: stored acceptances, a coordinator, and the simulated engine at 500 ms a call.
- archive: stored deliberations.
- nats-server: messages of deliberations are stored and nothing reads them.

When the other cores are full first, the rate is a lower bound, and says so. The rate over the core's share then is what
a full core would reach, if each deliberation cost the same there.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from rich.console import Console
from rich.table import Table

from app.archive.database.migrate import migrate
from app.deliberation.facts import event_type
from app.log.journal import JetStreamJournal
from app.log.stream_settings import STREAM, StreamSettings
from app.log.streams import apply
from benchmarks.bench import AGENTS, CALL_MS, Product, closed_loop, simulator
from benchmarks.cores import Cores, cpu_s, idle_s, pin, process, separated
from benchmarks.footprint import PIECES
from benchmarks.recording import BareClient, Message, Recording, request, running_server
from tests.conftest import free_port

ROLE = "DEV"
# Deliberations in flight, where clients or a coordinator bound them.
IN_FLIGHT = (50, 200)
FULL = 0.95
# Of the deliberations that are measured, those that run before.
WARM_UP = 0.1


class Rate(NamedTuple):
    """Deliberations a second, and the shares of their time that the cores were busy."""

    per_s: float
    alone: float
    rest: float


class Bench:
    """One nats-server with the product's streams, and the means to load one process."""

    def __init__(self, cores: Cores, recording: Recording, url: str, server_pid: int, client: Client) -> None:
        self.url = url
        self.server_pid = server_pid
        self.client = client
        self.recording = recording
        self._cores = cores
        self._numbers = count()

    @asynccontextmanager
    async def part(self, variable: str, *arguments: str, **environment: str) -> AsyncGenerator[tuple[int, int]]:
        """A process of the product with its port in `variable`; yields its process id and its port."""
        port = free_port()
        variables = {"NATS_URL": self.url, "AGENTS": "nats", variable: str(port), **environment}
        async with process(port, *arguments, **variables) as pid:
            yield pid, port

    async def measured(self, leader: int, total: int, run: Callable[[int], Awaitable[None]]) -> Rate:
        """The rate of `total` deliberations, while the process has its core for itself."""
        pin(leader, self._cores.alone)
        await run(max(1, round(total * WARM_UP)))
        spent_s, idle_before_s, began_s = cpu_s(leader), idle_s(self._cores.rest), time.monotonic()
        await run(total)
        took_s = time.monotonic() - began_s
        idle = (idle_s(self._cores.rest) - idle_before_s) / took_s / len(self._cores.rest)
        return Rate(total / took_s, (cpu_s(leader) - spent_s) / took_s, max(0.0, 1 - idle))

    async def store(self, total: int, messages: Sequence[Message]) -> None:
        """Store messages of `total` deliberations with ids of their own."""
        async with BareClient.connect(self.url) as bare:
            for _ in range(total):
                await bare.store(self.recording.block(messages, self.recording.id_of(next(self._numbers))))

    @asynccontextmanager
    async def answering(self, subject: str, place: int, messages: Sequence[Message]) -> AsyncGenerator[None]:
        """Store `messages` for each message on `subject`, which has the deliberation's id at `place`."""
        async with BareClient.connect(self.url) as bare:

            async def answer(message: Msg) -> None:
                id = message.subject.split(".")[place].encode()
                await bare.store(self.recording.block(messages, id))

            subscription = await self.client.subscribe(subject, cb=answer)
            yield
            await subscription.unsubscribe()

    async def accepted(self, total: int) -> None:
        """Store acceptances, and wait for as many ends."""
        ends, all_ended = count(1), asyncio.Event()

        async def end(message: Msg) -> None:
            assert event_type(message.data) == "deliberation.completed", message.data
            if next(ends) == total:
                all_ended.set()

        subscription = await self.client.subscribe("live.deliberations.*.*.end", cb=end)
        await self.store(total, self.recording.of_kind("accepted"))
        await all_ended.wait()
        await subscription.unsubscribe()

    async def archived(self, total: int) -> None:
        """Store deliberations, and wait until the archive has taken all."""
        await self.store(total, self.recording.messages)
        while True:
            found = await request(self.client, f"CONSUMER.INFO.{STREAM}.archive")
            if not found["num_pending"] and not found["num_ack_pending"]:
                return
            await asyncio.sleep(0.02)


async def gateway(bench: Bench, total: int, in_flight: int) -> Rate:
    async with bench.part("PORT", "-m", "app.main") as (pid, port):
        product = Product(f"http://127.0.0.1:{port}")
        facts = bench.recording.of_kind("stage", "call", "end")
        async with bench.answering("live.deliberations.*.*.accepted", 3, facts):

            async def run(some: int) -> None:
                await closed_loop(in_flight, some, product.once)

            rate = await bench.measured(pid, total, run)
        await product.close()
        return rate


async def coordinator(bench: Bench, total: int, in_flight: int) -> Rate:
    slots = {"COORDINATOR_SLOTS": str(in_flight)}
    async with (
        bench.part("COORDINATOR_PORT", "-m", "serve_deployments.coordinator", **slots) as (pid, _),
        bench.answering("agent.task.assigned.*.*.*", 5, bench.recording.of_kind("call")),
    ):
        return await bench.measured(pid, total, bench.accepted)


async def agent(bench: Bench, total: int, in_flight: int) -> Rate:
    port = free_port()
    engine = ("-m", "serve_deployments.simulator", "--port", str(port), *simulator(CALL_MS))
    slots, engine_url = {"COORDINATOR_SLOTS": str(in_flight)}, {"VLLM_URL": f"http://127.0.0.1:{port}"}
    async with (
        process(port, *engine),
        bench.part("COORDINATOR_PORT", "-m", "serve_deployments.coordinator", **slots),
        bench.part("WORKER_PORT", "-m", "serve_deployments.agent", "--role", ROLE, **engine_url) as (pid, _),
    ):
        return await bench.measured(pid, total, bench.accepted)


async def archive(bench: Bench, total: int, _: int) -> Rate:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/archive.db"
        await migrate(url)
        async with bench.part("ARCHIVE_PORT", "-m", "app.archive", DATABASE_URL=url) as (pid, _):
            return await bench.measured(pid, total, bench.archived)


async def nats_server(bench: Bench, total: int, _: int) -> Rate:
    async def run(some: int) -> None:
        await bench.store(some, bench.recording.messages)

    return await bench.measured(bench.server_pid, total, run)


class Case(NamedTuple):
    """A measured process: its share of the asked deliberations, the counts in flight, and its units of work by name."""

    measure: Callable[[Bench, int, int], Awaitable[Rate]]
    share: float
    in_flight: Sequence[int]
    units: dict[str, int]


def cases(recording: Recording) -> dict[str, Case]:
    return {
        "gateway": Case(gateway, 1, IN_FLIGHT, {}),
        "coordinator": Case(coordinator, 1, IN_FLIGHT, {}),
        "agent": Case(agent, 0.25, IN_FLIGHT, {"calls": AGENTS, "pieces": AGENTS * PIECES}),
        "archive": Case(archive, 2, (0,), {}),
        "nats-server": Case(nats_server, 20, (0,), {"messages": len(recording.messages)}),
    }


async def measured(cores: Cores, recording: Recording, case: Case, total: int, in_flight: int) -> Rate:
    """One case on a server of its own."""
    async with AsyncExitStack() as cleanup:
        directory = cleanup.enter_context(tempfile.TemporaryDirectory())
        server, client = await cleanup.enter_async_context(running_server(Path(directory)))
        journal = await JetStreamJournal.connect(server.url, name="saturation")
        cleanup.push_async_callback(journal.close)
        await apply(journal, StreamSettings(worker_roles=(ROLE,)))
        assert server.process is not None
        bench = Bench(cores, recording, server.url, server.process.pid, client)
        return await case.measure(bench, max(1, round(total * case.share)), in_flight)


async def main(names: Sequence[str], total: int) -> None:
    recording, cores = await Recording.of_stack(), separated()
    columns = "process", "in flight", "each second", "its core", "the others", "a full core, each second"
    table = Table(title="One process with one core for itself, simulated engine")
    for column in columns:
        table.add_column(column, justify="left" if column == "process" else "right")
    for name, case in cases(recording).items():
        for in_flight in case.in_flight if name in names or not names else ():
            rate = await measured(cores, recording, case, total, in_flight)
            bound = "" if rate.alone >= FULL else "≥ "
            for unit, each in {"deliberations": 1, **case.units}.items():
                table.add_row(
                    f"{name}, {unit}",
                    str(in_flight or ""),
                    f"{bound}{rate.per_s * each:,.0f}",
                    f"{rate.alone:.0%}",
                    f"{rate.rest:.0%}",
                    f"{rate.per_s * each / rate.alone:,.0f}",
                )
    console = Console(width=max(110, Console().width))
    console.print(table)
    console.print(f"≥: its core was not full. Load over the last minute: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("gateway", "coordinator", "agent", "archive", "nats-server")
    options.add_argument("process", nargs="*", metavar="PROCESS", help=f"of {', '.join(names)}; all by default")
    options.add_argument("--count", type=int, default=4_000, help="Deliberations for a gateway; others get a share")
    asked = options.parse_args()
    if unknown := set(asked.process) - set(names):
        options.error(f"no process is named {', '.join(unknown)}")
    uvloop.run(main(asked.process, asked.count))
