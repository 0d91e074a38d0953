"""Machines on which `up` runs, several of their properties in each start.

tests/integration/cli/test_machines.py has those that it refuses.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ONE_ROLE
from tests.e2e.shell_stacks import asked, names, running
from tests.integration.cli.apart import LOOPBACK_UP, may

pytestmark = pytest.mark.e2e

NOWHERE = "http://127.0.0.1:1"
PROXIES = {
    name: NOWHERE for each in ("http", "https", "all", "grpc") for name in (f"{each}_proxy", f"{each.upper()}_PROXY")
}


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
