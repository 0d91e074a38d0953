import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from app.deliberation.errors import SandboxUnavailable
from serve_deployments.sandbox import checks
from tests.integration.sandbox.programs import HONEST
from tests.integration.sandbox.sandboxed import PASSES, altered, ran

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")

SYSCALLS = "import serve_deployments.sandbox.syscalls as calls; calls._NUMBERS[{!r}] = (9999, 9999); "
LACKING = {
    "no Landlock": (SYSCALLS.format("landlock_create_ruleset"), "Landlock: .*Function not implemented"),
    "Landlock is not for us": (
        SYSCALLS.format("landlock_restrict_self"),
        "landlock_restrict_self: Function not implemented",
    ),
    "no seccomp": (SYSCALLS.format("seccomp"), "seccomp: Function not implemented"),
    "another machine": ("import os; os.uname = lambda: type('U', (), {'machine': 'vax'}); ", "no list .* for vax"),
    "Landlock that does nothing": (
        "import serve_deployments.sandbox.landlock as l; l.Landlock.restrict = lambda self: None; ",
        "files can be had in spite of all that was set",
    ),
    "filters that let all pass": (
        "import serve_deployments.sandbox.seccomp as s; s.allowed = lambda *_: s.ALLOW; ",
        "the network can be had in spite of all that was set",
    ),
    "calls that cannot be counted": (
        "import serve_deployments.sandbox.seccomp as s; s._NEW_LISTENER = 1 << 30; ",
        "seccomp: Invalid argument",
    ),
}


@pytest.mark.parametrize(("boot", "reason"), LACKING.values(), ids=LACKING)
async def test_runs_nothing_where_a_kernel_feature_is_missing(boot: str, reason: str, tmp_path: Path) -> None:
    with altered(boot), pytest.raises(SandboxUnavailable, match=f"the sandbox cannot isolate here: {reason}"):
        await ran(f"open({str(tmp_path / 'ran')!r}, 'w')", PASSES)
    assert not (tmp_path / "ran").exists()


async def test_a_broken_warden_makes_the_sandbox_unavailable() -> None:
    with altered("import os; os._exit(1); "), pytest.raises(SandboxUnavailable, match="the sandbox broke off"):
        await ran(HONEST)


def interpreter_for_others() -> str | None:
    for path in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        with suppress(OSError):
            version = subprocess.run(
                [path, "-c", "import sys; print(sys.version_info >= (3, 11))"], user=10001, capture_output=True
            )
            if version.stdout == b"True\n":
                return path
    return None


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change its user")
async def test_a_user_without_any_privilege_has_the_same_sandbox(tmp_path: Path) -> None:
    """As in a container: user 10001, without capabilities and means to gain them."""
    python = interpreter_for_others()
    if python is None:
        pytest.skip("no Python here that another user may run")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chown(directory, 10001, 10001)
        expected = {"user": 10001, "fork": 0, "kill": None, "own": None, "out": None}
        tests = [{"call": name, "arguments": [], "expected": value} for name, value in expected.items()]
        program = """
            import os, threading
            def user(): return os.getuid()
            def fork(): os.fork()
            def kill(): os.kill(os.getppid(), 9)
            def own():
                open('x', 'w').write('y')
                thread = threading.Thread(target=print)
                thread.start()
                thread.join()
            def out(): os.listdir('/')
        """
        order = {"directory": directory, "program": textwrap.dedent(program), "tests": tests, "timeout_s": 20}
        order |= {"memory_mb": 256, "deadline_s": 60.0}
        command = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"]
        command += ["--no-new-privs", "--bounding-set=-all"]
        warden = subprocess.Popen(
            [*command, python, *checks._COMMAND[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, cwd="/"
        )
        assert warden.stdin is not None and warden.stdout is not None
        warden.stdin.write(json.dumps(order).encode() + b"\n")
        warden.stdin.flush()
        reply = json.loads(await asyncio.to_thread(warden.stdout.read))
        warden.stdin.close()
        warden.wait()
    passed = [outcome["passed"] for outcome in reply["report"]["outcomes"]]
    assert [name for name, passes in zip(expected, passed, strict=True) if passes] == ["user", "own"]
