"""Machines on which `up` cannot run: each is refused by name before anything starts.

tests/e2e/test_machines.py has those on which it runs.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.apart import APART, DELIBERATE, HERE, LOOPBACK_UP, MOUNTED, NAMELESS, may

PEPPER = "KEY_PEPPER=" + "p" * 40
DEEP = "/".join(5 * ["d" * 100])

# What surrounds `up`, the shell's words before it, its options, the error's code, and a part of its sentence.
REFUSED: dict[str, tuple[tuple[str, ...], str, str, str, str]] = {
    "no UTF-8 in the path": (HERE, "", "--data-dir \udcff", "data_dir_unusable", "not UTF-8"),
    "a locale without UTF-8": (
        HERE,
        "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0;",
        "--data-dir ü",
        "data_dir_unusable",
        "this locale is not",
    ),
    "a line break in the path": (HERE, "", "--data-dir 'a\nb'", "data_dir_unusable", "cannot be printed"),
    "a path that is too long": (HERE, "", f"--data-dir {DEEP}", "data_dir_unusable", "longer than 480 bytes"),
    "a name that is too long": (HERE, "", f"--data-dir {'ü' * 128}", "data_dir_unusable", "name too long"),
    "a file in place of the directory": (HERE, "touch d;", "--data-dir d", "data_dir_unusable", "File exists"),
    "a link to nothing": (HERE, "ln -s nothing d;", "--data-dir d", "data_dir_unusable", "File exists"),
    "a link to itself": (HERE, "ln -s d d;", "--data-dir d", "data_dir_unusable", "File exists"),
    "a working directory that is gone": (
        HERE,
        "mkdir gone && cd gone && rmdir ../gone;",
        "",
        "data_dir_unusable",
        "No such file",
    ),
    "a file system of the kernel": (HERE, "", "--data-dir /proc/d", "data_dir_unusable", "No such file"),
    "no right to write": (NAMELESS, "mkdir -m 555 d;", "--data-dir d/e", "data_dir_unusable", "Permission denied"),
    "a read-only disk": (
        MOUNTED,
        "mkdir d && mount -t tmpfs -o ro tmpfs d;",
        "--data-dir d/e",
        "data_dir_unusable",
        "Read-only file system",
    ),
    "a disk of 4 MiB": (
        MOUNTED,
        "mkdir d && mount -t tmpfs -o size=4m tmpfs d;",
        "--data-dir d/e",
        "data_dir_unusable",
        "4 MiB are free there, and 16 are needed",
    ),
    "a disk without inodes": (
        MOUNTED,
        "mkdir d && mount -t tmpfs -o nr_inodes=2 tmpfs d;",
        "--data-dir d/e",
        "data_dir_unusable",
        "No space left",
    ),
    "no room in /tmp for Ray": (
        MOUNTED,
        "mount -t tmpfs tmpfs /mnt && mount -t tmpfs -o size=4m tmpfs /tmp;",
        "--agents ray --data-dir /mnt/d",
        "ray_dir_unusable",
        "/tmp cannot hold Ray's files: 4 MiB are free",
    ),
    "few open files": (HERE, "ulimit -n 512;", "", "open_files_few", "512 files may be open"),
    "no loopback": (APART, "", "", "address_unusable", "127.0.0.1 cannot be used"),
    "no IPv6": (
        APART,
        f"echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; {sys.executable} -S -c '{{loopback_up}}';",
        "--host ::1",
        "address_unusable",
        "::1 cannot be used",
    ),
    "an address of another machine": (
        HERE,
        f"export {PEPPER};",
        "--host 192.0.2.1",
        "address_unusable",
        "192.0.2.1 cannot be used",
    ),
    "a name that is not known": (
        HERE,
        f"export {PEPPER};",
        "--host nowhere.invalid",
        "address_unusable",
        "nowhere.invalid cannot be used",
    ),
    "an address without keys": (HERE, "", "--host 0.0.0.0", "usage", "set KEY_PEPPER"),
    "a setting of another program": (HERE, "export CONTEXT=prod;", "", "invalid_setting", "neither true nor false"),
    "a level of another program": (HERE, "export LOG_LEVEL=verbose;", "", "invalid_setting", "LOG_LEVEL"),
    "a database of another kind": (HERE, "export DATABASE_URL=mysql://u:p@h/d;", "", "invalid_setting", "'mysql'"),
    "a file of roles that is gone": (HERE, "export ROLES_FILE=gone.yaml;", "", "invalid_setting", "gone.yaml"),
    "a key that is gone": (HERE, "export LOG_KEY_FILE=gone;", "", "invalid_setting", "gone"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_machine_is_refused_by_name_before_anything_starts(name: str, tmp_path: Path) -> None:
    around, before, options, code, sentence = REFUSED[name]
    if not may(around):
        pytest.skip(f"this machine forbids {shlex.join(around)}")
    before = before.replace("{loopback_up}", LOOPBACK_UP)
    agents = "" if "--agents" in options else "--agents nats"
    script = f"{before} exec {DELIBERATE} up --json --port 0 {agents} {options}"
    process = await asyncio.create_subprocess_exec(
        *around, os.fsencode(script), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()

    assert process.returncode == 2, err.decode()
    error = json.loads(err)
    assert error["code"] == code and sentence in err.decode() and error["remedy"], error
    assert b"child_started" not in out
