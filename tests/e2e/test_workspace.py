"""The demonstrations of docs/workspaces.md as they are written: councils find out why a test fails."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.components.docs.blocks import Block, blocks
from tests.e2e.conftest import DELIBERATE, FAST, ONE_ROLE, own_stack

pytestmark = pytest.mark.e2e

WITHIN_S = 120
FAILED = "test_merge.py::test_merge ... FAIL"


def block_with(command: str) -> Block:
    (found,) = (each for each in blocks() if each.page == "docs/workspaces.md" and command in each.text)
    return found


async def run(folder: Path, script: str, **variables: str) -> str:
    environment = {**os.environ, "PATH": f"{DELIBERATE.parent}:{os.environ['PATH']}", **variables}
    process = await asyncio.create_subprocess_exec(
        "bash", "-euxo", "pipefail", "-c", script,
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(WITHIN_S):
        printed, _ = await process.communicate()
    text = printed.decode(errors="replace")
    assert process.returncode == 0, text
    return text


async def test_a_council_names_the_test_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await run(tmp_path, block_with("git init").text)
    repository = tmp_path / "merging"
    assert block_with("deliberate up").text == "WORKSPACES=$PWD deliberate up\n"
    monkeypatch.setenv("WORKSPACES", str(repository))
    async with own_stack(tmp_path / "data", "--agents", "local", "--roles", str(ONE_ROLE)) as stack:
        await stack.script(**FAST)
        variables = {"DELIBERATE_DATA_DIR": str(stack.data_dir), "DELIBERATE_URL": stack.url}
        printed = await run(repository, block_with("show last").text, **variables)
        over_files = await run(repository, block_with("--files .").text, **variables)
        sent, over_git = [
            (await stack.client.get(f"/deliberations/{listed['id']}")).json()
            for listed in (await stack.client.get("/deliberations")).json()["items"]
        ]
        pages = [
            await stack.client.get(
                f"/deliberations/{council['id']}/events?after=0&limit=1000", headers={"Accept": "application/json"}
            )
            for council in (over_git, sent)
        ]
        refused = await stack.client.post(
            "/deliberations", json={"task": "t", "workspace": {"git": str(tmp_path / "elsewhere")}}
        )
    commit = (await run(repository, "git rev-parse HEAD 2>/dev/null")).split()[-1]
    assert sent["status"] == over_git["status"] == "completed"
    assert {file["path"] for file in sent["workspace"]["files"]} == {"merge.py", "test_merge.py"}
    assert "completed" in over_files
    assert over_git["workspace"] == {"git": str(repository), "ref": "HEAD", "commit": commit}
    assert "completed" in printed and "run_tests" in printed and FAILED in printed
    for page in pages:
        used = [event for event in json.loads(page.text)["items"] if event["type"] == "tool.used"]
        assert {use["server"] for use in used} == {"workspace"}
        assert {use["role"] for use in used} == {"DEV"} and len({use["agent_id"] for use in used}) == 3
        assert any(FAILED in use["text"] for use in used)
    assert refused.status_code == 422
