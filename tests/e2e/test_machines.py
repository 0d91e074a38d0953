"""Machines on which `up` runs, several of their properties in each start.

tests/integration/cli/test_machines.py has those that it refuses.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import DELIBERATE, ONE_ROLE, TASK
from tests.integration.cli.test_machines import LOOPBACK_UP, may

pytestmark = pytest.mark.e2e

NOWHERE = "http://127.0.0.1:1"
PROXIES = {
    name: NOWHERE for each in ("http", "https", "all", "grpc") for name in (f"{each}_proxy", f"{each.upper()}_PROXY")
}


@contextmanager
def running(script: str, here: Path, variables: Mapping[str, str], around: Sequence[str] = ()) -> Generator[list[Any]]:
    """A stack that the shell starts, with the events until it is ready; it stops in order."""
    command = [*around, "sh", "-c", f"{script.format(up=f'exec {DELIBERATE} up --json')}"]
    process = subprocess.Popen(command, cwd=here, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    events = list[Any]()
    try:
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "ready":
                break
        yield events
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and json.loads(rest.splitlines()[-1])["left"] == [], rest


def names(events: Sequence[Any], event: str) -> list[str]:
    return [each["name"] for each in events if each["event"] == event]


def asked(url: str, around: Sequence[str] = ()) -> Any:
    command = [*around, str(DELIBERATE), "ask", TASK, "--url", url, "--strategy", "single", "--agents", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_names_and_variables_of_others_change_no_part(tmp_path: Path) -> None:
    """A path with letters, marks and spaces, through a link; modules and variables of other programs; open files."""
    here = tmp_path / "ü b" / "100%41? 'x' $HOME #;"
    (here / "data").mkdir(parents=True)
    (here / "lïnk").symlink_to("data")
    (here / "path" / "app").mkdir(parents=True)
    foreign = "raise ImportError('a module of another program')\n"
    for module in ("path/app/__init__.py", "path/serve_deployments.py", "app.py", "serve_deployments.py", "yaml.py"):
        (here / module).write_text(foreign)
    variables = {
        **{name: NOWHERE for each in PROXIES for name in (each, each.upper())},
        "NO_PROXY": "",
        "RAY_ADDRESS": "127.0.0.1:1",
        "RAY_TMPDIR": "/nowhere",
        "NATS_URL": "nats://127.0.0.1:1",
        "PORT": "none",
        "HOST": "nowhere.invalid",
        "ARCHIVE_PORT": "tcp://127.0.0.1:1",
        "PYTHONPATH": str(here / "path"),
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "error",
        "TMPDIR": f"/no such place/{'x' * 100}",
        "HOME": "/nowhere",
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "C",
        "TZ": "No/Where",
        "LOG_LEVEL": "WARNING",
    }
    script = f"umask 000; ulimit -Sn 256; {{up}} --port 0 --data-dir lïnk/d --roles '{ONE_ROLE}'"
    with running(script, here, variables) as events:
        assert names(events, "child_died") == []
        assert asked(events[-1]["url"])["status"] == "completed"
        held = here / "data" / "d"
        assert {"nats", "archive.db", "logs"} <= {each.name for each in held.iterdir()}
        assert [each for each in held.rglob("*") if not each.is_symlink() and each.stat().st_mode & 0o077] == []


def test_a_small_machine_of_a_user_without_a_name_runs_it(tmp_path: Path) -> None:
    """No IPv6, 1 MiB of shared memory, a path of 480 bytes, a home that cannot be written, no other network."""
    around = ("unshare", "--map-root-user", "--mount", "--net")
    if not may((*around, "sh", "-c")):
        pytest.skip("this machine forbids name spaces")
    here = Path(f"{tmp_path}{'/dd' * 150}"[:470])
    here.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    script = (
        f"echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; {sys.executable} -S -c '{LOOPBACK_UP}'; "
        f"mount -t tmpfs -o size=1m tmpfs /dev/shm; mount -t tmpfs -o ro tmpfs {tmp_path}/home; umask 077; "
        f"{{up}} --port 0 --agents nats --data-dir {here} --roles {ONE_ROLE}"
    )
    with running(script, tmp_path, {"HOME": f"{tmp_path}/home"}, around) as events:
        assert names(events, "child_died") == []
        pid = json.loads((here / "stack.json").read_text())["supervisor_pid"]
        inside = ("nsenter", f"--target={pid}", "--user", "--net", "--mount", "--preserve-credentials")
        assert asked(events[-1]["url"], inside)["status"] == "completed"
