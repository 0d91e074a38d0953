import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.log.journal import JetStreamJournal
from tests.conftest import NatsServer
from tests.e2e.conftest import DELIBERATE, TASK, Stack

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
NAMING = ("DELIBERATE_URL", "DELIBERATE_API_KEY", "NATS_URL", "LOG_KEY_FILE", "KEY_PEPPER", "WEBHOOK_SECRETS")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def deliberate(stack: Stack, tmp_path: Path) -> Run:
    here = tmp_path / "here"
    here.mkdir()
    (here / ".deliberate").symlink_to(stack.data_dir)
    kept = {key: value for key, value in os.environ.items() if key not in NAMING}
    environment = {**kept, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path / "config"), "COLUMNS": "80"}

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(DELIBERATE), *arguments]
        options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
        return subprocess.run(command, cwd=here, env={**environment, **more}, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]

    return run


def test_every_command_finds_the_stack_of_its_directory(deliberate: Run, stack: Stack, tmp_path: Path) -> None:
    # With this seed a critic finds a major issue, so that there is a stage of revision.
    hook = "http://127.0.0.1:1/hook"
    asked = deliberate("ask", TASK, "--agents", "2", "--seed", "7", "--webhook", hook, "--json")
    assert asked.returncode == 0, asked.stderr
    id = json.loads(asked.stdout)["id"]
    status = deliberate("status")
    assert status.returncode == 0 and "(from the stack in .deliberate)" in status.stdout
    for part in ("gateway", "work", "roles", "engine", "queue", "versions"):
        assert f"\n{part}" in f"\n{status.stdout}", status.stdout
    listed = deliberate("list", "--limit", "3").stdout
    assert id[:10] in listed and max(map(len, listed.splitlines())) <= 80
    assert deliberate("show", id[:10]).returncode == 0
    transcript = deliberate("show", "last", "--transcript").stdout
    assert transcript.startswith(f"# Deliberation {id}\n") and "## Stage 4: score" in transcript
    assert "## Deliveries" in transcript and "deliberation.completed: " in transcript
    delivered = deliberate("redeliver", "last")
    assert delivered.returncode == 0, delivered.stderr
    assert deliberate("deliveries", id, "--json").returncode == 0
    assert deliberate("status", "--all").returncode == 0 and deliberate("roles", "DEV").returncode == 0
    assert deliberate("streams", "plan").returncode == 0
    assert deliberate("webhooks", "secret").stdout.startswith("whsec_")
    assert deliberate("archive", "migrate").stdout.startswith("the archive has the tables of version")
    assert deliberate("export", str(tmp_path / "all.ndjson")).returncode == 0
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "What is 1 + 1?", "answer": 2, "normaliser": "number"}\n')
    bench = deliberate("bench", "quality", "--dataset", str(questions), "--strategy", "single", "--agents", "1")
    assert bench.returncode == 0, bench.stderr
    assert deliberate("delete", id).stdout == f"{id} is deleted\n"


async def test_the_doctor_finds_a_sound_stack_sound_within_three_seconds(deliberate: Run, stack: Stack) -> None:
    shown = deliberate("doctor", "--json")
    found = json.loads(shown.stdout)["findings"]
    # The tests' machine may lack what a stack wants, as shared memory.
    of_stack = [each for each in found if each["part"] != "machine"]
    assert [each["code"] for each in of_stack] == ["simulated"], shown.stdout
    assert "is sound" in deliberate("doctor").stdout or len(of_stack) < len(found)
    began_s = time.monotonic()
    (await stack.client.get("/status")).raise_for_status()
    assert time.monotonic() - began_s < 3


def test_a_context_names_the_stack_from_everywhere(deliberate: Run, stack: Stack) -> None:
    assert deliberate("context", "use", stack.url).returncode == 0
    shown = json.loads(deliberate("context", "show", "--json").stdout)
    assert shown == {"url": stack.url, "source": "the context", "key": False}
    assert deliberate("keys", "list").returncode == 0, "the context names the stack that runs here"
    assert deliberate("context", "use", "http://127.0.0.1:1").returncode == 0
    assert deliberate("list").returncode == 3
    refused = deliberate("keys", "list")
    assert refused.returncode == 2 and "error another_stack: the context names http://127.0.0.1:1" in refused.stderr
    assert deliberate("list", "--data-dir", ".deliberate").returncode == 0, "an option says more than the context"


async def test_a_key_goes_into_the_stacks_log_and_no_other(
    deliberate: Run, stack: Stack, own_nats_server: NatsServer
) -> None:
    other = own_nats_server.url
    assert deliberate("streams", "apply", "--nats-url", other).returncode == 0
    create, pepper = ("keys", "create", "ci", "--tenant", "one-stack"), {"KEY_PEPPER": "p" * 40}
    for variables, options in (({}, ("--nats-url", other)), ({"NATS_URL": other}, ())):
        refused = deliberate(*create, *options, **pepper, **variables)
        assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr
        assert "error another_stack" in refused.stderr and "leave out --nats-url" in refused.stderr
    journal = await JetStreamJournal.connect(other)
    assert [record async for record in journal.read("keys.>", 0)] == []
    await journal.close()
    made = deliberate(*create, **pepper)
    assert made.returncode == 0 and made.stdout.startswith("dlb_"), made.stderr
    assert "asks for no keys until it starts with this KEY_PEPPER" in made.stderr, "this stack is in development mode"
    listed = json.loads(deliberate("keys", "list", "--tenant", "one-stack", "--json", **pepper).stdout)["items"]
    assert [key["status"] for key in listed] == ["good"]
    named = deliberate("keys", "list", "--nats-url", stack.nats_url("keys"), **pepper)
    assert named.returncode == 0, "the stack's own server may be named"
