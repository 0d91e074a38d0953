import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli.exits import CommandError
from app.cli.render.progress import (
    ChildDied,
    ChildFailed,
    ChildReady,
    ChildStarted,
    Noticed,
    StackStopped,
    StackStopping,
)
from app.cli.stack.layout import StackOptions
from app.cli.stack.supervisor import StackRun, marked, supervised
from app.cli.stack.up import running_stack
from app.deliberation.errors import JournalUnavailable
from tests.conditions import until
from tests.integration.cli.children import DEAF, FAILS, LASTS, ORPHANS, SILENT, Events, Run, alive, child


async def test_children_start_after_their_dependencies_and_stop_in_reverse(run: Run, events: Events) -> None:
    async with run(child("log", LASTS), child("engine", LASTS), child("gateway", LASTS, needs=("log",))) as running:
        order = [(type(e), getattr(e, "name", "")) for e in events.events]
        assert order.index((ChildReady, "log")) < order.index((ChildStarted, "gateway"))
        state = running.state()
        assert state["url"] == "here"
        assert state["supervisor_pid"] == os.getpid()
        assert {name: entry["pid"] for name, entry in state["children"].items()} == {
            event.name: event.pid for event in events.of(ChildStarted)
        }
    assert [event.name for event in events.of(StackStopping)] == ["gateway", "engine", "log"]
    assert events.of(StackStopped)[0].left == ()
    assert not running.stack_run.state_file.exists()


async def test_a_killed_child_restarts_without_the_others(run: Run, events: Events) -> None:
    async with run(child("log", LASTS), child("gateway", LASTS, needs=("log",))) as running:
        gateway = running.pid_of("gateway")
        killed = running.kill("log")
        await events.until_ready("log", 2)
        assert running.pid_of("log") != killed
        assert running.pid_of("gateway") == gateway
        assert [(d.name, d.reason, d.restart_in_s) for d in events.of(ChildDied)] == [
            ("log", "was killed by SIGKILL", 0.2)
        ]


async def test_the_cause_is_sought_while_the_others_run_when_a_child_does_not_become_ready(
    stack_run: StackRun, events: Events
) -> None:
    seen = list[bool]()

    async def explain() -> None:
        seen.append(bool(events.of(ChildReady, "log")) and not events.of(StackStopping))

    with pytest.raises(CommandError):
        async with supervised(
            [child("log", LASTS), child("gateway", FAILS, needs=("log",))], stack_run, events, explain
        ):
            raise AssertionError("the gateway is never ready")
    assert seen == [True, True]


async def test_a_dependent_child_ends_and_restarts_together_with_its_dependency(
    run: Run, events: Events, tmp_path: Path
) -> None:
    deaf_once = (
        f"import pathlib\nif not (mark := pathlib.Path({str(tmp_path / 'deaf')!r})).exists():\n    mark.touch()\n"
    )
    deaf_once += "    import signal\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    # The bound exceeds any test's duration, so a wait for it would fail the test.
    deployer = child("deployer", deaf_once + LASTS, fails_with=("ray",), stop_within_s=600)
    async with run(child("ray", LASTS), deployer) as running:
        first = running.pid_of("deployer")
        running.kill("ray")
        await events.until_ready("deployer", 2)
        await events.until_ready("ray", 2)
        assert not alive(first)
        assert [(d.name, d.reason) for d in events.of(ChildDied, "deployer")] == [("deployer", "ended because ray did")]
        assert [event.name for event in events.of(ChildStarted)] == ["ray", "deployer", "ray", "deployer"]


async def test_an_exit_of_a_dependent_child_leaves_its_dependency_running(run: Run, events: Events) -> None:
    async with run(child("ray", LASTS), child("deployer", LASTS, fails_with=("ray",))) as running:
        ray = running.pid_of("ray")
        running.kill("deployer")
        await events.until_ready("deployer", 2)
        assert running.pid_of("ray") == ray


async def test_orphans_of_an_exited_child_end_before_its_restart(run: Run, events: Events, stack_run: StackRun) -> None:
    async with run(child("ray", ORPHANS + LASTS)) as running:
        first = {process.pid for process in marked(stack_run.mark)}
        assert len(first) == 4
        running.kill("ray")
        await until(lambda: len(events.of(ChildStarted, "ray")) == 2)
        assert not any(alive(pid) for pid in first)
        await events.until_ready("ray", 2)


async def test_a_child_that_ignores_sigterm_is_killed_after_its_bound(
    run: Run, events: Events, stack_run: StackRun
) -> None:
    async with run(child("deaf", ORPHANS + DEAF, stop_within_s=0.2)):
        pass
    assert events.of(StackStopped)[0].left == ()
    assert marked(stack_run.mark) == []


