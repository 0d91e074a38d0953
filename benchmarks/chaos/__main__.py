"""`python -m benchmarks.chaos`: runs the whole stack under load with random faults, then checks the outcome.

A proxy between every two parts can disturb connections; processes are killed and stopped by their marks. The check uses
only the raw stream and the requests that reached the engine, and not the product's own reports. Exits with 1 when a
guarantee does not hold.
"""

import argparse
import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import get_args

import nats
import nats.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from rich.console import Console
from rich.table import Table

from app.cli.stack.children import stack_children
from app.cli.stack.layout import StackOptions, plan_stack
from app.cli.stack.supervisor import supervised
from app.deliberation.facts import FACT_SUFFIXES, event_type
from app.deliberation.roles import AgentRunner
from app.log.stream_settings import INPUTS_STREAM, STREAM
from benchmarks.chaos.checker import EngineRequest, Fault, Findings, Stored, check
from benchmarks.chaos.doors import DoorLoad
from benchmarks.chaos.faults import Struck, cut, strike, wake
from benchmarks.chaos.files import by_input, check_files, problems_of
from benchmarks.chaos.load import ROLE_NAMES, Load
from benchmarks.chaos.proxy import FaultProxy, now_s
from tests.fakes import subject_matches
from tests.stack_user import admit

SETTLES_WITHIN_S = 180.0
STOPPED_S = (1.0, 8.0)
SLOWEST_SHOWN = 5
LOOK_BACK_S = 30.0
CUT_SHARE = 0.15
STOP_SHARE = 0.15
# With tasks over all doors: how many end between two kills of the gateway.
KILL_AFTER = (4, 20)
# A file takes about 90,000 tokens.
ENGINE = "--duration-ms 400 --jitter 0.5 --max-model-len 1000000"
# Only the roles of the load: each is one more process to start after Ray was killed.
ROLES = "roles:\n" + "".join(f"  {role}: {{persona: You are a {role}.}}\n" for role in ROLE_NAMES)
HEAD_BYTES_MAX = 512
PAGE_MESSAGES = 1_000
PAGE_CHUNKS = 32
_CALL_ID = re.compile(rb"\r\nx-call-id: ([a-z0-9_-]+)\.([a-z0-9_-]+)\r\n", re.IGNORECASE)


@dataclass
class RequestRecorder:
    """Records every call that is requested from the engine, and when."""

    asked: list[EngineRequest] = field(default_factory=list[EngineRequest])
    _tails: dict[int, bytes] = field(default_factory=lambda: defaultdict(bytes))

    def __call__(self, data: bytes, connection: int, sent_at_s: float) -> None:
        """Process bytes that a client sent on a connection."""
        tail = self._tails[connection]
        for found in _CALL_ID.finditer(tail + data):
            # A request head may be split; one that was complete in the last piece counts only once.
            if found.end() > len(tail):
                self.asked.append(EngineRequest(found[1].decode(), found[2].decode(), sent_at_s))
        self._tails[connection] = (tail + data)[-HEAD_BYTES_MAX:]


@dataclass(frozen=True)
class StackUnderTest:
    """A running stack, the proxies by the part behind them, and the recorded engine requests."""

    url: str
    nats_url: str
    marks: tuple[str, str]
    proxies: Mapping[str, FaultProxy]
    recorder: RequestRecorder


