import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.deliberation.outputs import SandboxReport
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.slots import AT_ONCE
from serve_deployments.sandbox import checks
from serve_deployments.sandbox.checks import Sandbox
from tests.conditions import until
from tests.integration.cli.children import alive, children_of, wardens_of
from tests.integration.sandbox.programs import (
    COMPARED,
    ENDLESS,
    FORGED,
    HONEST,
    HONEST_PROGRAMS,
    MUCH,
    PROCESSES,
    SCRIPTS,
    doing,
)
from tests.integration.sandbox.sandboxed import PASSES, WITHIN_S, calls, check, ran, reported, script

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")


async def reason(program: str) -> str:
    (outcome,) = (await ran(program)).outcomes
    assert not outcome.passed, "a hostile program passed"
    return outcome.reason


async def refuses_all(attempts: list[str], modules: str, reason: str) -> None:
    program = f"import {modules}\nATTEMPTS = {attempts!r}\ndef f(place): return eval(ATTEMPTS[place])"
    report = await ran(program, *(calls("f", place) for place in range(len(attempts))))
    for attempt, outcome in zip(attempts, report.outcomes, strict=True):
        assert not outcome.passed and re.search(reason, outcome.reason), (attempt, outcome)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SECRET_OF_THE_REPLICA", "hunter2")
    yield
    assert wardens_of(os.getpid()) == []
    assert list(tmp_path.glob("*/run-*")) == []


# Effects on the machine


@pytest.mark.parametrize("program", ENDLESS.values(), ids=ENDLESS)
async def test_kills_programs_that_do_not_end(program: str) -> None:
    assert re.fullmatch(r"ran longer than 2 s|ended by SIG(XCPU|KILL) .*", await reason(program))


@pytest.mark.parametrize("program", PROCESSES.values(), ids=PROCESSES)
async def test_a_program_cannot_create_change_or_signal_processes(program: str) -> None:
    assert re.search("PermissionError|not permitted|not allowed|denied", await reason(program))


@pytest.mark.parametrize(("program", "expected"), MUCH.values(), ids=MUCH)
async def test_limits_every_resource(program: str, expected: str) -> None:
    assert expected in await reason(program)


async def test_a_program_that_does_not_load_fails_all_tests_in_one_run() -> None:
    report = await ran("while True: pass", *[PASSES] * 20, timeout_s=1)
    assert report.fault == "the program does not load: ran longer than 1 s"
    assert [outcome.reason for outcome in report.outcomes] == [report.fault] * 20


async def test_skips_the_other_tests_after_three_timeouts() -> None:
    report = await ran("def f(x):\n    while x: pass", *[calls("f", 1)] * 5, calls("f", 0), timeout_s=1)
    assert [outcome.reason.partition(":")[0] for outcome in report.outcomes] == ["ran longer than 1 s"] * 3 + [
        "not run"
    ] * 3
    assert report.not_run == {3, 4, 5}


async def test_timeouts_of_one_writer_do_not_skip_anothers_tests() -> None:
    program = "def f(x):\n    while x: pass"
    endless, honest = [calls("f", 1)] * 5, [calls("f", 0)] * 5
    tests = [test for both in zip(endless, honest, strict=True) for test in both]
    asked = check(program, *tests, timeout_s=1).model_copy(update={"writers": (1, 2) * 5})
    report = await reported(asked, WITHIN_S)
    assert [outcome.passed for outcome in report.outcomes] == [False, True] * 5
    assert report.not_run == {6, 8}


# Access to files and services


