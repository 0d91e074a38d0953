"""Each mode of an evil engine and of an evil tenant against a whole stack, over Ray and over NATS.

Another tenant asks one deliberation after the other of a healthy engine of another role, and /healthz is probed.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import pytest

from app.cli.stack.supervisor import marked
from tests.attack.bystanders import healthz
from tests.attack.evil import EVIL_ROLE, HEALTHY_ROLE, MODES, NICENESS, TASK, TENANTS_ROLE
from tests.conditions import until
from tests.e2e.conftest import DELIBERATE, Stack, own_stack
from tests.integration.simulator.server_process import running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PEPPER = "pepper of the evil modes, of forty characters"
HEALTHZ_WITHIN_S = 1.0
MEMORY_BYTES_MAX = 100_000_000
DISK_BYTES_MAX = 50_000_000
# All modes together, since the quiet time.
KEPT_BYTES_MAX = 300_000_000
QUIET_ASKS = 10
CALL_MS = "300"
ROLES = """
roles:
  {healthy}: {{persona: You answer.}}
  {tenants}: {{persona: You answer., engines: ["{simulator}"]}}
  {evil}: {{persona: You answer., engines: ["{engine}"]}}
"""
# Over Ray the agents' replicas differ, and the gateway is the same: these take less than a minute.
IN_CI_OVER_RAY = frozenset(
    {
        "engine: a text far beyond max_tokens",
        "engine: a line without end",
        "engine: a gzip of small events",
        "engine: a gzip of blanks",
        "engine: 90,000 choices",
        "engine: half a megabyte of objects",
        "engine: an error without an end",
        "engine: a header without an end",
        "engine: usage: counts of 4,000 digits",
        "engine: models: a gzip of 50 MB",
        "engine: a slow drip",
        "engine: silence",
        "engine: a reset within the text",
        "engine: every recorded reply in turn",
        "16,000 integers against 250 branches",
        "answer schemas of 9 kB",
        "a cancel storm",
    }
)


# Each of these plays for four seconds or more, and the burst reaches the bound of /healthz on slow cores.
LONG_OVER_NATS = frozenset(
    {
        "engine: every recorded reply in turn",
        "engine: models: 200 kB of brackets",
        "a body: a long fraction",
        "a body: a huge exponent",
        "answer schemas of 9 kB",
        "an answer schema that forces a list",
        "the largest council",
        "abandoned streams",
        "a burst of submissions",
        "streams that nobody reads",
        "4,000 integers against 100 branches",
        "the document of the API",
        "a cancel storm",
    }
)


Spans = list[tuple[float, float]]


@dataclass
class Neighbour:
    """Another tenant: the beginnings and ends of its deliberations and of the probes of /healthz, in seconds."""

    stack: Stack
    key: str
    asks: Spans = field(default_factory=list[tuple[float, float]])
    probes: Spans = field(default_factory=list[tuple[float, float]])
    faults: list[str] = field(default_factory=list[str])

    async def ask_on(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}", "Prefer": "wait=30"}
        body = {"task": TASK, "role": HEALTHY_ROLE, "strategy": "single"}

        async def ask() -> None:
            answer = await self.stack.client.post("/deliberations", json=body, headers=headers)
            if answer.status_code != 200 or answer.json()["status"] != "completed":
                self.faults.append(f"{answer.status_code} {answer.text[:300]}")

        await self._repeat(ask, self.asks, pause_s=0)

    async def probe_on(self) -> None:
        port = httpx.URL(self.stack.url).port or 80
        await self._repeat(partial(healthz, port), self.probes, pause_s=0.05)

    async def _repeat(self, action: Callable[[], Awaitable[None]], spans: Spans, pause_s: float) -> None:
        while True:
            began_s = time.perf_counter()
            try:
                await action()
            except (AssertionError, OSError, httpx.TransportError) as broken:
                self.faults.append(repr(broken))
            spans.append((began_s, time.perf_counter()))
            await asyncio.sleep(pause_s)


def slowest_s(spans: Spans, began_s: float) -> float:
    """The longest of those that ended after `began_s`. A play may be shorter than the pause between two."""
    return max(end - begin for begin, end in spans if end > began_s)


@dataclass
class Besieged:
    """A stack with a neighbour that asks and an evil process.

    `quiet_s` and `quiet_memory` are those of the quiet time, `memory` is that of a mode's beginning.
    """

    stack: Stack
    evil: subprocess.Popen[str]
    neighbour: Neighbour
    quiet_s: float
    children: dict[str, int]
    quiet_memory: dict[int, int]
    memory: dict[int, int] = field(default_factory=dict[int, int])
    most: dict[int, int] = field(default_factory=dict[int, int])

    async def weigh_on(self) -> None:
        while True:
            self.most = {pid: max(self.most.get(pid, 0), memory_of(pid)) for pid in self.quiet_memory}
            await asyncio.sleep(0.1)

    async def play(self, name: str) -> dict[str, object]:
        assert self.evil.stdin is not None and self.evil.stdout is not None
        print(name, file=self.evil.stdin, flush=True)
        return json.loads(await asyncio.to_thread(self.evil.stdout.readline))

    def grown(self) -> tuple[int, int]:
        """The most bytes by which a process has grown since the mode's beginning, and its id."""
        return max((most - self.memory[pid], pid) for pid, most in self.most.items())