def _up(data_dir: Path, nats_url: str, engine_port: int, agents: AgentRunner) -> tuple[subprocess.Popen[str], str, str]:
    """Start `deliberate up`; returns its process, URL and mark."""
    roles = data_dir.with_suffix(".yaml")
    roles.write_text(ROLES)
    options = ["--port", "0", "--data-dir", str(data_dir), "--nats-url", nats_url]
    options += ["--roles", str(roles), "--agents", agents]
    command = [str(Path(sys.executable).with_name("deliberate")), "up", "--json", *options]
    command += ["--engine-url", f"http://127.0.0.1:{engine_port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if said["event"] == "ready":
            return process, said["url"], json.loads((data_dir / "stack.json").read_text())["mark"]
    raise RuntimeError(f"`deliberate up` ended with {process.wait()}")


async def _drained(process: subprocess.Popen[str], into: Path) -> None:
    assert process.stdout is not None
    with into.open("w") as log:
        await asyncio.to_thread(shutil.copyfileobj, process.stdout, log)


@asynccontextmanager
async def _running_stack(directory: Path, agents: AgentRunner) -> AsyncGenerator[StackUnderTest]:
    """Supervises log and engine here, with proxies before them, and starts the rest by `up`."""
    options = StackOptions(
        port=0,
        nats_port=0,
        data_dir=directory / "outside",
        simulate=tuple(ENGINE.split()),
        agents=agents,
    )
    options.data_dir.mkdir()
    layout = plan_stack(options, lambda _: None)
    outside = [child for child in stack_children(layout) if child.name in ("nats", "simulator")]
    nats_url, recorder = admit(layout, "chaos"), RequestRecorder()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(supervised(outside, layout.stack_run, lambda _: None))
        log = await stack.enter_async_context(FaultProxy(layout.ports["nats"]))
        engine = await stack.enter_async_context(FaultProxy(layout.ports["engine"], recorder))
        proxied = directory / "nats_url"
        proxied.write_text(nats_url.replace(f":{layout.ports['nats']}", f":{log.port}"))
        process, url, mark = await asyncio.to_thread(_up, directory / "inside", proxied.as_uri(), engine.port, agents)
        draining = asyncio.create_task(_drained(process, directory / "up.jsonl"))
        try:
            gateway = await stack.enter_async_context(FaultProxy(int(url.rpartition(":")[2])))
            proxies = {"log": log, "engine": engine, "gateway": gateway}
            public = f"http://127.0.0.1:{gateway.port}"
            yield StackUnderTest(public, nats_url, (layout.mark, mark), proxies, recorder)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)
            await draining


async def _inject_faults(
    stack: StackUnderTest, rng: random.Random, seconds: float, kills_min: int, interval_s: float, faults: list[Fault]
) -> None:
    """Inject random faults for `seconds` and until `kills_min` kills, and record them.

    A stopped process continues after some seconds.
    """
    ends_at_s = time.monotonic() + seconds
    async with asyncio.TaskGroup() as wakers:
        while time.monotonic() < ends_at_s or _kills(faults) < kills_min:
            await asyncio.sleep(rng.uniform(0.2, 2 * interval_s - 0.2))
            struck = _struck(stack, rng)
            if struck is None:
                continue
            faults.append(Fault(struck.what, struck.victim, now_s()))
            if struck.stopped_pid is not None:
                wakers.create_task(_woken(struck.stopped_pid, rng.uniform(*STOPPED_S)))


async def _kill_gateways(
    stack: StackUnderTest, rng: random.Random, seconds: float, load: DoorLoad, faults: list[Fault]
) -> None:
    """Kill the gateway each time that some more tasks have ended, for at most `seconds`."""
    ends_at_s = time.monotonic() + seconds
    next_at = len(load.pending) - rng.randint(*KILL_AFTER)
    while load.pending and time.monotonic() < ends_at_s:
        await asyncio.sleep(rng.uniform(0, 0.2))
        if len(load.pending) <= next_at and (struck := strike(rng, stack.marks, 0, ("gateway",))):
            faults.append(Fault(struck.what, struck.victim, now_s()))
            next_at = len(load.pending) - rng.randint(*KILL_AFTER)


def _kills(faults: Sequence[Fault]) -> int:
    return sum(fault.kind == "SIGKILL" for fault in faults)


def _struck(stack: StackUnderTest, rng: random.Random) -> Struck | None:
    if rng.random() < CUT_SHARE:
        return cut(rng, stack.proxies, rng.uniform(*STOPPED_S))
    return strike(rng, stack.marks, STOP_SHARE)


async def _woken(pid: int, after_s: float) -> None:
    await asyncio.sleep(after_s)
    wake(pid)


async def _tried_again(_: Exception) -> None:
    """Ignore errors of the client, which retries after a kill of the server."""


async def _messages(nats_url: str, stream_name: str, page_messages: int) -> AsyncIterator[Msg]:
    """Every message of a raw stream."""
    client = await nats.connect(nats_url, error_cb=_tried_again)
    # No filter: the server matches seven patterns message by message, which took minutes instead of seconds.
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE, inactive_threshold=60)
    stream = client.jetstream()
    info = await stream.add_consumer(stream_name, config)
    subscription = await stream.pull_subscribe_bind(info.name, stream_name)
    # Requested again each time: the number of pending messages also falls as views expire.
    while (await subscription.consumer_info()).num_pending:
        with suppress(nats.errors.TimeoutError):
            for message in await subscription.fetch(page_messages, timeout=1):
                yield message
    await subscription.unsubscribe()
    await client.close()


