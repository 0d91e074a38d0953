"""A whole stack with a tenant that works all the time, and what it costs that tenant and the machine meanwhile."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from app.cli.stack.supervisor import marked
from tests.attack.evil_tool_server import LIES
from tests.attack.hostile_work import ROLES, Body
from tests.attack.obedient_engine import ordering
from tests.conditions import until
from tests.e2e.conftest import DELIBERATE, Stack, own_stack
from tests.repositories import committed

PEPPER = "pepper of the besieged stack, of forty characters"
WATCH_S = 0.5
# What a council of the victim orders: a program beside its files.
USED = [("run", {"code": "print(open('a').read())"})]


@dataclass
class Victim:
    """A tenant that asks one small council after the other; the seconds that each took, and what went wrong."""

    client: httpx.AsyncClient
    key: str
    repository: Path
    seconds: list[float] = field(default_factory=list[float])
    faults: list[str] = field(default_factory=list[str])

    async def ask_on(self) -> None:
        """Ask until cancelled: in turn a member that runs a program, and a council of two without tools."""
        workspace = {"workspace": {"git": str(self.repository)}, "tools": ["run"]}
        using: Body = {"task": ordering(USED), "strategy": "single", "role": ROLES[0], **workspace}
        plain: Body = {"task": "Name a colour.", "num_agents": 2, "rounds": 0, "role": ROLES[0], "tools": []}
        while True:
            for body in (using, plain):
                await self._ask(body)

    async def _ask(self, body: Body) -> None:
        began_s = time.monotonic()
        headers = {"Authorization": f"Bearer {self.key}", "Prefer": "wait=60"}
        answer = await self.client.post("/deliberations", json=body, headers=headers)
        self.seconds.append(time.monotonic() - began_s)
        ended: Body = answer.json() if answer.status_code == 200 else {}
        if ended.get("status") != "completed" or ended.get("degraded"):
            self.faults.append(f"{answer.status_code} {ended.get('degraded')} {answer.text[:100]}")
        elif "workspace" in body and (uses := ended["usage"]["tool_uses"]) != 1:
            self.faults.append(f"{uses} uses of tools")


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))]


@dataclass
class Usage:
    """What processes and the node's directory take: bytes in memory, blocks on disk, and unremoved directories."""

    memory: int
    disk: int
    left: int


@dataclass
class BesiegedStack:
    """A stack, its victim, and another tenant's key."""

    stack: Stack
    victim: Victim
    evil_key: str
    node: Path
    peak: Usage = field(default_factory=lambda: Usage(0, 0, 0))
    unready: list[str] = field(default_factory=list[str])

    def usage(self) -> Usage:
        names = os.listdir(self.node) if self.node.exists() else []
        left = [
            name
            for name in names
            if name.startswith(("deliberation-run-", "deliberation-removed-")) or name.endswith(".new")
        ]
        memory = sum(map(_resident_bytes, _tree(self.stack.process.pid)))
        return Usage(memory, blocks_of(self.node), len(left))

    def processes(self) -> dict[str, int]:
        children = json.loads((self.stack.data_dir / "stack.json").read_text())["children"]
        return {name: child["pid"] for name, child in children.items()}

    async def lasting(self) -> set[int]:
        """The processes of the stack that live as long as it does, and no child between its fork and its program."""
        first = {process.pid for process in marked(self.stack.mark)}
        await asyncio.sleep(WATCH_S)
        return first & {process.pid for process in marked(self.stack.mark)}

    async def watch(self) -> None:
        while True:
            usage = await asyncio.to_thread(self.usage)
            self.peak = Usage(
                max(self.peak.memory, usage.memory), max(self.peak.disk, usage.disk), max(self.peak.left, usage.left)
            )
            await self._ask_whether_ready()
            await asyncio.sleep(WATCH_S)

    async def _ask_whether_ready(self) -> None:
        answer = await self.stack.client.get("/readyz")
        if answer.status_code != 200:
            self.unready.append(answer.text[:300])

    async def measured_s(self, asks: int, at_least_s: float) -> float:
        """The p99 of the victim's next asks, in seconds: of so many, and for so long."""
        self.victim.seconds.clear()
        until_s = time.monotonic() + at_least_s
        await until(lambda: len(self.victim.seconds) >= asks and time.monotonic() >= until_s, timeout_s=240)
        return p99(self.victim.seconds)

    async def submit(self, body: Body) -> str:
        headers = {"Authorization": f"Bearer {self.evil_key}"}
        answer = await self.stack.client.post("/deliberations", json=body, headers=headers)
        if answer.status_code == 422:
            # Refused, as where git cannot read the repository in time.
            return ""
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    async def cancel(self, id: str) -> str:
        """Cancel a deliberation where it has not ended; returns its status then."""
        headers = {"Authorization": f"Bearer {self.evil_key}", "Prefer": "wait=10"}
        await self.stack.client.post(f"/deliberations/{id}/cancel", headers=headers)
        return (await self.stack.client.get(f"/deliberations/{id}", headers=headers)).json()["status"]


def blocks_of(folder: Path) -> int:
    """The bytes on disk of a folder, whose trees may be as deep as they like and change meanwhile."""
    if not folder.exists():
        return 0
    counted = subprocess.run(["du", "-s", "--block-size=1", folder], capture_output=True, text=True, check=False)
    return int(counted.stdout.split()[0]) if counted.stdout else 0


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield from _tree(child)


def _resident_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@contextmanager
def obedient_engine() -> Generator[str]:
    command = [sys.executable, "-m", "tests.attack.obedient_engine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.kill()


def _roles() -> str:
    allowed = ", ".join(LIES)
    command = json.dumps([sys.executable, "-m", "tests.attack.evil_tool_server", "every"])
    # The server of one replica serves all: a server of each would be eight processes more.
    tools = f", tools: [{{mcp: {{name: evil, command: {command}}}, allow: [{allowed}]}}]"
    return "roles:\n" + "".join(f"  {role}: {{persona: You answer.{tools}}}\n" for role in ROLES)


def _key(stack: Stack, tenant: str) -> str:
    command = [str(DELIBERATE), "keys", "create", tenant, "--tenant", tenant]
    environment = {**os.environ, **stack.of_log("keys")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@asynccontextmanager
async def besieged(place: Path, agents: str) -> AsyncGenerator[BesiegedStack]:
    """A stack over `place` whose agents obey, once its victim has asked alone; `place / 'repositories'` is allowed."""
    (place / "roles.yaml").write_text(_roles())
    committed(place / "repositories" / "good", {"a": "1"})
    with pytest.MonkeyPatch.context() as patched, obedient_engine() as engine:
        patched.setenv("KEY_PEPPER", PEPPER)
        patched.setenv("TENANT_REQUESTS_PER_MINUTE", "1000000")
        patched.setenv("WORKSPACES", str(place / "repositories"))
        patched.setenv("WORKSPACE_DIR", str(place / "node"))
        options = ("--agents", agents, "--roles", str(place / "roles.yaml"), "--engine-url", engine)
        async with (
            own_stack(place / "data", *options) as stack,
            httpx.AsyncClient(base_url=stack.url, timeout=70) as client,
        ):
            victim = Victim(client, _key(stack, "victim"), place / "repositories" / "good")
            siege = BesiegedStack(stack, victim, _key(stack, "evil"), place / "node")
            asking = [asyncio.create_task(work) for work in (victim.ask_on(), siege.watch())]
            try:
                # The first ones fetch the copy and warm up.
                await siege.measured_s(asks=4, at_least_s=0.0)
                yield siege
            finally:
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
