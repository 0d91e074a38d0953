"""Two gateways over one stack without Ray, scraped by a real Prometheus: data for each expression, and every alert."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from app.log.journal import JetStreamJournal
from tests.conditions import until
from tests.conftest import free_port
from tests.deploy.monitoring import dashboard_expressions, rules
from tests.e2e.conftest import FAST, SLOW, TASK, Stack, own_stack
from tests.e2e.prometheus import Prometheus, holds, prometheus
from tests.integration.simulator.server_process import running
from tests.integration.tools.mcp_servers import serving
from tests.story import Story

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="stops processes of `up` by /proc")]

ROLES = """
engines:
  priced: {{url: "{url}", prices: {{prompt: 1000, cached: 100, completion: 4000, currency: EUR}}}}
roles:
  DEV:
    persona: You are a senior software developer.
    engines: [priced]
    tools: [{{mcp: {{name: shelf, url: "{tools}"}}, allow: [look_up]}}]
"""
HIGH, LOW = "1000000", "0.01"
LABEL = "eu"
LOOK_UP = {"name": "look_up", "arguments": {"word": "life"}}
COUNCIL = {"strategy": "independent", "num_agents": 3}
COUNTED = "sum(max by (replica, strategy, status) (last_over_time(deliberation_seconds_count[1h])))"
REPLICAS = "count(count by (replica) (last_over_time(deliberation_takeovers_total[1h])))"
FIRES_WITHIN_S = 60
# Its calls retry, wait for the engine's circuit, and the rates forget it.
CLEARS_WITHIN_S = 90


@dataclass
class ToolHost:
    """A tool server that stops and starts again at its address."""

    place: Path
    port: int = field(default_factory=free_port)
    running: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> str:
        return await self.running.enter_async_context(serving("shelf", self.place, self.port))

    async def stop(self) -> None:
        await self.running.aclose()


@dataclass
class Installation:
    """The stack with its gateway, a second gateway of the test's own, and Prometheus."""

    stack: Stack
    server: Prometheus
    second: httpx.AsyncClient
    environment: dict[str, str]
    tools: "ToolHost"
    process: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    async def start_second(self, spend_per_day: str) -> None:
        environment = {**self.environment, "SPEND_PER_DAY": spend_per_day}
        self.process.append(subprocess.Popen([sys.executable, "-m", "app.main"], env=environment))
        await holds(self._second_is_ready, 60)

    async def _second_is_ready(self) -> bool:
        with suppress(httpx.TransportError):
            return (await self.second.get("/readyz")).status_code == 200
        return False

    def stop_second(self) -> None:
        process = self.process.pop()
        process.terminate()
        process.wait(timeout=30)

    async def is_quiet(self) -> bool:
        return not await self.server.firing()

    async def is_scraped(self) -> bool:
        return len(await self.server.values("up == 1")) == 2 and await self.is_quiet()

    async def has_counted_each_end(self) -> bool:
        """An end that a coordinator wrote after the last scrape before its own end is not counted."""
        ends = [record async for record in self.stack.journal.read("deliberations.*.*.end", 0)]
        return await self.server.values(COUNTED) == [len(ends)]

    async def council(self) -> dict[str, object]:
        return await self.stack.until(await self.stack.submit(**COUNCIL))

    async def offer(self) -> None:
        """Submit a council that waits 20 s for its engine. A queue that a failing engine has filled may refuse it."""
        body = COUNCIL | {"task": TASK, "constraints": {"timeout_seconds": 20}}
        answer = await self.stack.client.post("/deliberations", json=body)
        assert answer.status_code in (202, 429), answer.text