async def _stored(nats_url: str, named: Collection[str]) -> tuple[list[Stored], list[tuple[str, str]]]:
    """Every fact in the raw stream with its time of storage, and the problems of deliberations that named a file."""
    stored, problems = list[Stored](), list[tuple[str, str]]()
    async for message in _messages(nats_url, STREAM, PAGE_MESSAGES):
        tokens = tuple(message.subject.split("."))
        if any(subject_matches(tail, ".".join(tokens[3:])) for tail in FACT_SUFFIXES):
            stored.append(Stored(tokens, message.metadata.timestamp.timestamp(), event_type(message.data)))
            if tokens[2] in named and (problem := problems_of(tokens[2], message.data)) is not None:
                problems.append(problem)
    return stored, problems


async def _stored_inputs(nats_url: str) -> dict[str, dict[str, bytes]]:
    messages = _messages(nats_url, INPUTS_STREAM, PAGE_CHUNKS)
    return by_input([(message.subject, message.data) async for message in messages])


async def _counted(nats_url: str, tail: str) -> int:
    """The number of stored facts of a kind, without reading them."""
    client = await nats.connect(nats_url, error_cb=_tried_again)
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.NONE,
        filter_subject=f"deliberations.*.*.{tail}",
        inactive_threshold=5,
    )
    info = await client.jetstream().add_consumer("DELIBERATIONS", config)
    await client.close()
    return info.num_pending or 0


async def _settled(stack: StackUnderTest, load: Load, running: asyncio.Task[None]) -> None:
    """Wait until the clients have seen every end, up to a bound; the log then shows lost work."""
    load.enough.set()
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLES_WITHIN_S):
            await asyncio.shield(running)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    ends_at_s = time.monotonic() + SETTLES_WITHIN_S
    while time.monotonic() < ends_at_s:
        if await _counted(stack.nats_url, "end") >= await _counted(stack.nats_url, "accepted"):
            return
        await asyncio.sleep(1)


def _traced(directory: Path, faults: Sequence[Fault], asked: Sequence[EngineRequest], stored: Sequence[Stored]) -> None:
    """Faults, engine requests and stored facts, one per line, in order of time."""
    lines = [(each.at_s, "fault", [each.kind, each.victim]) for each in faults]
    lines += [(each.asked_at_s, "asked", [each.deliberation_id, each.call_id]) for each in asked]
    lines += [(each.stored_at_s, each.type, list(each.tokens[2:])) for each in stored]
    with (directory / "trace.jsonl").open("w") as trace:
        trace.writelines(json.dumps(line) + "\n" for line in sorted(lines))


async def run(
    directory: Path,
    seconds: float,
    kills_min: int,
    seed: int,
    in_flight: int,
    interval_s: float,
    agents: AgentRunner,
    doors: int,
) -> tuple[Findings, list[Fault], Load]:
    """One run from an empty log to its findings; `directory` gets the store, all logs and the trace."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    stored: list[Stored] = []
    async with _running_stack(directory, agents) as stack:
        try:
            async with asyncio.TaskGroup() as group:
                load = DoorLoad(stack.url, in_flight, seed, tasks=doors) if doors else Load(stack.url, in_flight, seed)
                # A response that a client must never get, such as a 500, ends the run.
                running = group.create_task(load.run())
                if isinstance(load, DoorLoad):
                    await _kill_gateways(stack, rng, seconds, load, faults)
                else:
                    await _inject_faults(stack, rng, seconds, kills_min, interval_s, faults)
                await _settled(stack, load, running)
            stored, problems = await _stored(stack.nats_url, load.files.named)
            inputs = await _stored_inputs(stack.nats_url)
        finally:
            _traced(directory, faults, stack.recorder.asked, stored)
    findings = check(load.promised, stored, stack.recorder.asked, faults, load.files.deleting)
    with_facts = {fact.tokens[2] for fact in stored if fact.tokens[3:] != ("deleted",)}
    findings.files = check_files(load.files, inputs, problems, with_facts)
    findings.unseen = sorted(load.pending)
    if isinstance(load, DoorLoad):
        findings.unpromised = sorted({each.tokens[2] for each in stored} - load.promised)
    return findings, faults, load


def percentile(ordered: list[float], share: float) -> float:
    """The nearest-rank percentile of ascending values."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _seconds(found: list[float], *shares: float) -> str:
    return " / ".join(f"{percentile(found, share):.1f} s" for share in shares) if found else "-"


