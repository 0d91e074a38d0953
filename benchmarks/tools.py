"""`python -m benchmarks.tools`: councils that use tools while processes of the stack are killed.

Each use of the tool `write` gives a receipt that no other use gives, and its server keeps a list. So the log shows a
use that was made twice, or recorded without having been made. Workers run the agents; the engine is the simulator.
"""

import argparse
import asyncio
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvloop
import yaml
from rich.console import Console
from rich.table import Table

from app.cli.stack.layout import StackOptions
from app.cli.stack.supervisor import marked
from app.deliberation.facts import TERMINAL_STATUS, Completed, ToolUsed
from benchmarks.bench import running_stack, simulator
from tests.conditions import until
from tests.integration.tools.mcp_servers import command, uses

CALL_MS = 40
IN_FLIGHT = 10
# Between two kills so many uses are made: processes that are killed as they start use nothing.
USES_BETWEEN = 6
END_WITHIN_S = 540
BODY = {"task": "Which receipts are there?", "role": "DEV", "num_agents": 3, "strategy": "council", "rounds": 1}


@dataclass
class Findings:
    """The figures of one run. `receipts` are those that facts record, `made` those of the tool's server."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    ends: int = 0
    kills: Counter[str] = field(default_factory=Counter[str])
    receipts: list[str] = field(default_factory=list[str])
    made: list[str] = field(default_factory=list[str])
    problems: Counter[str] = field(default_factory=Counter[str])

    @property
    def violations(self) -> list[str]:
        twice = len(self.receipts) - len(set(self.receipts))
        invented = len(set(self.receipts) - set(self.made))
        unrecorded = len(self.made) - len(set(self.receipts))
        found = [f"{twice} uses recorded twice"] if twice else []
        found += [f"{invented} recorded uses were not made"] if invented else []
        # Each of them began, and its replica died: it is recorded as of unknown outcome.
        if unrecorded > self.problems["unknown_outcome"]:
            found.append(f"{unrecorded} uses were made and not recorded")
        return found + ([f"{self.ends} ends"] if self.ends != self.statuses.total() else [])


async def _ask(client: httpx.AsyncClient, number: int) -> str:
    """The id of a deliberation; asked again until a gateway has it."""
    while True:
        with suppress(httpx.HTTPError):
            headers = {"Idempotency-Key": f"tools-{number}"}
            answer = await client.post("/deliberations", json={**BODY, "seed": number}, headers=headers)
            if answer.is_success:
                return answer.json()["id"]
        await asyncio.sleep(0.1)


async def _end(client: httpx.AsyncClient, id: str) -> str:
    while True:
        with suppress(httpx.HTTPError):
            answer = await client.get(f"/deliberations/{id}", headers={"Prefer": "wait=20"})
            if answer.is_success and answer.json()["status"] in TERMINAL_STATUS.values():
                return answer.json()["status"]
        await asyncio.sleep(0.1)


async def _kill(
    mark: str, wanted: int, victims: Sequence[str], found: Findings, rng: random.Random, directory: Path
) -> None:
    made = 0
    while found.kills.total() < wanted:
        await until(lambda made=made: len(uses(directory)) >= made + USES_BETWEEN, END_WITHIN_S)
        made = len(uses(directory))
        victim = victims[found.kills.total() % len(victims)]
        running = marked(mark, victim)
        if running:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(running).pid, signal.SIGKILL)
                found.kills[victim] += 1


async def measure(count: int, kills: int) -> Findings:
    found = Findings()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "log").mkdir()
        server = {"name": "shelf", "command": command("receipts", directory)}
        role = {"persona": "You develop.", "tools": [{"mcp": server, "allow": ["look_up", "write"]}]}
        roles = directory / "roles.yaml"
        roles.write_text(yaml.safe_dump({"roles": {"DEV": role}}))
        data, engine = directory / "log", simulator(CALL_MS)
        options = StackOptions(data_dir=data, port=0, nats_port=0, simulate=engine, agents="nats", roles_file=roles)
        async with running_stack(options) as stack, httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
            gate = asyncio.Semaphore(IN_FLIGHT)

            async def one(number: int) -> None:
                async with gate:
                    id = await _ask(client, number)
                    found.statuses[await _end(client, id)] += 1
                    await _read(client, id, found)

            victims = ["worker", "gateway", "worker", "coordinator"]
            killing = asyncio.create_task(_kill(stack.mark, kills, victims, found, random.Random(1), directory))
            async with asyncio.timeout(END_WITHIN_S), asyncio.TaskGroup() as group:
                for number in range(count):
                    group.create_task(one(number))
            killing.cancel()
        found.made = [line.split()[1] for line in uses(directory) if line.startswith("receipt ")]
    return found


async def _read(client: httpx.AsyncClient, id: str, found: Findings) -> None:
    """Read the deliberation's facts from its event stream, which ends with its end."""
    while True:
        with suppress(httpx.HTTPError):
            answer = await client.get(f"/deliberations/{id}/events?after=0", headers={"Accept": "text/event-stream"})
            if answer.is_success:
                break
        await asyncio.sleep(0.1)
    for line in answer.text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith('{"type":"tool.used"'):
            use = ToolUsed.model_validate_json(data)
            if use.problem is not None:
                found.problems[use.problem.code] += 1
            elif use.tool == "write":
                found.receipts.append(use.text)
        elif data.startswith(f'{{"type":"{Completed.model_fields["type"].default}"'):
            found.ends += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="councils")
    parser.add_argument("--kills", type=int, default=40)
    options = parser.parse_args()
    found = uvloop.run(measure(options.count, options.kills))
    table = Table("councils", "kills", "receipts recorded", "receipts given", "failed uses", "violations")
    table.add_row(
        str(dict(found.statuses)), str(dict(found.kills)), str(len(found.receipts)), str(len(found.made)),
        str(dict(found.problems)), "; ".join(found.violations) or "none",
    )  # fmt: skip
    Console().print(table)
    raise SystemExit(bool(found.violations))


if __name__ == "__main__":
    main()
