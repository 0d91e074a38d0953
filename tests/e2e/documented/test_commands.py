"""The commands of the documentation as they are written, beside a running stack; those of make run in `.ci/run`."""

import asyncio
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.components.docs.blocks import ENDLESS, STACK_WITH_KEYS, WITH_KEYS, Block, blocks
from tests.components.docs.tables import ROOT
from tests.e2e.conftest import DELIBERATE, TASK, Stack, start_up, stop_up

pytestmark = pytest.mark.e2e

DOCUMENTED_URLS = ("http://127.0.0.1:8080", "localhost:8080")
CHOSEN_SECRET = "$(openssl rand -hex 32)"
WITHIN_S = 120
BLOCKS = [
    block
    for block in blocks()
    if block.language == "sh" and not all(each.startswith("make ") for each in block.commands)
]
REQUESTS = [
    block for block in blocks() if block.language == "json" and '"task":' in block.text and "…" not in block.text
]


def pages_of(mode: str) -> list[str]:
    return sorted({block.page for block in BLOCKS if block.mode == mode})


@dataclass(frozen=True)
class Terminal:
    folder: Path
    url: str
    variables: Mapping[str, str]

    def as_written(self, block: Block) -> str:
        text = block.text
        for url in DOCUMENTED_URLS:
            text = text.replace(url, self.url)
        return text.replace(CHOSEN_SECRET, self.variables.get("KEY_PEPPER", ""))

    async def start(self, script: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("bash", "-exo", "pipefail", "-c", script),
            cwd=self.folder,
            env={
                **os.environ,
                **self.variables,
                "PATH": f"{self.folder / 'bin'}:{DELIBERATE.parent}:{os.environ['PATH']}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    async def run(self, script: str) -> str:
        process = await self.start(script)
        async with asyncio.timeout(WITHIN_S):
            printed, _ = await process.communicate()
        # bash and a command may write at once, which can split a character.
        text = printed.decode(errors="replace")
        assert process.returncode == 0, text
        return text

    async def run_blocks(self, page: str, mode: str) -> str:
        written = [block for block in BLOCKS if block.page == page and block.mode == mode]
        return await self.run("\n".join(map(self.as_written, written)))


def folder_like_a_checkout(path: Path) -> Path:
    for name in ("examples", "openapi", ".venv"):
        (path / name).symlink_to(ROOT / name)
    (path / "bin").mkdir()
    curl = path / "bin" / "curl"
    curl.write_text(f'#!/bin/sh\nPATH="{os.environ["PATH"]}" exec curl --fail-with-body --max-time {WITHIN_S} "$@"\n')
    curl.chmod(0o755)
    return path


async def read_by_the_reader(client: httpx.AsyncClient) -> dict[str, str]:
    made = await client.post("/deliberations", json={"task": TASK, "strategy": "single"}, headers={"Prefer": "wait=60"})
    assert made.status_code == 200, made.text
    path = f"/deliberations/{made.json()['id']}/events?after=0&limit=1"
    page = (await client.get(path, headers={"Accept": "application/json"})).raise_for_status().json()
    return {"ID": made.json()["id"], "LAST": page["items"][0]["id"]}


@pytest.fixture
async def terminal(stack: Stack, tmp_path: Path) -> Terminal:
    folder = folder_like_a_checkout(tmp_path)
    (folder / ".deliberate").symlink_to(stack.data_dir)
    return Terminal(folder, stack.url, await read_by_the_reader(stack.client))


@pytest.fixture(scope="module")
def stack_with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any], str]]:
    (block,) = (each for each in BLOCKS if each.mode == STACK_WITH_KEYS)
    pepper, folder = secrets.token_hex(32), folder_like_a_checkout(tmp_path_factory.mktemp("keys"))
    (command,) = (each for each in block.commands if each.startswith("deliberate up"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY_PEPPER", pepper)
        process, ready = start_up(folder / ".deliberate", *shlex.split(command, comments=True)[2:])
    yield folder, ready, pepper
    stop_up(process)


@pytest.fixture
async def terminal_with_keys(stack_with_keys: tuple[Path, dict[str, Any], str]) -> AsyncIterator[Terminal]:
    folder, ready, pepper = stack_with_keys
    variables = {"KEY_PEPPER": pepper}
    printed = await Terminal(folder, ready["url"], variables).run("deliberate keys create reader --tenant docs")
    key = next(line for line in printed.splitlines() if line.startswith("dlb_"))
    yield Terminal(folder, ready["url"], {**variables, "KEY_ID": key.split("_")[1], "DELIBERATE_API_KEY": key})


@pytest.mark.parametrize("page", pages_of(""))
async def test_the_commands_of_a_page_succeed(terminal: Terminal, page: str) -> None:
    assert "Traceback" not in await terminal.run_blocks(page, "")


@pytest.mark.parametrize("page", pages_of(WITH_KEYS))
async def test_the_commands_of_a_page_about_keys_succeed(terminal_with_keys: Terminal, page: str) -> None:
    assert "Traceback" not in await terminal_with_keys.run_blocks(page, WITH_KEYS)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("examples/curl.sh", r"accepted: .*\ndeliberation\.accepted\n.*\ndeliberation\.completed\n.*colours"),
        ("python examples/python_client.py", r"propose: 3 calls.*\ncompleted\n(.*\n)?1\. dev-00\d  \d"),
        ("python examples/openai_client.py --agents 2", "completion tokens"),
    ],
)
async def test_an_example_takes_the_url_and_the_key_from_the_environment(
    terminal_with_keys: Terminal, command: str, shown: str
) -> None:
    task = shlex.quote('Name "three" colours.\nOne line each.')
    printed = await terminal_with_keys.run(f"export DELIBERATE_URL={terminal_with_keys.url}\n{command} {task}")
    assert re.search(shown, printed, re.DOTALL), printed


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.mode == ENDLESS], ids=str)
async def test_a_command_that_runs_until_ctrl_c_answers_and_stays(terminal: Terminal, block: Block) -> None:
    process = await terminal.start("exec 2>/dev/null\n" + terminal.as_written(block))
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            while not (line := await process.stdout.readline()).startswith((b"event:", b"id:", b":", b"retry:")):
                assert line, "it ended"
        assert process.returncode is None
    finally:
        os.killpg(process.pid, 15)
        await process.communicate()


@pytest.mark.parametrize("block", REQUESTS, ids=str)
async def test_a_documented_request_completes(stack: Stack, block: Block) -> None:
    response = await stack.client.post("/deliberations", json=json.loads(block.text), headers={"Prefer": "wait=60"})
    assert response.status_code == 200 and response.json()["status"] == "completed", response.text
    if block.page.endswith("execute.md"):
        assert response.json()["degraded"] is None and response.json()["verdict"]["ranking"][0]["score"] > 0.5


@pytest.mark.parametrize(
    "block", [each for each in blocks() if each.page == "docs/openai.md" and each.language == "python"], ids=str
)
async def test_a_python_program_for_openais_client_prints_an_answer(stack: Stack, tmp_path: Path, block: Block) -> None:
    program = block.text.replace(DOCUMENTED_URLS[0], stack.url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    async with asyncio.timeout(WITHIN_S):
        printed, _ = await process.communicate()
    assert process.returncode == 0 and printed.strip(), printed.decode()