def _doors_shown(console: Console, load: DoorLoad, findings: Findings) -> None:
    table = Table("door", "tasks", "asked again", "lost", "second ends", title="each door, under kills of the gateway")
    for door, ids in load.ids.items():
        found = (len(ids), load.again[door], len(ids & {*findings.lost}), len(ids & {*findings.second_ends}))
        table.add_row(door, *map(str, found))
    console.print(table)


def _shown(console: Console, findings: Findings, faults: list[Fault]) -> None:
    kinds = Counter(f"{fault.kind} {fault.victim}" for fault in faults)
    console.print("Faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    table = Table("what", "figure", title="simulated engine; figures from the raw stream and the engine's requests")
    files = findings.files
    rows: dict[str, object] = {
        "kills (SIGKILL)": _kills(faults),
        "stops (SIGSTOP)": sum(fault.kind == "SIGSTOP" for fault in faults),
        "connections hurt": sum(fault.kind not in ("SIGKILL", "SIGSTOP") for fault in faults),
        "accepted": findings.accepted,
        "ended": f"{findings.ended} ({', '.join(f'{kind} {count}' for kind, count in findings.ends.most_common())})",
        "lost": len(findings.lost),
        "second ends": len(findings.second_ends),
        "recorded calls made again": len(findings.made_again),
        "requests to the engine": findings.requests,
        "wasted / in flight at the faults": f"{findings.wasted} / {findings.wasted_bound}",
        "files uploaded, whole at the end, gone": f"{files.uploaded}, {files.whole}, {files.gone}",
        "deliberations that named one, deleted": f"{files.named}, {files.deleted}",
    }
    rows["from each kill to the next progress, p50 / p99 / max"] = _seconds(findings.progress_s, 0.5, 0.99, 1.0)
    rows["to that of each deliberation worked on at it"] = _seconds(findings.resumed_s, 0.5, 0.99, 1.0)
    for victim in sorted({fault.victim for _, fault in findings.resumptions}):
        after = [seconds for seconds, fault in findings.resumptions if fault.victim == victim]
        rows[f"the same after a kill of {victim}, p50 / p99"] = _seconds(after, 0.5, 0.99)
    for name, value in rows.items():
        table.add_row(name, str(value))
    console.print(table)
    slowest = {fault: seconds for seconds, fault in findings.resumptions}
    for fault, seconds in sorted(slowest.items(), key=lambda each: -each[1])[:SLOWEST_SHOWN]:
        before = [f"{each.kind} {each.victim}" for each in faults if 0 <= fault.at_s - each.at_s < LOOK_BACK_S]
        console.print(f"{seconds:.1f} s after {fault.kind} of {fault.victim}; within {LOOK_BACK_S:g} s: {before}")
    for unfinished in findings.unfinished[:20]:
        console.print(unfinished)
    for violation in findings.violations[:20]:
        console.print(violation, style="red")


def main() -> None:
    """Read the options, run and print; exits with 1 when a guarantee does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=200, help="deliberations in flight")
    parser.add_argument("--interval", type=float, default=4.0, help="mean seconds between faults")
    parser.add_argument("--agents", choices=get_args(AgentRunner), default="ray", help="what runs the agents")
    parser.add_argument("--kills-min", type=int, default=0, help="go on until so many were killed")
    parser.add_argument("--doors", type=int, default=0, help="ask so many tasks over all doors; kill the gateway alone")
    parser.add_argument("--keep", type=Path, help="a new directory for the evidence of a violation: trace, logs, store")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        directory.mkdir(parents=True, exist_ok=options.keep is None)
        findings, faults, load = asyncio.run(
            run(
                directory,
                options.seconds,
                options.kills_min,
                options.seed,
                options.in_flight,
                options.interval,
                options.agents,
                options.doors,
            )
        )
    console = Console()
    _shown(console, findings, faults)
    if isinstance(load, DoorLoad):
        _doors_shown(console, load, findings)
    sys.exit(bool(findings.violations))


if __name__ == "__main__":
    main()
