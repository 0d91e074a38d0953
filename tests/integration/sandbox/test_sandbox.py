"""Hostile programs in the real sandbox: each fails its tests with a reason, and the replica lives on."""

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
from serve_deployments.sandbox import checks
from serve_deployments.sandbox.checks import CHECKS_AT_ONCE, Sandbox
from tests.conditions import until
from tests.integration.cli.kinship import alive, children, wardens
from tests.integration.sandbox.programs import (
    ALIKE,
    ENDLESS,
    EQUAL,
    FORGED,
    HONEST,
    HONEST_PROGRAMS,
    MUCH,
    PROCESSES,
    SAME,
    USED,
    WRITTEN,
    doing,
)
from tests.integration.sandbox.sandboxed import PASSES, WITHIN_S, check, ran

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")


async def reason(program: str, test: str = PASSES) -> str:
    """The reason of the only test's failure."""
    (outcome,) = (await ran(program, textwrap.dedent(test))).outcomes
    assert not outcome.passed, "a hostile program passed"
    return outcome.reason


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process and no directory of a sandbox outlives its check."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SECRET_OF_THE_REPLICA", "hunter2")
    yield
    assert wardens(os.getpid()) == []
    assert list(tmp_path.glob("check-*")) == []


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


async def test_a_program_that_does_not_load_fails_all_tests_in_one_trial() -> None:
    report = await ran("while True: pass", *[PASSES] * 20, timeout_s=1)
    assert report.fault == "the program does not load: ran longer than 1 s"
    assert [outcome.reason for outcome in report.outcomes] == [report.fault] * 20


async def test_skips_the_other_tests_after_three_timeouts() -> None:
    report = await ran("def f(x):\n    while x: pass", *["f(1)"] * 5, "f(0)", timeout_s=1)
    assert [outcome.reason.partition(":")[0] for outcome in report.outcomes] == ["ran longer than 1 s"] * 3 + [
        "not run"
    ] * 3
    assert report.not_run == {3, 4, 5}


async def test_timeouts_of_one_writer_do_not_skip_anothers_tests() -> None:
    endless, honest = [f"while {number}: pass" for number in range(1, 6)], [PASSES] * 5
    tests = [test for both in zip(endless, honest, strict=True) for test in both]
    asked = check(HONEST, *tests, timeout_s=1).model_copy(update={"writers": (1, 2) * 5})
    report = await Sandbox().report(asked, WITHIN_S)
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
    program = f"import os\nATTEMPTS = {attempts!r}\ndef f(place): return eval(ATTEMPTS[place])"
    report = await ran(program, *(f"f({place})" for place in range(len(attempts))))
    for attempt, outcome in zip(attempts, report.outcomes, strict=True):
        assert not outcome.passed and re.search("PermissionError|not permitted|denied", outcome.reason), (
            attempt,
            outcome,
        )
    assert precious.read_text() == "kept" and not escaped.exists()