def children_of(stack: Stack) -> dict[str, int]:
    state = json.loads((stack.data_dir / "stack.json").read_text())
    return {name: child["pid"] for name, child in state["children"].items()}


def memory_of(pid: int) -> int:
    """The bytes in memory of a process; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0


def lasting(stack: Stack) -> dict[int, str]:
    """The processes of the stack that live as long as it does: not those that Ray keeps idle."""
    return {each.pid: each.command for each in marked(stack.mark) if "IDLE" not in each.command}


def bytes_on_disk(stack: Stack) -> int:
    state = json.loads((stack.data_dir / "stack.json").read_text())
    counted = subprocess.run(
        ["du", "-scb", stack.data_dir, state["ray_dir"]], capture_output=True, text=True, check=False
    )
    return int(counted.stdout.splitlines()[-1].split()[0])


def make_key(stack: Stack, tenant: str) -> str:
    command = [str(DELIBERATE), "keys", "create", tenant, "--tenant", tenant]
    environment = {**os.environ, **stack.of_log("keys")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def evil_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.attack.evil"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@asynccontextmanager
async def besieging(place: Path, agents: str) -> AsyncGenerator[Besieged]:
    with pytest.MonkeyPatch.context() as patched, ExitStack() as opened:
        simulator = opened.enter_context(running("--duration-ms", CALL_MS))
        os.setpriority(os.PRIO_PROCESS, simulator.process.pid, os.nice(0) + NICENESS)
        evil = opened.enter_context(evil_process())
        assert evil.stdin is not None and evil.stdout is not None
        urls = {"simulator": simulator.url, "engine": evil.stdout.readline().strip()}
        roles = ROLES.format(healthy=HEALTHY_ROLE, tenants=TENANTS_ROLE, evil=EVIL_ROLE, **urls)
        (place / "roles.yaml").write_text(roles)
        patched.setenv("KEY_PEPPER", PEPPER)
        # The others hold without the bound of requests.
        patched.setenv("TENANT_REQUESTS_PER_MINUTE", "1000000")
        options = ("--agents", agents, "--roles", str(place / "roles.yaml"))
        async with own_stack(place / "data", *options, "--simulate", f"--duration-ms {CALL_MS}") as stack:
            keyed = {"port": httpx.URL(stack.url).port, "key": make_key(stack, "evil")}
            print(json.dumps(keyed), file=evil.stdin, flush=True)
            neighbour = Neighbour(stack, make_key(stack, "neighbour"))
            asking = [asyncio.create_task(each) for each in (neighbour.ask_on(), neighbour.probe_on())]
            await until(lambda: len(neighbour.asks) >= QUIET_ASKS, timeout_s=60)
            quiet_s = median(end - began for began, end in neighbour.asks[QUIET_ASKS // 2 :])
            memory = {pid: memory_of(pid) for pid in lasting(stack)}
            found = Besieged(stack, evil, neighbour, quiet_s, children_of(stack), memory)
            asking.append(asyncio.create_task(found.weigh_on()))
            yield found
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)


def name_of(stack: Stack, pid: int) -> str:
    return next((each.child for each in marked(stack.mark) if each.pid == pid), "a process that has ended")


async def times_of(besieged: Besieged, name: str) -> tuple[float, float, float, dict[str, object]]:
    """How long a play took, the slowest `single` and /healthz meanwhile, in seconds, and what was played."""
    neighbour, began_s = besieged.neighbour, time.perf_counter()
    played = await besieged.play(name)
    ended_s = time.perf_counter()
    both = (neighbour.asks, neighbour.probes)
    await until(lambda: bool(besieged.most) and all(spans[-1][1] > ended_s for spans in both), timeout_s=60)
    single_s, healthz_s = (slowest_s(spans, began_s) for spans in both)
    return ended_s - began_s, single_s, healthz_s, played


async def play(besieged: Besieged, name: str, record_property: Callable[[str, object], None]) -> None:
    """Play one mode, and hold the neighbour's times, the processes, their memory and the disk to their bounds."""
    neighbour, disk = besieged.neighbour, bytes_on_disk(besieged.stack)
    besieged.memory = {pid: memory_of(pid) for pid in besieged.quiet_memory}
    besieged.most.clear()
    neighbour.faults.clear()
    took_s, single_s, healthz_s, played = await times_of(besieged, name)
    if single_s > 2 * besieged.quiet_s + 1 or healthz_s > HEALTHZ_WITHIN_S:
        # A mode that slows its neighbour does so each time; other work of a shared machine does not.
        took_s, single_s, healthz_s, played = await times_of(besieged, name)
    (grown, grower), disk = besieged.grown(), bytes_on_disk(besieged.stack) - disk
    kept = max(memory_of(pid) - least for pid, least in besieged.quiet_memory.items())
    figures = {
        "s": round(took_s, 1),
        "single": f"{single_s:.2f} s (quiet {besieged.quiet_s:.2f})",
        "/healthz": f"{healthz_s * 1_000:.0f} ms",
        "memory": f"{grown / 1e6:+.0f} MB of {name_of(besieged.stack, grower)}",
        "kept": f"{kept / 1e6:+.0f} MB",
        "disk": f"{disk / 1e6:+.0f} MB",
        "answers": played["answers"],
    }
    record_property("figures", ", ".join(f"{key} {value}" for key, value in figures.items()))
    assert played["faults"] == [] and neighbour.faults == []
    assert single_s <= 2 * besieged.quiet_s + 1
    assert healthz_s <= HEALTHZ_WITHIN_S
    assert children_of(besieged.stack) == besieged.children
    assert besieged.memory.keys() <= lasting(besieged.stack).keys(), "a process has ended"
    assert grown < MEMORY_BYTES_MAX and disk < DISK_BYTES_MAX
    assert kept < KEPT_BYTES_MAX


@pytest.fixture(scope="module")
async def over_nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Besieged]:
    async with besieging(tmp_path_factory.mktemp("nats"), "nats") as besieged:
        yield besieged


@pytest.fixture(scope="module")
async def over_ray(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Besieged]:
    async with besieging(tmp_path_factory.mktemp("ray"), "ray") as besieged:
        yield besieged


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG_OVER_NATS else []) for name in MODES]
)
async def test_a_neighbour_is_served_over_nats(
    over_nats: Besieged, name: str, record_property: Callable[[str, object], None]
) -> None:
    await play(over_nats, name, record_property)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_CI_OVER_RAY else pytest.mark.long) for name in MODES]
)
async def test_a_neighbour_is_served_over_ray(
    over_ray: Besieged, name: str, record_property: Callable[[str, object], None]
) -> None:
    await play(over_ray, name, record_property)
