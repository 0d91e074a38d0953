import asyncio
import json
import re
import secrets
from pathlib import Path

import httpx
import openai
import pytest

from app.webhooks.signatures import tenant_secret
from tests.components.webhooks.receiving import receiving
from tests.conftest import free_port
from tests.e2e.terminal import TASK, Terminal
from tests.e2e.wheels import built_wheel, installed

pytestmark = pytest.mark.walk

WRITE_TIMEOUT_S = 4


def ids_in(stream: str) -> list[str]:
    return re.findall(r"^id: (\S+)$", stream, re.MULTILINE)


async def ask_and_watch(terminal: Terminal, client: httpx.AsyncClient) -> str:
    url = str(client.base_url).rstrip("/")
    body = json.dumps({"task": TASK, "role": "DEV", "num_agents": 3})
    headers = ("-H", "content-type: application/json", "-H", "Prefer: wait=60")
    answer = json.loads(await terminal.run("curl", "-sS", f"{url}/deliberations", *headers, "-d", body))
    assert answer["status"] == "completed" and answer["verdict"]["content"]
    events = f"{url}/deliberations/{answer['id']}/events"
    whole = ids_in(await terminal.run("curl", "-sSN", f"{events}?after=0"))
    rest = ids_in(await terminal.run("curl", "-sSN", events, "-H", f"Last-Event-ID: {whole[4]}"))
    assert len(whole) == len(set(whole)) > 10 and rest == whole[5:]
    return answer["id"]


async def look_back(terminal: Terminal, id: str) -> None:
    assert "DEV" in await terminal.deliberate("status")
    listed = await terminal.deliberate("list")
    assert id[:10] in listed and TASK in listed
    assert TASK in await terminal.deliberate("show", id[:10], "--full")
    assert "# " in await terminal.deliberate("show", "last", "--transcript")


async def ask_a_mixed_council(terminal: Terminal) -> None:
    printed = await terminal.deliberate("ask", TASK, "--council", "ARCHITECT:1,DEV:1,QA:1", "--watch")
    assert "completed" in printed and "architect-001" in printed and "qa-001" in printed


async def use_the_openai_client(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", timeout=60) as client:
        answer = await client.chat.completions.create(model="vote", messages=[{"role": "user", "content": TASK}])
    assert answer.choices[0].message.content


async def receive_a_webhook(terminal: Terminal) -> None:
    async with receiving() as receiver:
        await terminal.deliberate("ask", TASK, "--strategy", "single", "--agents", "1", "--webhook", receiver.url())
        (first, *_) = await receiver.until(1)
    master = (terminal.folder / ".deliberate" / "webhook_secret").read_text()
    assert first.checked(tenant_secret(master, "default"))["type"].startswith("deliberation.")


async def go_wrong(terminal: Terminal, client: httpx.AsyncClient) -> None:
    assert "Did you mean DEVOPS?" in await terminal.deliberate("ask", TASK, "--role", "devop", code=2)
    assert "DEVOPS" in await terminal.deliberate("roles")
    assert "--agents" in await terminal.deliberate("ask", TASK, "--agents", "0", code=2)
    problem = (await client.post("/deliberations", json={"task": TASK, "strategie": "vote"})).json()
    (fault,) = problem["errors"]
    assert fault["pointer"] == "/strategie" and "strategy" in fault["remedy"] + fault["detail"]
    assert "deliberate list" in await terminal.deliberate("show", "nothing", code=4)


async def run_out_of_time(client: httpx.AsyncClient, simulator_port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{simulator_port}") as engine:
        script = {"duration_ms": 0, "faults": ["hang:match=Your work: (critique|revise|score)"]}
        (await engine.post("/simulator/script", json=script)).raise_for_status()
        body = {"task": TASK, "role": "DEV", "num_agents": 3, "constraints": {"timeout_seconds": 4}}
        found = (await client.post("/deliberations", json=body, headers={"Prefer": "wait=60"})).json()
        (await engine.post("/simulator/script", json={"faults": []})).raise_for_status()
    assert found["status"] == "completed" and "deadline" in found["degraded"]["reasons"]
    assert found["verdict"]["content"] in [proposal["content"] for proposal in found["proposals"]]


async def come_back_with_keys_and_a_dead_engine(terminal: Terminal, id: str) -> None:
    engine_url = f"http://127.0.0.1:{free_port()}"
    terminal.variables |= {"KEY_PEPPER": secrets.token_hex(32), "ENGINE_AWAY_TIMEOUT": str(WRITE_TIMEOUT_S)}
    async with terminal.up("--engine-url", engine_url) as stack:
        assert "DELIBERATE_API_KEY" in await terminal.deliberate("list", code=4)
        printed = await terminal.deliberate("keys", "create", "me", "--tenant", "default")
        (key,) = re.findall(r"^dlb_\S+", printed, re.MULTILINE)
        terminal.variables["DELIBERATE_API_KEY"] = key
        assert id[:10] in await terminal.deliberate("list")
        failed = await terminal.deliberate("ask", TASK, "--role", "DEV", code=1)
        said = "".join(failed.split())
        assert engine_url in said and "connectionrefused" in said
        async with httpx.AsyncClient(base_url=stack["url"]) as client:
            assert (await client.get(f"/deliberations/{id}")).status_code == 401
            assert "engines" in {each["pointer"] for each in (await client.get("/readyz")).json()["degraded"]}


async def test_the_first_hour_goes_as_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    wheel = await asyncio.to_thread(built_wheel, tmp_path)
    terminal = Terminal(folder, await asyncio.to_thread(installed, wheel, tmp_path / "environment"))
    assert re.match(r"deliberate \d", await terminal.deliberate("--version"))
    assert "completed" in await terminal.deliberate("demo")
    async with terminal.up("--simulate", "") as stack, httpx.AsyncClient(base_url=stack["url"], timeout=70) as client:
        id = await ask_and_watch(terminal, client)
        await look_back(terminal, id)
        await ask_a_mixed_council(terminal)
        await use_the_openai_client(stack["url"])
        await receive_a_webhook(terminal)
        await go_wrong(terminal, client)
        await run_out_of_time(client, stack["ports"]["engine"])
    await come_back_with_keys_and_a_dead_engine(terminal, id)