async def test_a_program_reads_only_its_own_files(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    paths = [precious, "/etc/passwd", "/proc/self/environ", "/proc/1/environ", f"/proc/{os.getpid()}/environ"]
    paths += [f"/proc/{os.getpid()}/mem", "/proc/self/mem", ROOT / "pyproject.toml", checks.__file__, pytest.__file__]
    program = """
        import os
        def read(path): return open(path, 'rb').read(1)
        def listed(path): return os.listdir(path)
        def parents(): return open(f'/proc/{os.getppid()}/environ').read()
    """
    tests = [f"read({str(path)!r})" for path in paths]
    tests += ["parents()", "listed('/')", f"listed({str(tmp_path)!r})", "listed('/proc')", "listed('..')"]
    report = await ran(program, *tests)
    for outcome in report.outcomes:
        assert not outcome.passed and "Permission" in outcome.reason, outcome


async def test_the_environment_is_empty() -> None:
    test = "import os\nassert 'SECRET_OF_THE_REPLICA' not in os.environ\nassert set(os.environ) <= {'LC_CTYPE'}"
    (outcome,) = (await ran(HONEST, test)).outcomes
    assert outcome.passed


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
            program = (
                f"import socket, urllib.request\nATTEMPTS = {attempts!r}\ndef f(place): return eval(ATTEMPTS[place])"
            )
            report = await ran(program, *(f"f({place})" for place in range(len(attempts))))
            for attempt, outcome in zip(attempts, report.outcomes, strict=True):
                assert not outcome.passed, attempt
                assert re.search("PermissionError|not permitted|gaierror", outcome.reason), (attempt, outcome.reason)
            for listening in (tcp, udp, unix, datagrams):
                listening.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listening.accept() if listening in (tcp, unix) else listening.recv(1)


# Faked success


@pytest.mark.parametrize("program", ALIKE.values(), ids=ALIKE)
@pytest.mark.parametrize("test", ["assert f() == 1", "assert 1 == f()", "assert [f()] == [1]", EQUAL, SAME])
async def test_no_class_of_the_program_decides_what_is_equal(program: str, test: str) -> None:
    """A subclass of a plain type is the value that it holds, another object is none."""
    assert re.search("decides itself|AssertionError|ValueError", await reason(program, test))


@pytest.mark.parametrize("program", FORGED.values(), ids=FORGED)
async def test_a_program_cannot_fake_success(program: str) -> None:
    as_function = f"def test_it():\n    {PASSES}"
    report = await ran(program, PASSES, as_function)
    assert not any(outcome.passed for outcome in report.outcomes) and all(each.reason for each in report.outcomes)


async def test_a_test_leaves_nothing_to_the_next() -> None:
    program = doing("seen = os.listdir('.')", "os.makedirs('a/b')", "open('a/x', 'w').close()", "return seen")
    report = await ran(program, *["assert f() == []"] * 3)
    assert [outcome.reason for outcome in report.outcomes] == [""] * 3


# Honest programs


@pytest.mark.parametrize("program", HONEST_PROGRAMS.values(), ids=HONEST_PROGRAMS)
async def test_honest_programs_pass(program: str) -> None:
    (outcome,) = (await ran(program, timeout_s=20)).outcomes
    assert (outcome.passed, outcome.reason) == (True, "")


@pytest.mark.parametrize(("program", "test"), USED.values(), ids=USED)
async def test_tests_may_use_more_than_plain_values(program: str, test: str) -> None:
    (outcome,) = (await ran(program, test, timeout_s=20)).outcomes
    assert (outcome.passed, outcome.reason) == (True, "")


@pytest.mark.parametrize(("test", "passed", "expected"), WRITTEN.values(), ids=WRITTEN)
async def test_tests_may_be_written_in_many_ways(test: str, passed: bool, expected: str) -> None:
    (outcome,) = (await ran(HONEST, test, timeout_s=20)).outcomes
    assert outcome.passed == passed and outcome.reason.startswith(expected), outcome
    assert bool(outcome.reason) != passed


async def test_outcomes_keep_the_order_of_the_tests_and_report_a_syntax_error() -> None:
    report = await ran("def f(x): return 1 / x", *(f"assert f({x})" for x in (1, 0, 2)))
    assert [(each.name, each.passed) for each in report.outcomes] == [
        ("test 1", True),
        ("test 2", False),
        ("test 3", True),
    ]
    assert (
        report.outcomes[1].reason == "ZeroDivisionError: division by zero (line 1 of the test, line 1 of the program)"
    )
    assert (
        await ran("def f(:")
    ).fault == "the program does not load: SyntaxError: invalid syntax (line 1 of the program)"


# The replica


async def test_bounds_the_programs_that_run_at_once() -> None:
    """Good, bad and endless programs; the replica's loop keeps running."""
    programs = [HONEST, "def f(): return 2", "def f():\n    while True: pass", "import os\ndef f(): os.fork()"] * 4
    sandbox = Sandbox()
    running = [
        asyncio.create_task(sandbox.report(check(each, PASSES, PASSES, timeout_s=1), WITHIN_S)) for each in programs
    ]
    most, turns = 0, 0
    while not all(task.done() for task in running):
        most, turns = max(most, len(wardens(os.getpid()))), turns + 1
        await asyncio.sleep(0.01)
    reports = [task.result() for task in running]
    assert [[outcome.passed for outcome in report.outcomes] for report in reports] == [
        [True] * 2,
        *[[False] * 2] * 3,
    ] * 4
    assert 1 < most <= CHECKS_AT_ONCE
    assert turns > 20


async def test_reports_tests_without_time_as_not_run() -> None:
    asked = check("import time\ndef f(): time.sleep(0.5)", *["assert f() is None"] * 20, timeout_s=20)
    report = await Sandbox().report(asked, within_s=3.0)
    reasons = [outcome.reason for outcome in report.outcomes]
    assert reasons[0] == "" and reasons[-1] == "not run: the time of the check was over"
    assert {place for place, reason in enumerate(reasons) if reason} == report.not_run


@pytest.mark.parametrize("within_s", [0.0, 1.0, 1.001])
async def test_a_check_without_time_finds_no_fault(within_s: float) -> None:
    report = await Sandbox().report(check("while True: pass", PASSES), within_s)
    assert (report.fault, report.not_run) == ("", {0})


async def test_reports_a_test_cut_by_the_deadline_as_not_run() -> None:
    program = "def f():\n    while True: pass"
    cut = await Sandbox().report(check(program, PASSES, timeout_s=30), within_s=3.0)
    assert (cut.not_run, cut.outcomes[0].reason) == ({0}, "not run: the time of the check was over")
    ran_out = await Sandbox().report(check(program, PASSES, timeout_s=1), WITHIN_S)
    assert (ran_out.not_run, ran_out.outcomes[0].reason) == (frozenset(), "ran longer than 1 s")


async def test_programs_that_hang_do_not_starve_those_behind_them() -> None:
    """Each running program takes one turn; then the waiting program runs before their second tests."""
    sandbox, done = Sandbox(), list[str]()

    async def one(name: str, program: str) -> SandboxReport:
        report = await sandbox.report(check(program, *[PASSES] * 3, timeout_s=2), WITHIN_S)
        done.append(name)
        return report

    hanging = [one("hangs", "def f():\n    while True: pass") for _ in range(CHECKS_AT_ONCE)]
    reports = await asyncio.gather(*hanging, one("honest", HONEST), one("honest", HONEST))
    assert done[:2] == ["honest"] * 2
    assert [len([outcome for outcome in report.outcomes if outcome.passed]) for report in reports] == [0] * 4 + [3, 3]


async def test_a_check_that_is_stopped_leaves_no_process() -> None:
    running = asyncio.create_task(
        Sandbox().report(check("def f():\n    while True: pass", "f()", timeout_s=60), WITHIN_S)
    )
    await until(lambda: any(children(warden) for warden in wardens(os.getpid())))
    (warden,) = wardens(os.getpid())
    (child,) = children(warden)
    running.cancel()
    await asyncio.wait({running})
    await until(lambda: not alive(warden) and not alive(child))


async def test_programs_end_with_a_killed_replica(tmp_path: Path) -> None:
    script = f"""
        import asyncio, tempfile
        from serve_deployments.sandbox.checks import Sandbox
        from tests.integration.sandbox.sandboxed import check
        tempfile.tempdir = {str(tmp_path)!r}
        asyncio.run(Sandbox().report(check("def f():\\n    while True: pass", "f()", timeout_s=60), 60.0))
    """
    replica = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT)
    await until(lambda: any(children(warden) for warden in wardens(replica.pid)), timeout_s=60)
    (warden,) = wardens(replica.pid)
    (child,) = children(warden)
    replica.send_signal(signal.SIGKILL)
    replica.wait()
    await until(lambda: not alive(warden) and not alive(child))
    await until(lambda: not list(tmp_path.glob("check-*")))
