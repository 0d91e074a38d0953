"""`make overload`: the figures of a stack that is asked for more than its engine can do, for minutes.

The stack runs as `deliberate up` starts it, with a small simulated engine (`--max-running` sequences of
`--duration-ms` each). The engine limits throughput, not this machine. First a closed loop finds the peak:
deliberations completed per second. Then requests come at `--factor` times that rate. In mode `ignore` they come
whatever the answers are. In mode `honour` clients wait for Retry-After and ask again with their key. By default
`honour` runs before and after `ignore`. Ends are counted from the log. Exits 1 unless the bounds of
`Findings.violations` hold: goodput, latency of rejections, completed work, and the clients accepted at their first
return.
"""

import argparse
import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvloop
from httpx_aiohttp import AiohttpTransport
from rich.console import Console
from rich.table import Table

from app.cli.stack.children import stack_children
from app.cli.stack.layout import Layout, StackOptions, plan_stack
from app.cli.stack.supervisor import supervised
from app.cli.stack.up import running_stack
from app.deliberation.facts import event_type
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.signature import LOG_KEY_NAME, LogSigner

TASK = "Write a function that merges two sorted lists, and say how you would test it."
GOODPUT_SHARE_MIN = 0.95
REJECTION_P99_MAX_MS = 50.0
BROKEN_SHARE_MAX = 0.001
FIRST_RETURN_SHARE_MIN = 0.6
# Fewer clients that came back say nothing of the refused ones.
WAITED_MIN = 50
WARM_UP_S = 10.0
STARTS_WITHIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How hard, for how long, and with what."""

    seconds: float
    peak_seconds: float
    factor: float
    strategy: str
    timeout_s: int
    max_running: int
    duration_ms: int
    gateways: int
    seed: int

    @property
    def clients(self) -> int:
        """Clients that keep the engine busy."""
        return 2 * self.max_running


@dataclass
class Findings:
    """The figures of one mode. Latencies are the client's own, from the request to the answer."""

    mode: str
    peak_per_s: float
    goodput_per_s: float = 0.0
    accepted: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    rejected_ms: list[float] = field(default_factory=list[float])
    accepted_ms: list[float] = field(default_factory=list[float])
    retry_after_s: list[int] = field(default_factory=list[int])
    waited: int = 0
    let_in: int = 0
    beyond_end: int = 0
    odd: Counter[str] = field(default_factory=Counter[str])

    @property
    def goodput_share(self) -> float:
        return self.goodput_per_s / self.peak_per_s if self.peak_per_s else 0.0

    @property
    def broken(self) -> int:
        """Accepted, and not completed."""
        return self.accepted - self.ends["completed"]

    @property
    def first_return_share(self) -> float | None:
        """Of the clients that came back after Retry-After, the share that was accepted then."""
        return self.let_in / self.waited if self.waited else None

    def violations(self) -> list[str]:
        """Every bound that did not hold, in words."""
        found = [f"{count} answers {kind}" for kind, count in self.odd.items()]
        if self.goodput_share < GOODPUT_SHARE_MIN:
            found.append(f"goodput fell to {self.goodput_share:.0%} of the peak")
        if percentile(self.rejected_ms, 0.99) > REJECTION_P99_MAX_MS:
            found.append(f"rejections took {percentile(self.rejected_ms, 0.99):.0f} ms at p99")
        if self.broken > max(1, BROKEN_SHARE_MAX * self.accepted):
            found.append(f"{self.broken} were accepted and not completed: {dict(self.ends)}")
        if self.mode == "honour" and len(self.rejected_ms) >= WAITED_MIN > self.waited:
            found.append(f"only {self.waited} came back of {len(self.rejected_ms)} that were refused")
        if self.first_return_share is not None and self.first_return_share < FIRST_RETURN_SHARE_MIN:
            found.append(f"only {self.first_return_share:.0%} were accepted at their first return")
        return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


class Ends:
    """The ends in the log, each with the moment at which it was received."""

    def __init__(self) -> None:
        self.received: dict[str, tuple[float, str]] = {}
        self._changed = asyncio.Event()

    def on_record(self, record: Record) -> None:
        """Called for every `end` as it is stored."""
        status = event_type(record.data).removeprefix("deliberation.")
        self.received[record.tokens[2]] = (time.perf_counter(), status)
        self._changed.set()

    def completed_between(self, began_s: float, ended_s: float) -> int:
        """Completed deliberations with an end that was received in that time."""
        return sum(status == "completed" and began_s <= at_s < ended_s for at_s, status in self.received.values())

    async def of(self, ids: set[str], within_s: float) -> None:
        """Wait until all of these have ended, at most so long."""
        try:
            async with asyncio.timeout(within_s):
                while not ids <= self.received.keys():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return