@pytest.fixture(scope="module")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    place = tmp_path_factory.mktemp("monitoring")
    roles, port, tools = place / "roles.yaml", free_port(), ToolHost(place)
    with running() as engine, pytest.MonkeyPatch.context() as patch:
        roles.write_text(ROLES.format(url=engine.url, tools=await tools.start()))
        patch.setenv("SPEND_PER_DAY", HIGH)
        patch.setenv("CLUSTERS", LABEL)
        patch.setenv("COORDINATOR_CLUSTERS", LABEL)
        options = ("--agents", "nats", "--roles", str(roles), "--engine-url", engine.url)
        async with own_stack(place / "data", *options) as stack:
            environment = {**os.environ, **stack.of_log(), "AGENTS": "nats", "ROLES_FILE": str(roles)}
            environment |= {"HOST": "127.0.0.1", "PORT": str(port), "WEBHOOKS": "true", "DRAIN_DELAY": "0"}
            targets = [stack.url.removeprefix("http://"), f"127.0.0.1:{port}"]
            second = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)
            async with prometheus(place / "prometheus", targets) as server:
                found = Installation(stack, server, second, environment, tools)
                await stack.script(tool_calls=[LOOK_UP])
                await found.start_second(HIGH)
                await holds(found.is_scraped, 60)
                try:
                    yield found
                finally:
                    found.stop_second()
                    await second.aclose()
                    await tools.stop()


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def away(stack: Stack, child: str) -> AsyncGenerator[None]:
    """Kill a child of `up`, and hold the one that replaces it before it has connected to the log."""
    before = stack.child(child)["pid"]
    os.kill(before, signal.SIGKILL)
    await until(lambda: stack.child(child)["pid"] != before)
    with paused(stack.child(child)["pid"]):
        yield