async def test_nothing_is_written_outside_the_directory_of_the_test(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    escaped = tmp_path / "escaped"
    attempts = [
        f"open({str(escaped)!r}, 'w')",
        f"open({str(precious)!r}, 'a')",
        f"os.open({str(precious)!r}, os.O_RDONLY | os.O_TRUNC)",
        f"os.truncate({str(precious)!r}, 0)",
        f"os.unlink({str(precious)!r})",
        f"os.chmod({str(precious)!r}, 0)",
        f"os.utime({str(precious)!r}, (0, 0))",
        f"os.mkdir({str(escaped)!r})",
        f"os.rename({str(precious)!r}, 'mine')",
        f"(open('mine', 'w').close(), os.rename('mine', {str(escaped)!r}))",
        f"os.symlink({str(precious)!r}, 'link') or open('link').read()",
        f"os.link({str(precious)!r}, 'link')",
        f"os.symlink({str(escaped)!r}, 'link') or open('link', 'w')",
        "open('../escaped', 'w')",
        "os.chdir('..') or open('escaped', 'w')",
        "os.mkfifo('fifo')",
        "os.mknod('node')",
        "open('/proc/self/oom_score_adj', 'w')",
        "open('/dev/shm/escaped', 'w')",
        "os.chroot('.')",
    ]
    await refuses_all(attempts, "os", "PermissionError|not permitted|denied")
    assert precious.read_text() == "kept" and not escaped.exists()


async def test_a_program_reads_only_its_own_files(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    paths = [precious, "/etc/passwd", "/proc/self/environ", "/proc/1/environ", f"/proc/{os.getpid()}/environ"]
    paths += [f"/proc/{os.getpid()}/mem", "/proc/self/mem", ROOT / "pyproject.toml", checks.__file__, pytest.__file__]
    program = """
        import os
        def read(path): return len(open(path, 'rb').read(1))
        def listed(path): return os.listdir(path)
        def parents(): return open(f'/proc/{os.getppid()}/environ').read()
    """
    tests = [calls("read", str(path)) for path in paths]
    tests += [calls("parents"), *(calls("listed", path) for path in ("/", str(tmp_path), "/proc", ".."))]
    report = await ran(program, *tests)
    for outcome in report.outcomes:
        assert not outcome.passed and "Permission" in outcome.reason, outcome


async def test_the_environment_is_empty() -> None:
    (outcome,) = (await ran("import os\ndef f(): return [*os.environ]", calls("f", expected=[]))).outcomes
    assert outcome.reason == ""


async def test_the_network_and_the_services_of_the_host_are_out_of_reach(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            unix.bind(str(tmp_path / "unix"))
            unix.listen()
            datagrams.bind("\0" + str(tmp_path))
            attempts = [
                f"socket.create_connection({tcp.getsockname()!r})",
                f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {udp.getsockname()!r})",
                f"socket.socket(socket.AF_UNIX).connect({str(tmp_path / 'unix')!r})",
                f"socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '\\0' + {str(tmp_path)!r})",
                f"socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', '\\0' + {str(tmp_path)!r})",
                f"socket.socketpair()[0].sendto(b'x', '\\0' + {str(tmp_path)!r})",
                "socket.socketpair()[0].sendmsg([b'x'])",
                "socket.create_server(('127.0.0.1', 0))",
                "socket.socket(socket.AF_INET6)",
                "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
                "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
                "socket.getaddrinfo('localhost.localdomain.example', 80)",
                "urllib.request.urlopen('http://127.0.0.1/')",
            ]
            await refuses_all(attempts, "socket, urllib.request", "PermissionError|not permitted|gaierror")
            for listening in (tcp, udp, unix, datagrams):
                listening.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listening.accept() if listening in (tcp, unix) else listening.recv(1)


# Faked success


@pytest.mark.parametrize("program", FORGED.values(), ids=FORGED)
async def test_a_program_cannot_fake_success(program: str) -> None:
    report = await ran(program, PASSES, script("", "1"))
    assert not any(outcome.passed for outcome in report.outcomes) and all(each.reason for each in report.outcomes)


async def test_a_test_leaves_nothing_to_the_next() -> None:
    program = doing("seen = os.listdir('.')", "os.makedirs('a/b')", "open('a/x', 'w').close()", "return seen")
    report = await ran(program, *[calls("f", expected=[])] * 3)
    assert [outcome.reason for outcome in report.outcomes] == [""] * 3


# Honest programs


@pytest.mark.parametrize("program", HONEST_PROGRAMS.values(), ids=HONEST_PROGRAMS)
async def test_honest_programs_pass(program: str) -> None:
    (outcome,) = (await ran(program, timeout_s=20)).outcomes
    assert (outcome.passed, outcome.reason) == (True, "")


@pytest.mark.parametrize(("value", "expected", "why"), COMPARED.values(), ids=COMPARED)
async def test_a_value_is_compared_as_json(value: str, expected: object, why: str) -> None:
    (outcome,) = (await ran(f"def f(): return {value}", calls("f", expected=expected), timeout_s=20)).outcomes
    assert outcome.passed == (not why) and outcome.reason.startswith(why), outcome


@pytest.mark.parametrize(("program", "stdin", "stdout", "why"), SCRIPTS.values(), ids=SCRIPTS)
async def test_a_scripts_output_is_compared_by_lines(program: str, stdin: str, stdout: str, why: str) -> None:
    (outcome,) = (await ran(program, script(stdin, stdout), timeout_s=20)).outcomes
    assert (outcome.passed, outcome.reason) == (not why, why)


async def test_a_function_receives_its_arguments_as_json_values() -> None:
    arguments = [None, True, -0.5, 10**30, "é\n", [1, []], {"a": {"b": [2]}}]
    report = await ran("def f(*given): return repr(given)", calls("f", *arguments, expected=repr(tuple(arguments))))
    assert report.outcomes[0].reason == ""


@pytest.mark.parametrize(("program", "fault"), [(HONEST, ""), ("1 / 0", "the program does not load: ZeroDivision")])
async def test_a_program_without_a_test_is_loaded_too(program: str, fault: str) -> None:
    report = await reported(check(program), WITHIN_S)
    assert report.fault.startswith(fault) and bool(report.fault) == bool(fault)


async def test_a_script_that_is_no_module_fails_the_tests_of_calls_alone() -> None:
    report = await ran("print(int(input()) + 1)", PASSES, script("1", "2"))
    assert (report.fault, [outcome.passed for outcome in report.outcomes]) == ("", [False, True])


async def test_a_failure_names_the_error_and_its_line() -> None:
    report = await ran("def f(x): return 1 // x", calls("f", 1, expected=1), calls("f", 0), calls("g"))
    assert [outcome.reason for outcome in report.outcomes] == [
        "",
        "ZeroDivisionError: integer division or modulo by zero (line 1 of the program)",
        "NameError: the program does not define 'g'",
    ]
    fault = "the program does not load: SyntaxError: invalid syntax (line 1 of the program)"
    assert (await ran("def f(:")).fault == (await ran("def f(:", script("", ""))).fault == fault


# The replica


async def test_bounds_the_programs_that_run_at_once() -> None:
    """Good, bad and endless programs; the replica's loop keeps running."""
    programs = [HONEST, "def f(): return 2", "def f():\n    while True: pass", "import os\ndef f(): os.fork()"] * 4
    sandbox = Sandbox(NodeDirectory())
    running = [
        asyncio.create_task(sandbox.report(check(program, PASSES, PASSES, timeout_s=1), "acme", WITHIN_S))
        for program in programs
    ]
    most, turns = 0, 0
    while not all(task.done() for task in running):
        most, turns = max(most, len(wardens_of(os.getpid()))), turns + 1
        await asyncio.sleep(0.01)
    reports = [task.result() for task in running]
    assert [[outcome.passed for outcome in report.outcomes] for report in reports] == [
        [True] * 2,
        *[[False] * 2] * 3,
    ] * 4
    assert 1 < most <= AT_ONCE
    assert turns > 20


async def test_reports_tests_without_time_as_not_run() -> None:
    asked = check("import time\ndef f(): time.sleep(0.5)", *[calls("f")] * 20, timeout_s=20)
    report = await reported(asked, within_s=3.0)
    reasons = [outcome.reason for outcome in report.outcomes]
    assert reasons[0] == "" and reasons[-1] == "not run: the time of the check was over"
    assert {place for place, reason in enumerate(reasons) if reason} == report.not_run


@pytest.mark.parametrize("within_s", [0.0, 1.0, 1.001])
async def test_a_check_without_time_finds_no_fault(within_s: float) -> None:
    report = await reported(check("while True: pass", PASSES), within_s)
    assert (report.fault, report.not_run) == ("", {0})


async def test_reports_a_test_cut_by_the_deadline_as_not_run() -> None:
    program = "def f():\n    while True: pass"
    cut = await reported(check(program, PASSES, timeout_s=30), within_s=3.0)
    assert (cut.not_run, cut.outcomes[0].reason) == ({0}, "not run: the time of the check was over")
    ran_out = await reported(check(program, PASSES, timeout_s=1), WITHIN_S)
    assert (ran_out.not_run, ran_out.outcomes[0].reason) == (frozenset(), "ran longer than 1 s")


async def test_programs_that_hang_do_not_starve_those_behind_them() -> None:
    """Each running program takes one turn; then the waiting program runs before their second tests."""
    sandbox, done = Sandbox(NodeDirectory()), list[str]()

    async def one(name: str, program: str) -> SandboxReport:
        report = await sandbox.report(check(program, *[PASSES] * 3, timeout_s=2), "acme", WITHIN_S)
        done.append(name)
        return report

    hanging = [one("hangs", "def f():\n    while True: pass") for _ in range(AT_ONCE)]
    reports = await asyncio.gather(*hanging, one("honest", HONEST), one("honest", HONEST))
    assert done[:2] == ["honest"] * 2
    assert [len([outcome for outcome in report.outcomes if outcome.passed]) for report in reports] == [0] * 4 + [3, 3]


async def test_a_check_that_is_stopped_leaves_no_process() -> None:
    running = asyncio.create_task(reported(check("def f():\n    while True: pass", PASSES, timeout_s=60), WITHIN_S))
    await until(lambda: any(children_of(warden) for warden in wardens_of(os.getpid())))
    (warden,) = wardens_of(os.getpid())
    (child,) = children_of(warden)
    running.cancel()
    await asyncio.wait({running})
    await until(lambda: not alive(warden) and not alive(child))


async def test_programs_end_with_a_killed_replica(tmp_path: Path) -> None:
    script = f"""
        import asyncio, tempfile
        from tests.integration.sandbox.sandboxed import PASSES, check, reported
        tempfile.tempdir = {str(tmp_path)!r}
        asyncio.run(reported(check("def f():\\n    while True: pass", PASSES, timeout_s=60), 60.0))
    """
    replica = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT)
    await until(lambda: any(children_of(warden) for warden in wardens_of(replica.pid)), timeout_s=60)
    (warden,) = wardens_of(replica.pid)
    (child,) = children_of(warden)
    replica.send_signal(signal.SIGKILL)
    replica.wait()
    await until(lambda: not alive(warden) and not alive(child))
    await until(lambda: not list(tmp_path.glob("*/run-*")))