class Load:
    """Clients of gateways at `urls`, each time of any, in one mode; `ids` are those of accepted deliberations."""

    def __init__(self, urls: Sequence[str], plan: Plan, ends: Ends, findings: Findings, turn: int) -> None:
        limits = httpx.Limits(max_connections=4_000, keepalive_expiry=30)
        self._urls = urls
        self._client = httpx.AsyncClient(transport=AiohttpTransport(limits=limits), timeout=120)
        self._plan = plan
        self._ends = ends
        self._rng = random.Random(f"{plan.seed}/{turn}")
        self._turn = turn
        self._body = {
            "task": TASK,
            "strategy": plan.strategy,
            # A verdict cut by the deadline is no goodput.
            "constraints": {"timeout_seconds": plan.timeout_s, "on_deadline": "fail"},
        }
        self.ids: set[str] = set()
        self.findings = findings

    async def post(self, key: str) -> httpx.Response | None:
        """One request, its latency and its answer in the findings; None for what is neither 202 nor 429."""
        began_s = time.perf_counter()
        try:
            url = f"{self._rng.choice(self._urls)}/deliberations"
            response = await self._client.post(url, json=self._body, headers={"Idempotency-Key": key})
        except httpx.TransportError as error:
            self.findings.odd[type(error).__name__] += 1
            return None
        took_ms = (time.perf_counter() - began_s) * 1_000
        match response.status_code:
            case 202:
                self.ids.add(response.json()["id"])
                self.findings.accepted_ms.append(took_ms)
            case 429:
                self.findings.rejected_ms.append(took_ms)
                self.findings.retry_after_s.append(int(response.headers["retry-after"]))
            case status:
                self.findings.odd[str(status)] += 1
                return None
        return response

    async def closed(self, clients: int, seconds: float) -> None:
        """Clients that each wait for the end of one before they ask for the next; refused ones wait for Retry-After."""
        until_s = time.perf_counter() + seconds

        async def client(number: int) -> None:
            turn = 0
            await asyncio.sleep(self._rng.uniform(0, STARTS_WITHIN_S))
            while time.perf_counter() < until_s:
                turn += 1
                await self._let_in(f"{self._turn}-{number}-{turn}", until_s)

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(client(number))

    async def _let_in(self, key: str, until_s: float) -> None:
        """Ask until it is accepted, and wait for its end; counts what came of the first return."""
        response, returned = await self.post(key), 0
        while response is not None and response.status_code == 429:
            wait_s = self.findings.retry_after_s[-1] * (1 + 0.1 * self._rng.random())
            if time.perf_counter() + wait_s > until_s:
                self.findings.beyond_end += 1
                await asyncio.sleep(max(0.0, until_s - time.perf_counter()))
                return
            await asyncio.sleep(wait_s)
            response, returned = await self.post(key), returned + 1
            if returned == 1 and response is not None:
                self.findings.waited += 1
                self.findings.let_in += response.status_code == 202
        if response is not None:
            await self._ends.of({response.json()["id"]}, within_s=max(0.0, until_s - time.perf_counter()))

    async def open(self, per_s: float, seconds: float) -> None:
        """Requests that come by chance, `per_s` on average, whatever is answered."""
        began_s = at_s = time.perf_counter()
        number = 0
        async with asyncio.TaskGroup() as group:
            while at_s < began_s + seconds:
                at_s += self._rng.expovariate(per_s)
                number += 1
                await asyncio.sleep(max(0.0, at_s - time.perf_counter()))
                group.create_task(self.post(f"{self._turn}-{number}"))

    async def close(self) -> None:
        """Wait for the ends of what was accepted, count them, and close the connections."""
        await self._ends.of(self.ids, within_s=self._plan.timeout_s + 10)
        self.findings.accepted = len(self.ids)
        self.findings.ends = Counter(self._ends.received[id][1] for id in self.ids if id in self._ends.received)
        await self._client.aclose()


async def peak(urls: Sequence[str], plan: Plan, ends: Ends) -> float:
    """Deliberations completed per second while the engine is just busy."""
    load = Load(urls, plan, ends, Findings("peak", 1.0), turn=0)
    began_s = time.perf_counter()
    await load.closed(plan.clients, plan.peak_seconds + WARM_UP_S)
    per_s = ends.completed_between(began_s + WARM_UP_S, began_s + WARM_UP_S + plan.peak_seconds) / plan.peak_seconds
    await load.close()
    return per_s


async def overloaded(urls: Sequence[str], plan: Plan, ends: Ends, findings: Findings, turn: int) -> Findings:
    """One mode, up to the last end of what it had accepted; `turn` makes its keys its own."""
    load = Load(urls, plan, ends, findings, turn)
    began_s = time.perf_counter()
    if findings.mode == "ignore":
        await load.open(findings.peak_per_s * plan.factor, plan.seconds)
    else:
        await load.closed(round(plan.clients * plan.factor), plan.seconds)
    ended_s = time.perf_counter()
    findings.goodput_per_s = ends.completed_between(began_s + WARM_UP_S, ended_s) / (ended_s - began_s - WARM_UP_S)
    await load.close()
    return findings


