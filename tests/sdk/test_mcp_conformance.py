"""The protocol's own conformance suite against a running stack, in both eras.

Its task scenarios call tools of a test server. A proxy gives them such tools, each of which is a call of ours.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from sdk import build
from tests.sdk.conftest import output_of

pytestmark = pytest.mark.sdk

CONFORMANCE = build.tool("@modelcontextprotocol/conformance", "dist/index.js")
# The scenarios that need no tools, prompts or resources of a test server.
PLAIN = {
    "2025-11-25": (
        "server-initialize",
        "ping",
        "tools-list",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
    ),
    "2026-07-28": (
        *("tools-list", "resources-list", "prompts-list", "sep-2164-resource-not-found", "caching"),
        *("dns-rebinding-protection", "http-header-validation", "server-stateless"),
    ),
}
SINGLE = {"task": "Name a colour.", "strategy": "single", "num_agents": 1, "seed": 7}
# The scenarios' tools, as calls of ours.
FIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "greet": ("list_strategies", {}),
    "slow_compute": ("deliberate", SINGLE),
    "confirm_delete": ("deliberate", SINGLE),
    "failing_job": ("deliberate", {**SINGLE, "constraints": {"timeout_seconds": 1, "on_deadline": "fail"}}),
}
UNMET = {
    # Not testable, says the suite, without tools of its test server.
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream",
        "sep-2575-server-no-log-without-loglevel",
    },
    # No task of ours fails by a protocol's error: a deliberation that fails is a tool's failure.
    "tasks-lifecycle": {"sep-2663-tasks-get-status-failed"},
    # The words of the test server's tool are wanted.
    "tasks-request-headers": {"tasks-headers-tolerate-mcp-method-on-tools-call"},
}
TASKS = ("tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-headers")
TASKS += ("tasks-request-state-removal", "tasks-dispatch-and-envelope")


def checks_in(folder: Path) -> list[dict[str, Any]]:
    (written,) = folder.rglob("checks.json")
    return json.loads(written.read_text())


async def failed(url: str, scenario: str, version: str, folder: Path) -> tuple[dict[str, str], int]:
    """The failed checks of a scenario with their reasons, and how many passed."""
    # `--force`, because extensions belong to no version of the protocol.
    options = ["--scenario", scenario, "--spec-version", version, "--force", "--output-dir", str(folder)]
    with suppress(AssertionError):  # of the exit code, which says no more than the checks
        await output_of([*CONFORMANCE, "server", "--url", url, *options])
    checks = checks_in(folder)
    passed = sum(check["status"] == "SUCCESS" for check in checks)
    unmet = ("FAILURE", "WARNING")
    return {check["id"]: check.get("errorMessage", "") for check in checks if check["status"] in unmet}, passed


@pytest.mark.parametrize(("version", "scenario"), [(each, name) for each, names in PLAIN.items() for name in names])
async def test_a_scenario_passes(quick_url: str, version: str, scenario: str, tmp_path: Path) -> None:
    faults, passed = await failed(f"{quick_url}/mcp", scenario, version, tmp_path)
    assert faults.keys() == UNMET.get(scenario, set()), faults
    assert passed


@asynccontextmanager
async def with_fixtures(url: str) -> AsyncGenerator[str, None]:
    async def forward(request: web.Request) -> web.Response:
        sent, headers = await request.json(), dict(request.headers)
        params = sent.get("params", {})
        if sent.get("method") == "tools/call" and params.get("name") in FIXTURES:
            tool, arguments = FIXTURES[params["name"]]
            if headers.get("Mcp-Name") == params["name"]:
                headers["Mcp-Name"] = tool
            params.update(name=tool, arguments=arguments)
        content = json.dumps(sent).encode()
        for name in ("Host", "Content-Length", "Transfer-Encoding"):
            headers.pop(name, None)
        async with http.post(f"{url}/mcp", data=content, headers=headers) as answered:
            kind = answered.headers.get("Content-Type", "")
            return web.Response(status=answered.status, body=await answered.read(), headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_post("/mcp", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    async with ClientSession() as http:
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        await runner.cleanup()


@pytest.mark.parametrize("scenario", TASKS)
async def test_a_scenario_of_tasks_passes(url: str, scenario: str, tmp_path: Path) -> None:
    async with with_fixtures(url) as proxied:
        faults, passed = await failed(proxied, scenario, "2026-07-28", tmp_path)
    assert faults.keys() == UNMET.get(scenario, set()), faults
    assert passed
