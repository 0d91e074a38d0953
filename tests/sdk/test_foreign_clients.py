"""Clients that nobody here wrote, against the whole stack."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import BrowserContext

from app.deliberation.strategies import STRATEGIES
from sdk import build
from tests.browser.conftest import chromium
from tests.components.inputs.files import picture
from tests.sdk.conftest import Page, json_of, output_of

__all__ = ["chromium"]
pytestmark = pytest.mark.sdk

CLIENTS = Path(__file__).with_name("clients")
# Compaction is an optional operation, whose absence is no failure.
FORMATS = ("openai-chat", "open-responses")


async def in_node(script: str, *arguments: str) -> Any:
    """The last line of JSON of a module that imports npm's packages."""
    return await json_of([build.NODE, "--input-type=module", "--eval", script, *arguments])


async def in_python(*command: str | Path) -> Any:
    return await json_of([build.python(), *command])


def check_openai(found: dict[str, Any]) -> None:
    assert {name.partition("/")[0] for name in found["models"]} == {*STRATEGIES}
    assert found["whole"] and found["deliberation"]
    assert found["streamed"] == found["gathered"] == found["whole"]
    assert found["usage"]["total_tokens"] > 0
    assert found["refused"] == [True, 404, "model_not_found", "model"]


async def test_openais_javascript_client_works_in_node(quick_url: str) -> None:
    script = (CLIENTS / "openai_client.mjs").read_text()
    run = 'const { default: OpenAI } = await import("openai");\n'
    check_openai(
        await in_node(f"{script}\n{run}console.log(JSON.stringify(await ask(OpenAI, process.argv[1])));", quick_url)
    )


async def test_openais_javascript_client_works_in_a_page_of_a_listed_origin(
    quick_url: str, page_server: Page, chromium: BrowserContext
) -> None:
    page = await chromium.new_page()
    asked = "async (url) => { const { ask, OpenAI } = window.clients; return await ask(OpenAI, url) }"
    await page.goto(page_server.listed)
    await page.wait_for_function("window.clients")
    check_openai(await page.evaluate(asked, quick_url))
    await page.goto(page_server.unlisted)
    await page.wait_for_function("window.clients")
    refused = (
        "async (url) => { try { await window.clients.ask(window.clients.OpenAI, url) } catch (e) { return e.message } }"
    )
    assert "Connection error" in await page.evaluate(refused, quick_url)
    await page.close()


async def test_openais_javascript_client_parses_a_schema_of_zod(quick_url: str) -> None:
    found = await in_node((CLIENTS / "zod.mjs").read_text(), quick_url)
    assert found == ["goal", "due", "risk", "steps"]


async def test_openais_javascript_client_uploads_a_file_and_asks_about_a_picture(quick_url: str) -> None:
    picture_url = f"data:image/png;base64,{base64.b64encode(picture('PNG')).decode()}"
    told = await in_node((CLIENTS / "openai_files.mjs").read_text(), quick_url, picture_url)
    assert told["text"] == "Sales of March: 12.\n" and all(told["answers"])
    async with httpx.AsyncClient(base_url=quick_url) as client:
        for id in told["ids"]:
            deliberation = (
                await client.get(f"/deliberations/{id.removeprefix('chatcmpl-').removeprefix('resp_')}")
            ).json()
            assert [evidence["file"]["kind"] for evidence in deliberation["evidence"]] == ["picture", "text"]


async def test_the_ai_sdk_works(quick_url: str) -> None:
    found = await in_node((CLIENTS / "ai_sdk.mjs").read_text(), quick_url)
    assert found["whole"] and found["streamed"] == found["whole"] and found["finish"] == "stop"
    assert found["reasoning"].startswith("**propose**") and "1 of 1 outcomes counted" in found["reasoning"]
    assert found["usage"]["totalTokens"] > 0
    assert (found["object"], found["refused"]) == (["name", "warm", "mixedFrom"], 404)


async def test_langchain_works(quick_url: str) -> None:
    found = await in_python(CLIENTS / "langchain_client.py", quick_url)
    assert found["whole"] and found["streamed"] == found["whole"]
    whole, streamed = found["tokens"]
    assert whole == streamed > 0
    assert found["colour"] == ["name", "first_named", "family", "shares"]
    assert found["refused"] == "model_not_found"


async def test_litellms_health_probe_finds_a_healthy_model(quick_url: str) -> None:
    healthy = await in_python(CLIENTS / "litellm_probe.py", quick_url)
    assert healthy == {"council/DEV": None, "vote/QA": None}


@pytest.mark.parametrize("end", ["", "/"])
async def test_a2as_javascript_client_works(quick_url: str, end: str) -> None:
    results = await in_node((CLIENTS / "a2a.mjs").read_text(), f"{quick_url}{end}")
    assert results["whole"] == results["again"] != results["streamed"]
    assert results["kinds"] == ["task", "statusUpdate", "artifactUpdate"]
    assert results["listed"][:2] == [results["streamed"], results["whole"]]
    assert results["refused"] == "TaskNotCancelableError"


async def test_googles_adk_asks_a_council_as_a_remote_agent(quick_url: str) -> None:
    first, second = await in_python("-W", "ignore", CLIENTS / "adk_client.py", quick_url)
    assert "Name a colour" in first and "Name another one" in second


@pytest.mark.parametrize("format", FORMATS)
async def test_answers_comply_with_openais_specifications(quick_url: str, format: str) -> None:
    command = [build.python().with_name("llm-comply"), "--format", format, "--base-url", f"{quick_url}/v1"]
    # It does not know two events that the specification has.
    options = ["--api-key", "unused", "--model", "single/DEV", "--json", "--ignore", "reasoning_summary_text"]
    # A failed case makes the exit code 1.
    report = json.loads(await output_of(["bash", "-c", '"$@" || true', "bash", *command, *options]))
    assert [result for result in report["results"] if result["status"] == "failed"] == []
    # OpenAI's answers have an empty list of them, which its specification does not require.
    passed = [result for result in report["results"] if result["status"] == "passed" and "compact" not in result["id"]]
    warnings = [warning for result in passed for warning in result.get("warnings", ())]
    assert all("'annotations'" in warning for warning in warnings), warnings