@asynccontextmanager
async def repeated(work: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    async def again() -> None:
        while True:
            await work()
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as group:
        working = group.create_task(again())
        yield
        working.cancel()


@asynccontextmanager
async def stopped_gateway(installation: Installation) -> AsyncGenerator[None]:
    with paused(installation.process[-1].pid):
        yield


@asynccontextmanager
async def stopped_log(installation: Installation) -> AsyncGenerator[None]:
    async def read() -> None:
        with suppress(httpx.TransportError):
            await installation.stack.client.get("/deliberations/unknown", timeout=5)

    with paused(installation.stack.child("nats")["pid"]):
        async with repeated(read):
            yield


@asynccontextmanager
async def lost_coordinator(installation: Installation) -> AsyncGenerator[None]:
    """A coordinator dies with work in hand, and another deliberation is accepted."""
    stack = installation.stack
    await holds(installation.has_counted_each_end, 30)
    await stack.script(**SLOW | {"duration_ms": 4_000})
    begun = await stack.submit(**COUNCIL)
    await stack.until(begun, status="in_progress")
    async with away(stack, "coordinator"):
        waiting = await stack.submit(**COUNCIL)
        yield
    await stack.script(**FAST)
    for id in (begun, waiting):
        await stack.until(id, status="completed")


@asynccontextmanager
async def taken_over(installation: Installation) -> AsyncGenerator[None]:
    async with lost_coordinator(installation):
        pass
    yield


@asynccontextmanager
async def untaken_label(installation: Installation) -> AsyncGenerator[None]:
    """The coordinator with the label is away, and one without a label answers."""
    stack = installation.stack
    await holds(installation.has_counted_each_end, 30)
    await stack.script(**FAST)
    environment = {**installation.environment, **stack.of_log("agents"), "COORDINATOR_CLUSTERS": ""}
    command = [sys.executable, "-m", "serve_deployments.coordinator"]
    with subprocess.Popen(command, env={**environment, "COORDINATOR_PORT": "0"}) as other:
        try:
            async with away(stack, "coordinator"):
                waiting = await stack.submit(**COUNCIL, cluster=LABEL)
                await stack.until(await stack.submit(**COUNCIL), status="completed")
                yield
                assert (await stack.read(waiting))["status"] == "pending"
            await stack.until(waiting, status="completed")
            await holds(installation.has_counted_each_end, 30)
        finally:
            other.terminate()


@asynccontextmanager
async def without(child: str, installation: Installation) -> AsyncGenerator[None]:
    async with away(installation.stack, child):
        await installation.stack.submit(**COUNCIL)
        yield


@asynccontextmanager
async def without_tools(installation: Installation) -> AsyncGenerator[None]:
    await installation.tools.stop()
    # A connection is lost at the next use.
    async with repeated(installation.council):
        yield
    await installation.tools.start()


@asynccontextmanager
async def failing(fault: str, installation: Installation) -> AsyncGenerator[None]:
    await installation.stack.script(**FAST | {"faults": [fault]})
    try:
        async with repeated(installation.offer):
            yield
    finally:
        await installation.stack.script(**FAST)


@asynccontextmanager
async def spent(installation: Installation) -> AsyncGenerator[None]:
    await installation.council()
    installation.stop_second()
    await installation.start_second(LOW)
    async with repeated(lambda: installation.second.post("/deliberations", json={"task": TASK})):
        yield
    installation.stop_second()
    await installation.start_second(HIGH)


@asynccontextmanager
async def forged(installation: Installation) -> AsyncGenerator[None]:
    numbers = iter(range(1_000_000))
    journal = await JetStreamJournal.connect(installation.stack.nats_url("gateway"), name="forger")
    async with repeated(lambda: journal.append("default", Story(f"forged-{next(numbers)}").accepted())):
        yield
    await journal.close()


Provocation = Callable[[Installation], AbstractAsyncContextManager[None]]
PROVOKED: dict[str, tuple[Provocation, set[str]]] = {
    "a gateway hangs": (stopped_gateway, {"GatewayDown"}),
    "the log hangs": (stopped_log, {"LogUnreachable", "ServerErrors"}),
    "the coordinator is away": (lost_coordinator, {"CoordinatorMissing", "QueueHeadWaits"}),
    "no coordinator takes a label": (untaken_label, {"ClusterMissing"}),
    "a coordinator takes over": (taken_over, {"CoordinatorsLost"}),
    "the sender of webhooks is away": (
        lambda installation: without("webhooks", installation),
        {"WebhookSenderMissing", "WebhooksLag"},
    ),
    "the archive's process is away": (
        lambda installation: without("archive", installation),
        {"ArchiveMissing", "ArchiveLags"},
    ),
    "the engine fails": (
        lambda installation: failing("error:1", installation),
        {"DeliberationsFail", "CallsFail", "EngineCircuitOpen"},
    ),
    "the engine fails one agent": (
        lambda installation: failing("bad-request:1:match=dev-002", installation),
        {"VerdictsDegraded"},
    ),
    "a tool server is away": (without_tools, {"ToolServerAway"}),
    "a tenant has spent its day": (spent, {"TenantNearSpend", "SubmissionsRefused"}),
    "records are forged": (forged, {"LogRecordsRefused"}),
}


async def has_data(server: Prometheus, expression: str) -> bool:
    return bool(await server.values(expression))


async def test_every_expression_of_dashboard_and_records_has_data(installation: Installation) -> None:
    wanted = [*dashboard_expressions(), *rules("record")]
    await installation.stack.script(**FAST)
    async with repeated(installation.council):
        for each in wanted:
            await holds(partial(has_data, installation.server, each), 60)


@pytest.mark.parametrize("cause", PROVOKED)
async def test_an_alert_fires_while_its_cause_lasts_and_then_clears(installation: Installation, cause: str) -> None:
    provoke, alerts = PROVOKED[cause]
    seen = set[str]()

    async def fired() -> bool:
        seen.update(await installation.server.firing())
        return seen >= alerts

    # With these thresholds a scrape during ordinary work may find items on their way.
    await holds(installation.is_quiet, CLEARS_WITHIN_S)
    async with provoke(installation):
        with suppress(TimeoutError):
            await holds(fired, FIRES_WITHIN_S)
        assert alerts - seen == set()
    await holds(installation.is_quiet, CLEARS_WITHIN_S)


# Nothing keeps a file from being removed by root. tests/attack/test_foreign_trees.py makes removals fail, and
# tests/deploy/test_monitoring.py has the alert fire by their counter.
UNPROVOKED = {"WorkspaceRemovalsFail"}


def test_every_alert_is_provoked() -> None:
    assert set.union(UNPROVOKED, *(alerts for _, alerts in PROVOKED.values())) == set(rules("alert"))


async def test_each_deliberation_counts_once_over_two_gateways_and_all_restarts(installation: Installation) -> None:
    await installation.council()
    installation.stop_second()
    await installation.start_second(HIGH)
    async with lost_coordinator(installation):
        pass
    await installation.council()
    await holds(installation.has_counted_each_end, 30)
    (counted,) = await installation.server.values(COUNTED)
    (replicas,) = await installation.server.values(REPLICAS)
    assert counted >= 4 and replicas >= 2
