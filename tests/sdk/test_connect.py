"""Each block of docs/connect.md runs as it is written against the whole stack, if an index has its client."""

import json
import shlex
from pathlib import Path

import httpx
import pytest
from playwright.async_api import BrowserContext

from sdk import build
from tests.browser.conftest import chromium
from tests.components.docs.blocks import Block, blocks
from tests.sdk.conftest import Page, output_of, pace
from tests.sdk.recorder import Recorder

__all__ = ["chromium"]
pytestmark = pytest.mark.sdk

URL = "http://127.0.0.1:8080"
TASK = "Name a colour."
ESBUILD = build.tool("esbuild", "bin/esbuild")
CLAUDE = build.tool("@anthropic-ai/claude-code", "cli-wrapper.cjs")
MOUNT = 'import { createRoot } from "react-dom/client";\nimport { App } from "./app";\n'
MOUNT += 'createRoot(document.getElementById("root")!).render(<App />);\n'
EVALUATION = Path(__file__).parent / "clients" / "inspect_task.py"


def written(*languages: str) -> list[Block]:
    return [each for each in blocks() if each.page == "docs/connect.md" and each.language in languages]


@pytest.mark.parametrize("block", written("python", "ts"), ids=str)
async def test_a_library_prints_an_answer(quick_url: str, block: Block) -> None:
    node = [build.NODE, "--input-type=module", "--eval"]
    command = [build.python(), "-c"] if block.language == "python" else node
    printed = await output_of([*command, block.text.replace(URL, quick_url)])
    assert len(printed.split()) >= 3, printed


async def output_of_block(block: Block, url: str, folder: Path, programs: Path, **environment: str) -> str:
    """The output of a block of `sh` in a folder, with the programs of another one."""
    script = f"PATH={programs}:$PATH\n{block.text.replace(URL, url)}"
    return await output_of(["bash", "-eo", "pipefail", "-c", script], folder, **environment)


async def asked_for(url: str, route: str) -> float:
    async with httpx.AsyncClient() as client:
        lines = (await client.get(f"{url}/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if "gateway_requests_total" in line and route in line)


async def test_inspect_evaluates_a_council_by_responses_and_by_chat_completions(quick_url: str, tmp_path: Path) -> None:
    (block,) = (each for each in written("sh") if "inspect eval" in each.text)
    (tmp_path / "task.py").symlink_to(EVALUATION)
    routes = ("/v1/responses", "/v1/chat/completions")
    before = [await asked_for(quick_url, f'"{route}"') for route in routes]
    settings = {"INSPECT_LOG_FORMAT": "json", "INSPECT_DISPLAY": "plain"}
    printed = await output_of_block(block, quick_url, tmp_path, build.python().parent, **settings)
    logs = [json.loads(path.read_text()) for path in (tmp_path / "logs").glob("*.json")]
    assert [log["status"] for log in logs] == ["success", "success"], printed
    for log in logs:
        assert all(sample["output"]["choices"][0]["message"]["content"] for sample in log["samples"]), printed
        assert sum(each["total_tokens"] for each in log["stats"]["model_usage"].values()) > 0
    after = [await asked_for(quick_url, f'"{route}"') for route in routes]
    # Inspect asks at least once for each sample.
    assert all(now - then >= len(logs[0]["samples"]) for now, then in zip(after, before, strict=True)), (before, after)


async def test_claude_code_connects(quick_url: str, tmp_path: Path) -> None:
    (block,) = (each for each in written("sh") if "claude mcp" in each.text)
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    # No install script runs, which would put the program itself there.
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, CLAUDE))} "$@"\n')
    program.chmod(0o755)
    settings = {"HOME": str(tmp_path), "DELIBERATE_API_KEY": "unused", "DISABLE_AUTOUPDATER": "1"}
    printed = await output_of_block(block, quick_url, tmp_path, program.parent, **settings)
    assert f"deliberation: {quick_url}/mcp (HTTP)" in printed and "Connected" in printed, printed


def bundled(block: Block, url: str, folder: Path) -> list[str | Path]:
    (folder / "app.tsx").write_text(block.text.replace(URL, url))
    (folder / "mount.tsx").write_text(MOUNT)
    (folder / "index.html").write_text('<!doctype html><div id="root"></div><script src="page.js"></script>')
    options = ["--bundle", "--jsx=automatic", '--define:process.env.NODE_ENV="production"']
    fonts = [f"--loader:.{kind}=dataurl" for kind in ("woff", "woff2", "ttf")]
    return [*ESBUILD, folder / "mount.tsx", *options, *fonts, f"--outfile={folder / 'page.js'}"]


@pytest.mark.parametrize("block", written("tsx"), ids=str)
async def test_a_front_end_shows_the_stages_and_the_verdict(
    stack: dict[str, str], recorder: Recorder, page_server: Page, chromium: BrowserContext, block: Block
) -> None:
    await pace(stack, 100)
    url = recorder.url
    folder = page_server.folder / f"line-{block.line}"
    folder.mkdir()
    await output_of(bundled(block, url, folder), NODE_PATH=str(build.work() / "node_modules"))
    page = await chromium.new_page()
    async with page.expect_response("**/ag-ui") as answered:
        await page.goto(f"{page_server.listed}{folder.name}/")
        await page.get_by_role("textbox").fill(TASK)
        await page.keyboard.press("Enter")
    id = (await answered.value).headers["x-deliberation-id"]
    for stage in ("propose", "critique"):
        await page.get_by_role("listitem").filter(has_text=stage).first.wait_for()
    verdict = page.locator(f'[data-message-id="{id}.verdict.0"]')
    await verdict.wait_for()
    rest = (await page.request.get(f"{url}/deliberations/{id}")).json()
    first, *_ = (await rest)["verdict"]["content"].splitlines()
    await verdict.get_by_text(first).wait_for()
    await page.close()
