"""Two versions of the product, each installed from its wheel, and their parts on one log, archive and engine."""

import asyncio
import os
import re
import signal
import subprocess
import tomllib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from app.cli.stack.children import stack_children
from app.cli.stack.layout import Layout, StackOptions, plan_stack
from app.cli.stack.supervisor import Child, supervised
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from tests.conftest import free_port
from tests.e2e.conftest import ONE_ROLE
from tests.e2e.wheels import ROOT, built_wheel, installed
from tests.stack_user import admit

Name = Literal["before", "next"]
# The subject on which each part says its version.
SUBJECTS = {
    "coordinator": "control.coordinator",
    "worker": "control.role.DEV",
    "webhooks": "control.webhooks",
    "archive": "control.archive",
}
STARTED_WITHIN_S = 60
STOPPED_WITHIN_S = 60
ASKED_S = 0.5


@dataclass(frozen=True)
class Installed:
    """A version, and the programs of the environment that holds it."""

    name: Name
    version: str
    programs: Path


def version_before() -> str | None:
    """The newest release before this commit; None where none, or no history, is known."""
    described = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    found = subprocess.run(described, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def _unpacked(tag: str, place: Path) -> Path:
    root = place / tag
    root.mkdir()
    archive = subprocess.run(["git", "archive", tag], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", "--directory", str(root)], input=archive, check=True)
    return root


def _version_of(root: Path) -> str:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def install_before(place: Path) -> Installed:
    tag = version_before()
    root = ROOT if tag is None else _unpacked(tag, place)
    return Installed("before", _version_of(root), installed(built_wheel(place / "built", root), place / "environment"))


def install_next(place: Path) -> Installed:
    """This tree with the next version's number, and with another version of the strategy `vote`."""
    major, minor, _ = _version_of(ROOT).split(".")
    number, vote = f"{major}.{int(minor) + 1}.0", ROOT / "app/deliberation/strategies/vote.py"
    (now,) = re.findall(r"^    version=(\d+),$", vote.read_text(), re.MULTILINE)
    edited = {
        "pyproject.toml": {r'^version = ".*"$': f'version = "{number}"'},
        "app/deliberation/strategies/vote.py": {r"^    version=\d+,$": f"    version={int(now) + 1},"},
    }
    wheel = built_wheel(place / "built", ROOT, edited)
    return Installed("next", number, installed(wheel, place / "environment"))


@dataclass
class Part:
    process: subprocess.Popen[bytes]
    port: int

    async def stop(self) -> None:
        """End it in order, as an orchestrator does."""
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.process.wait, STOPPED_WITHIN_S) == 0


class Balancer(httpx.AsyncHTTPTransport):
    """Sends each request without a port to the next of the running gateways, as a Service does."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(verify=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))
        self._ports = ports
        self._turns = count()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.port is None:
            request.url = request.url.copy_with(port=self._ports[next(self._turns) % len(self._ports)])
        return await super().handle_async_request(request)


@dataclass
class Installation:
    """The log, the archive and the engine, and the running parts of each version. `ports` are those of gateways."""

    layout: Layout
    children: Mapping[str, Child]
    versions: Mapping[Name, Installed]
    journal: JetStreamJournal
    running: dict[tuple[str, Name], Part] = field(default_factory=dict[tuple[str, Name], Part])
    ports: list[int] = field(default_factory=list[int])
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.AsyncClient(transport=Balancer(self.ports), base_url="http://127.0.0.1", timeout=30)

    async def start(self, part: str, name: Name) -> None:
        """Start a part of a version; return once it answers as that version."""
        child, port, chosen = self.children[part], free_port(), self.versions[name]
        kept = {key: value for key, value in child.environment.items() if key != "PYTHONPATH"}
        variable = "PORT" if part == "gateway" else f"{part.upper()}_PORT"
        command = [str(chosen.programs / "python"), *child.command[1:]]
        with (self.layout.data_dir / "logs" / f"{part}-{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env={**kept, variable: str(port)}, stdout=log, stderr=log, cwd=self.layout.data_dir
            )
        self.running[part, name] = Part(process, port)
        async with asyncio.timeout(STARTED_WITHIN_S):
            while not await self._answers(part, chosen.version, port):
                assert process.poll() is None, f"{part} of {name} ended with {process.returncode}"
                await asyncio.sleep(0.05)
        if part == "gateway":
            self.ports.append(port)

    async def _answers(self, part: str, version: str, port: int) -> bool:
        if part == "gateway":
            return (await self.get("/readyz", port)) is not None
        replies = await self.journal.inquire(SUBJECTS[part], timeout_s=ASKED_S, replies_max=2)
        # A version before may say none.
        return any(reply.get("versions", {}).get("product", version) == version for reply in replies)

    async def stop(self, part: str, name: Name) -> None:
        stopped = self.running.pop((part, name))
        if part == "gateway":
            self.ports.remove(stopped.port)
        await stopped.stop()

    async def get(self, path: str, port: int) -> dict[str, Any] | None:
        """The answer of the gateway on a port; None where it is no success, or none."""
        try:
            response = await self.client.get(f"http://127.0.0.1:{port}{path}")
        except httpx.TransportError:
            return None
        return response.json() if response.status_code == 200 else None

    async def version_findings(self) -> list[str]:
        """What `GET /status` of each gateway says of versions, each with the gateway's version."""
        found = list[str]()
        for (part, name), running in self.running.items():
            if part == "gateway" and (answer := await self.get("/status", running.port)):
                codes = {each["code"] for each in answer["findings"]} & {"versions_differ", "reply_invalid"}
                found += [f"{name}: {code}" for code in sorted(codes)]
        return found


@asynccontextmanager
async def installation(place: Path) -> AsyncGenerator[Installation]:
    """An installation with no part yet beside nats-server, the simulator and an empty archive."""
    (place / "before").mkdir()
    (place / "next").mkdir()
    before, following = await asyncio.gather(
        asyncio.to_thread(install_before, place / "before"), asyncio.to_thread(install_next, place / "next")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANNING", "true")
        patch.setenv("DRAIN_DELAY", "1")
        options = StackOptions(
            port=0,
            nats_port=0,
            data_dir=place / "data",
            roles_file=ONE_ROLE,
            simulate=("--duration-ms", "150"),
            agents="nats",
        )
        layout = plan_stack(options, lambda _: None)
        children = {child.name: child for child in stack_children(layout)}
    url = admit(layout, "upgrade")
    migrate = [str(before.programs / "deliberate"), "archive", "migrate"]
    outside = [children[name] for name in ("nats", "simulator")]
    async with supervised(outside, layout.stack_run, lambda _: None):
        environment = {**os.environ, "DATABASE_URL": layout.database_url}
        await asyncio.to_thread(subprocess.run, migrate, check=True, env=environment, stdout=subprocess.DEVNULL)
        journal = await JetStreamJournal.connect(url, name="upgrade", signer=LogSigner.of_file(layout.log_key_file))
        found = Installation(layout, children, {"before": before, "next": following}, journal)
        try:
            yield found
        finally:
            for part in found.running.values():
                part.process.kill()
                part.process.wait()
            await found.client.aclose()
            await journal.close()