async def beside(stack: Layout, gateways: int, cleanup: AsyncExitStack) -> list[Layout]:
    """So many gateways of one log: the stack's own, and others that run until `cleanup`."""
    layouts = [stack]
    for number in range(1, gateways):
        data_dir = stack.options.data_dir / f"gateway-{number}"
        data_dir.mkdir()
        shutil.copy(stack.log_key_file, data_dir / LOG_KEY_NAME)
        layout = plan_stack(
            StackOptions(data_dir=data_dir, port=0, nats_url=stack.nats_url_of("gateway")), lambda _: None
        )
        children = [child for child in stack_children(layout) if child.name == "gateway"]
        await cleanup.enter_async_context(supervised(children, layout.stack_run, lambda _: None))
        layouts.append(layout)
    return layouts


async def run(plan: Plan, modes: Sequence[str], data_dir: Path) -> list[Findings]:
    """A stack of its own, its peak, and then each mode on it."""
    simulate = ("--duration-ms", str(plan.duration_ms), "--max-running", str(plan.max_running))
    options = StackOptions(data_dir=data_dir, port=0, nats_port=0, simulate=simulate)
    async with AsyncExitStack() as cleanup:
        stack = await cleanup.enter_async_context(running_stack(options))
        journal = await JetStreamJournal.connect(
            stack.nats_url_of("gateway"), name="overload", signer=LogSigner.of_file(stack.log_key_file)
        )
        cleanup.push_async_callback(journal.close)
        ends = Ends()
        await journal.subscribe(["deliberations.*.*.end"], ends.on_record)
        urls = [layout.url for layout in await beside(stack, plan.gateways, cleanup)]
        peak_per_s = await peak(urls, plan, ends)
        return [
            await overloaded(urls, plan, ends, Findings(mode, peak_per_s), turn)
            for turn, mode in enumerate(modes, start=1)
        ]


def row(findings: Findings) -> list[tuple[str, str]]:
    """The findings as (what, figure)."""
    rejected, waits_s = findings.rejected_ms, findings.retry_after_s
    rows = [
        ("peak, completed per second", f"{findings.peak_per_s:.1f}"),
        ("goodput under overload", f"{findings.goodput_per_s:.1f}/s = {findings.goodput_share:.0%} of the peak"),
        ("accepted", f"{findings.accepted}: {', '.join(f'{n} {s}' for s, n in findings.ends.most_common())}"),
        ("accepted and not completed", str(findings.broken)),
        ("acceptance p50, p99", _ms(findings.accepted_ms)),
        ("rejections", str(len(rejected))),
        ("rejection p50, p99", _ms(rejected)),
        ("Retry-After p50, max", f"{statistics.median(waits_s):.0f} s, {max(waits_s)} s" if waits_s else "–"),
    ]
    if findings.first_return_share is not None:
        rows.append(("accepted at the first return", f"{findings.first_return_share:.0%} of {findings.waited}"))
        rows.append(("Retry-After beyond the end of the run", str(findings.beyond_end)))
    return rows


def _ms(values: Sequence[float]) -> str:
    return f"{percentile(values, 0.5):.1f} ms, {percentile(values, 0.99):.1f} ms"


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=120, help="how long each mode lasts")
    parser.add_argument("--peak-seconds", type=float, default=20, help="how long the peak is measured")
    parser.add_argument("--factor", type=float, default=10, help="offered load over the peak")
    parser.add_argument("--strategy", default="council", help="what is asked for, with three agents")
    parser.add_argument("--timeout", type=int, default=60, help="deadline of each deliberation in seconds")
    parser.add_argument("--max-running", type=int, default=16, help="sequences that the engine runs at once")
    parser.add_argument("--duration-ms", type=int, default=400, help="how long the engine takes for one")
    parser.add_argument("--gateways", type=int, default=1, help="gateways; clients come to any of them each time")
    parser.add_argument(
        "--mode",
        nargs="+",
        choices=("ignore", "honour"),
        default=("honour", "ignore", "honour"),
        help="what refused clients do, in this order",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    return parser.parse_args(given)


def main() -> int:
    """Run it and print the figures; 1 when a bound did not hold."""
    options = arguments(sys.argv[1:])
    plan = Plan(
        seconds=options.seconds,
        peak_seconds=options.peak_seconds,
        factor=options.factor,
        strategy=options.strategy,
        timeout_s=options.timeout,
        max_running=options.max_running,
        duration_ms=options.duration_ms,
        gateways=options.gateways,
        seed=options.seed,
    )
    console = Console(width=max(110, Console().width))
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="overload-") as directory:
        for findings in uvloop.run(run(plan, options.mode, Path(directory))):
            title = f"{plan.factor:g} times the peak, {plan.strategy} of three; clients {findings.mode} Retry-After"
            table = Table("what (simulated engine)", "figure", title=title)
            for cells in row(findings):
                table.add_row(*cells)
            console.print(table)
            broken += [f"{findings.mode}: {each}" for each in findings.violations()]
    for each in broken:
        console.print(f"[red]✘[/red] {each}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