async def test_a_second_cancellation_does_not_wait_for_children(run: Run, events: Events) -> None:
    ready = asyncio.Event()

    async def body() -> None:
        async with run(child("deaf", DEAF, stop_within_s=1e6)):
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await ready.wait()
    task.cancel()
    await until(lambda: bool(events.of(StackStopping)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)


@pytest.mark.parametrize(
    ("code", "more", "reason", "tail"),
    [
        (FAILS, {}, "ended with status 1", ("no such setting",)),
        (SILENT, {"idle_max_s": 0.3}, "hung while it started: used no CPU for 0 s", ()),
        ("raise SystemExit(0)", {}, "ended with status 0", ()),
    ],
)
async def test_a_child_that_never_becomes_ready_ends_the_start_with_its_log(
    run: Run, events: Events, code: str, more: dict[str, Any], reason: str, tail: tuple[str, ...]
) -> None:
    with pytest.raises(CommandError, match=reason) as raised:
        async with run(child("log", LASTS), child("gateway", code, hint="choose another --port", **more)):
            pytest.fail("the body must not run")
    assert (raised.value.code, raised.value.remedy) == ("gateway_failed", "choose another --port")
    [failed] = events.of(ChildFailed)
    assert (failed.name, failed.log_tail) == ("gateway", tail)
    assert len(events.of(ChildStarted, "gateway")) == 2, "one more attempt, as a port may be taken for a moment"


async def test_a_child_with_wrong_arguments_ends_the_start_at_once_with_its_own_words(run: Run, events: Events) -> None:
    command = (sys.executable, "-m", "serve_deployments.simulator", "--bogus", "1")
    simulator = replace(child("simulator", LASTS), command=command)
    simulator = replace(simulator, environment={**os.environ, "TYPER_USE_RICH": "0"})
    with pytest.raises(CommandError, match="simulator: No such option: --bogus"):
        async with run(simulator):
            pytest.fail("the body must not run")
    assert len(events.of(ChildStarted, "simulator")) == 1


async def test_a_missing_program_is_an_error(run: Run) -> None:
    with pytest.raises(CommandError, match="cannot be run"):
        async with run(replace(child("nats", LASTS), command=("/no/such/program",))):
            pytest.fail("the body must not run")


async def test_preparation_runs_before_dependent_children_and_after_each_restart(run: Run, events: Events) -> None:
    prepared = list[int]()

    async def prepare() -> None:
        assert not events.of(ChildStarted, "gateway") or prepared
        prepared.append(len(events.of(ChildStarted, "log")))

    async with run(child("log", LASTS, prepare=prepare), child("gateway", LASTS, needs=("log",))) as running:
        assert prepared == [1]
        running.kill("log")
        await events.until_ready("log", 2)
        assert prepared == [1, 2]


@pytest.mark.parametrize("fails_at_first", [True, False])
async def test_a_failed_preparation_ends_the_start_but_not_a_child_that_served_before(
    run: Run, events: Events, fails_at_first: bool
) -> None:
    async def prepare() -> None:
        if fails_at_first or events.runs("log"):
            raise JournalUnavailable("the log does not answer")

    async def restart() -> None:
        async with run(child("log", LASTS, prepare=prepare)) as running:
            running.kill("log")
            await events.until_ready("log", 2)

    if fails_at_first:
        with pytest.raises(CommandError, match="the log does not answer"):
            await restart()
    else:
        await restart()
        assert [noticed.text for noticed in events.of(Noticed)] == ["log: the log does not answer"]


async def test_errors_of_the_body_propagate(run: Run) -> None:
    with pytest.raises(LookupError):
        async with run(child("log", LASTS)):
            raise LookupError


@asynccontextmanager
async def program(code: str, place: Path) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=place, env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process, (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_data_directory_allows_one_stack_at_a_time(tmp_path: Path) -> None:
    code = f"""
import fcntl
file = open("lock", "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("4711")
file.flush()
{LASTS}"""
    async with program(code, tmp_path):
        with pytest.raises(CommandError, match="is in use by process 4711"):
            async with running_stack(StackOptions(data_dir=tmp_path)):
                pytest.fail("two stacks on one log")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_next_stack_ends_what_a_killed_supervisor_left(tmp_path: Path, events: Events) -> None:
    code = f"""
import asyncio, os, sys
from pathlib import Path
from app.cli.stack.supervisor import Child, StackRun, supervised
async def main():
    stack_run = StackRun(mark="{tmp_path.name}", logs_dir=Path("."), state_file=Path("stack.json"))
    command = (sys.executable, "-c", {ORPHANS + LASTS!r})
    async with supervised([Child(name="ray", command=command, ready_line="ready")], stack_run, lambda _: None):
        print("up", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    async with program(code, tmp_path) as (supervisor, line):
        assert line == "up"
        child_pid = json.loads((tmp_path / "stack.json").read_text())["children"]["ray"]["pid"]
        assert len(marked(tmp_path.name)) == 4
        supervisor.kill()
    await until(lambda: not alive(child_pid))
    assert len(marked(tmp_path.name)) == 3, "direct children end with the supervisor, their descendants may not"

    roles = tmp_path / "roles.yaml"
    roles.write_text("roles: {}")
    with pytest.raises(CommandError, match="roles"):
        async with running_stack(StackOptions(data_dir=tmp_path, roles_file=roles), events):
            pytest.fail("these roles are no use")
    assert marked(tmp_path.name) == []
    assert [noticed.text for noticed in events.of(Noticed)] == [
        "an earlier run was cut short: ending 3 processes of it"
    ]
