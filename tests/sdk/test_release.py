"""`make release`, run twice on one tag in two places; each of its packages asks a council."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sdk import build
from tests.deploy.git_commands import git
from tests.e2e.terminal import TASK, Terminal
from tests.e2e.wheels import installed
from tests.sdk.conftest import output_of

pytestmark = pytest.mark.sdk

ROOT = build.HERE.parent
LINKED = (
    *("node_modules", "package.json", ".packages.stamp"),
    *(name for made in build.ENVIRONMENTS for name in (made, f".{made}.stamp")),
)
PYTHON = f"""
import sys
from deliberation_client import Client
from deliberation_client.api.deliberations import create_deliberation
from deliberation_client.models import DeliberationRequest

with Client(sys.argv[1], headers={{"Accept": "application/json"}}, timeout=70) as client:
    body = DeliberationRequest(task="{TASK}", role="DEV", num_agents=3)
    answer = create_deliberation.sync(client=client, body=body, prefer="wait=60")
print(answer.status, answer.verdict.winner)
"""
TYPESCRIPT = f"""
import {{ createDeliberation }} from "deliberation-client";
import {{ createClient, createConfig }} from "deliberation-client/client";
import {{ EventStream }} from "deliberation-client/stream";

const baseUrl = process.argv[1];
const client = createClient(createConfig({{ baseUrl, headers: {{ Accept: "application/json" }} }}));
const body = {{ task: "{TASK}", role: "DEV", num_agents: 3 }};
const {{ data }} = await createDeliberation({{ client, body }});
for await (const event of new EventStream(baseUrl, data.id, {{ after: "0" }}))
  if (event.type === "deliberation.completed") console.log("completed", event.verdict.winner);
"""


# The folder of each release, and what was printed.
Releases = tuple[tuple[Path, str], tuple[Path, str]]


def tagged_tree(root: Path) -> Path:
    """A repository of the files of this checkout, with a dated changelog and a tag."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(lambda each: (ROOT / each).is_file(), listed.stdout.decode().splitlines()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    changelog = root / "CHANGELOG.md"
    changelog.write_text(re.sub(r"^(## \[.*\] - ).*$", r"\g<1>2026-01-02", changelog.read_text(), flags=re.M))
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "--message", "a")
    git(root, "tag", f"v{json.loads((root / 'sdk/typescript/package.json').read_text())['version']}")
    return root


async def released(tree: Path, umask: int, **environment: str) -> tuple[Path, str]:
    """A release of a tree and what was printed; npm's packages and the generators are those of this checkout."""
    work = tree.parent / f"{tree.name}.sdk"
    work.mkdir()
    for name in LINKED:
        (work / name).symlink_to(build.work() / name)
    script = f'umask {umask:o}; exec "$0" -m deploy.release'
    programs = f"{tree.parent / 'programs'}{os.pathsep}{os.environ['PATH']}"
    settings = {**environment, "SDK_DIR": str(work), "PATH": programs}
    return tree / "dist", await output_of(["sh", "-c", script, sys.executable], cwd=tree, **settings)


@pytest.fixture(scope="module")
async def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    """Two releases of one tag, which differ in folder, umask, time zone, hash seed and the times of files."""
    place = tmp_path_factory.mktemp("release")
    programs = place / "programs"
    programs.mkdir()
    for name in ("podman", "docker"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    tree = await asyncio.to_thread(tagged_tree, place / "a")
    git(place, "clone", "--quiet", str(tree), str(place / "a longer name"))
    first = released(tree, 0o022, TZ="UTC", PYTHONHASHSEED="1")
    second = released(place / "a longer name", 0o077, TZ="Asia/Tokyo", PYTHONHASHSEED="2")
    return await asyncio.gather(first, second)


def found(dist: Path, pattern: str) -> Path:
    (path,) = dist.glob(pattern)
    return path


def test_two_builds_have_the_same_bytes(releases: Releases) -> None:
    first, second = ({path.name: path.read_bytes() for path in dist.iterdir()} for dist, _ in releases)
    assert [name for name in first.keys() | second.keys() if first.get(name) != second.get(name)] == []
    kinds = (
        "*.whl",
        "*.cdx.json",
        "asyncapi.yaml",
        "*.schema.json",
        "openapi*.json",
        "*.lock",
        "*.tar.gz",
        "*client*.tgz",
        "*gateway*.tgz",
    )
    assert all([*releases[0][0].glob(kind)] for kind in kinds)


async def test_the_sums_are_those_of_all_files(releases: Releases) -> None:
    dist, _ = releases[0]
    checked = await output_of(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist)
    listed = {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    assert {line.removesuffix(": OK") for line in checked.splitlines()} == listed


def test_a_missing_image_is_named(releases: Releases) -> None:
    assert releases[0][1].splitlines()[-1] == "left out: the image, because neither of podman, docker answers here"


def test_the_archives_hold_the_licence_and_no_tests(releases: Releases) -> None:
    dist, _ = releases[0]
    for archive in (found(dist, "*.tar.gz"), found(dist, "*client*.tgz")):
        with tarfile.open(archive) as members:
            names = [name.partition("/")[2] for name in members.getnames()]
        assert "LICENSE" in names and not [name for name in names if name.startswith(("tests", "build"))]


@pytest.fixture(scope="module")
async def terminal(releases: Releases, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Terminal, str]]:
    """A terminal in an empty folder, and the URL of a stack of the wheel."""
    place = tmp_path_factory.mktemp("wheel")
    programs = await asyncio.to_thread(installed, found(releases[0][0], "deliberation_gateway*.whl"), place / "wheel")
    folder = place / "empty"
    folder.mkdir()
    terminal = Terminal(folder, programs)
    async with terminal.up("--port", "0", "--simulate", "") as stack:
        yield terminal, stack["url"]


async def test_the_wheel_asks_a_council(terminal: tuple[Terminal, str]) -> None:
    assert "completed" in await terminal[0].deliberate("ask", TASK, "--role", "DEV", "--watch")


async def test_the_sdist_asks_a_council(releases: Releases, terminal: tuple[Terminal, str], tmp_path: Path) -> None:
    programs = await asyncio.to_thread(installed, found(releases[0][0], "*.tar.gz"), tmp_path / "sdist")
    asking = Terminal(terminal[0].folder, programs)
    assert "completed" in await asking.deliberate("ask", TASK, "--role", "DEV", "--watch")


async def test_the_python_client_asks_a_council(
    releases: Releases, terminal: tuple[Terminal, str], tmp_path: Path
) -> None:
    (needed,) = build.work().glob("venv/lib/python*/site-packages")
    wheel = found(releases[0][0], "deliberation_client*.whl")
    programs = await asyncio.to_thread(installed, wheel, tmp_path / "client", str(needed))
    printed = await output_of([programs / "python", "-c", PYTHON, terminal[1]], cwd=tmp_path)
    assert re.fullmatch(r"completed dev-00\d\n", printed)


async def test_the_typescript_client_asks_a_council(
    releases: Releases, terminal: tuple[Terminal, str], tmp_path: Path
) -> None:
    install = [build.NODE, build.NPM, "install", "--offline", "--ignore-scripts", "--no-audit", "--silent"]
    await output_of([*install, found(releases[0][0], "*client*.tgz")], cwd=tmp_path)
    printed = await output_of([build.NODE, "--input-type=module", "--eval", TYPESCRIPT, terminal[1]], cwd=tmp_path)
    assert re.fullmatch(r"completed dev-00\d\n", printed)
