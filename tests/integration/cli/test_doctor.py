"""Set-ups that `deliberate doctor` finds broken, each by its first finding.

tests/components/routes/test_findings.py has the installations whose gateway answers.
"""

import asyncio
import json
import os
import shlex
import sqlite3
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import pytest
import uvicorn

from app.api.findings import Finding
from app.archive.database.migrate import migrate
from app.cli.doctor import command as doctor
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from benchmarks.fixed_loop import loop_once
from serve_deployments.simulator.script import Script
from serve_deployments.simulator.server.app import Simulator
from serve_deployments.simulator.server.completion import SimulatorSettings
from tests.components.access.keyed import PEPPER, make_key
from tests.components.routes.listening import listening
from tests.conditions import until
from tests.conftest import NATS_SERVER, free_port
from tests.integration.cli.apart import APART, DELIBERATE, HERE, MOUNTED, NAMELESS, may

KEYED_ROLES = """
engines: {hosted: {url: "http://127.0.0.1:9", api_key_env: HOSTED_KEY}}
roles: {JUDGE: {persona: You judge., engines: [hosted]}}
"""
NO_RIGHTS = 'jetstream {}\nauthorization {users: [{user: a, password: b, permissions: {publish: "nothing"}}]}'
SOUND_WITHIN_S = 3.0
# Other tests may take the CPU of one attempt.
ATTEMPTS_MAX = 3
# The fixed loop on a machine that has its processors for itself.
LOOP_S = 0.005


class Machine:
    """A directory, and what was started for a set-up in it."""

    def __init__(self, place: Path, started: AsyncExitStack) -> None:
        self.place = place
        self._started = started

    def file(self, name: str, text: str) -> str:
        path = self.place / name
        path.write_text(text)
        return str(path)

    async def nats(self, *options: str) -> str:
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            *(str(NATS_SERVER), "-a", "127.0.0.1", "-p", str(port), *options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        async def end() -> None:
            process.kill()
            await process.wait()

        self._started.push_async_callback(end)
        return f"127.0.0.1:{port}"

    async def log(self, declared: StreamSettings | None = None) -> str:
        """A NATS server with JetStream, and with `declared` streams."""
        url = f"nats://{await self.nats('-js', '-sd', str(self.place / 'nats'))}"
        journal = await JetStreamJournal.connect(url, name="tests")
        self._started.push_async_callback(journal.close)
        if declared is not None:
            await apply(journal, declared)
        return url

    async def engine(self, **script: Any) -> str:
        settings = {name: script.pop(name) for name in ("max_model_len", "scheduling_policy") if name in script}
        simulator = Simulator(SimulatorSettings(**settings, script=Script(**script)))
        config = uvicorn.Config(simulator, port=0, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)

        async def end() -> None:
            server.should_exit = True
            await serving

        self._started.push_async_callback(end)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    async def gateway(self, **settings: Any) -> Any:
        return await self._started.enter_async_context(listening(**settings))


def nothing(_: Path) -> list[Finding]:
    return []


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Machine]:
    monkeypatch.chdir(tmp_path)
    # The machine of the tests may lack what a stack wants; the tests below make machines.
    monkeypatch.setattr(doctor, "machine_findings", nothing)
    async with AsyncExitStack() as started:
        yield Machine(tmp_path, started)


Given = dict[str, str]


def named(**given: str) -> Callable[[Machine], Awaitable[Given]]:
    async def environment(_: Machine) -> Given:
        return given

    return environment


async def unset_engine_key(machine: Machine) -> Given:
    return {"ROLES_FILE": machine.file("roles.yaml", KEYED_ROLES)}


async def roles_of_another_form(machine: Machine) -> Given:
    return {"ROLES_FILE": machine.file("roles.yaml", "roles: [DEV]")}


async def short_log_key(machine: Machine) -> Given:
    return {"LOG_KEY_FILE": machine.file("key", "short")}


async def open_to_all(machine: Machine) -> Given:
    return {"NATS_URL": await machine.log(StreamSettings()), "HOST": "0.0.0.0"}


async def another_server(machine: Machine) -> Given:
    return {"NATS_URL": (await machine.engine()).replace("http", "nats")}


async def without_jetstream(machine: Machine) -> Given:
    return {"NATS_URL": f"nats://{await machine.nats()}"}


async def wrong_password(machine: Machine) -> Given:
    return {"NATS_URL": f"nats://a:wrong@{await machine.nats('-js', '--user', 'a', '--pass', 'b')}"}


async def without_rights(machine: Machine) -> Given:
    return {"NATS_URL": f"nats://a:b@{await machine.nats('-c', machine.file('nats.conf', NO_RIGHTS))}"}


async def without_streams(machine: Machine) -> Given:
    return {"NATS_URL": await machine.log()}


async def other_retention(machine: Machine) -> Given:
    return {"NATS_URL": await machine.log(StreamSettings()), "DELIBERATION_CLEANUP": "172800"}


async def without_consumer(machine: Machine) -> Given:
    url = await machine.log(StreamSettings())
    journal = await JetStreamJournal.connect(url, name="tests")
    assert (await journal.request("$JS.API.CONSUMER.DELETE.DELIBERATIONS.archive"))["success"]
    await journal.close()
    return {"NATS_URL": url}


async def without_tables(machine: Machine) -> Given:
    return {"DATABASE_URL": f"sqlite:///{machine.place}/archive.db"}


async def other_tables(machine: Machine) -> Given:
    with sqlite3.connect(machine.place / "archive.db") as other:
        other.execute("CREATE TABLE customers (id)")
    return await without_tables(machine)


async def newer_tables(machine: Machine) -> Given:
    given = await without_tables(machine)
    await migrate(given["DATABASE_URL"])
    with sqlite3.connect(machine.place / "archive.db") as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    return given


async def wrong_key(machine: Machine) -> Given:
    return {"VLLM_URL": await machine.engine(api_keys=["right"]), "VLLM_API_KEY": "wrong"}


async def no_such_model(machine: Machine) -> Given:
    return {"VLLM_URL": await machine.engine(), "VLLM_MODEL": "m-9"}


async def without_schema(machine: Machine) -> Given:
    return {"VLLM_URL": await machine.engine(lacks=["json-schema"])}


async def short_context(machine: Machine) -> Given:
    return {"VLLM_URL": await machine.engine(max_model_len=2_048)}


async def without_priorities(machine: Machine) -> Given:
    return {"VLLM_URL": await machine.engine(scheduling_policy="fcfs")}


# What is set, the code of the first finding, and a part of what it says.
BROKEN: dict[str, tuple[Callable[[Machine], Awaitable[Given]], str, str]] = {
    "a setting that is no number": (named(QUEUE_DEPTH_MAX="many"), "invalid_setting", "QUEUE_DEPTH_MAX"),
    "no file of roles": (named(ROLES_FILE="gone.yaml"), "invalid_setting", "gone.yaml"),
    "roles of another form": (roles_of_another_form, "invalid_setting", "roles.yaml"),
    "an engine's key that is not set": (unset_engine_key, "invalid_setting", "HOSTED_KEY is not set"),
    "an engine's URL that is none": (named(VLLM_URL="gpu:8000"), "invalid_setting", "'gpu:8000'"),
    "a log key that is too short": (short_log_key, "invalid_setting", "32"),
    "a database of another kind": (named(DATABASE_URL="mysql://h/d"), "invalid_setting", "'mysql'"),
    "an address without keys": (open_to_all, "invalid_setting", "HOST=0.0.0.0"),
    "no NATS server": (named(NATS_URL="nats://127.0.0.1:9"), "journal_unavailable", "127.0.0.1:9"),
    "no file of NATS's URL": (named(NATS_URL="file:///gone"), "journal_unavailable", "/gone"),
    "another server than NATS": (another_server, "journal_unavailable", ""),
    "NATS without JetStream": (without_jetstream, "journal_unavailable", "JetStream is off"),
    "a refused password": (wrong_password, "journal_unavailable", "refuses the credentials"),
    "a NATS user without rights": (without_rights, "journal_unavailable", "refuses a right"),
    "no streams": (without_streams, "streams_differ", "DELIBERATIONS is missing"),
    "another retention": (other_retention, "streams_differ", "DELIBERATIONS.max_age"),
    "no consumer": (without_consumer, "streams_differ", "DELIBERATIONS/archive is missing"),
    "no database": (named(DATABASE_URL="postgresql://u:hunter2@127.0.0.1:9/d"), "archive_unusable", "does not answer"),
    "a database without tables": (without_tables, "archive_unusable", "has no tables"),
    "a database of another program": (other_tables, "archive_unusable", "tables of another program"),
    "a database of a newer version": (newer_tables, "archive_unusable", "A newer program made them"),
    "no engine": (named(VLLM_URL="http://127.0.0.1:9"), "engine_unreachable", "connection refused"),
    "an engine's name that is not known": (named(VLLM_URL="http://gpu.invalid"), "engine_unreachable", "gpu.invalid"),
    "a refused key": (wrong_key, "engine_key_refused", "refuses its key"),
    "a model that is not served": (no_such_model, "engine_refuses", "m-9"),
    "an engine without JSON Schema": (without_schema, "schema_lacking", "takes no JSON Schema"),
    "a short context": (short_context, "context_short", "2048 tokens in all"),
    "an engine without priorities": (without_priorities, "priority_off", "refuses priorities"),
}


async def first_finding(machine: Machine, given: Given, monkeypatch: pytest.MonkeyPatch) -> Finding:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return (await doctor.examine(None, None, None))[1][0]


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_set_up_is_named_by_its_first_finding(
    machine: Machine, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, code, detail = BROKEN[case]
    async with asyncio.timeout(30):
        first = await first_finding(machine, await broken(machine), monkeypatch)
    assert (first.code, detail in first.detail) == (code, True), first
    assert first.why and first.remedy.endswith(".") and "hunter2" not in first.detail + first.remedy


async def test_a_taken_port_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = (await machine.engine()).rpartition(":")[2]
    first = await first_finding(machine, {"PORT": taken}, monkeypatch)
    assert first.code == "port_taken" and f"port {taken}" in first.detail


async def nobody(_: Machine) -> tuple[str, str | None]:
    return "http://127.0.0.1:9", None


async def an_engine(machine: Machine) -> tuple[str, str | None]:
    return await machine.engine(), None


async def unknown_key(machine: Machine) -> tuple[str, str | None]:
    gateway = await machine.gateway(key_pepper=PEPPER)
    return str(gateway.client.base_url), "dk_nobody"


async def narrow_key(machine: Machine) -> tuple[str, str | None]:
    gateway = await machine.gateway(key_pepper=PEPPER)
    key = await make_key(gateway.journal, scopes=("read",))
    headers = {"Authorization": f"Bearer {key}"}
    async with asyncio.timeout(10):
        while (await gateway.client.get("/roles", headers=headers)).status_code != 200:
            await asyncio.sleep(0.01)
    return str(gateway.client.base_url), key


async def without_coordinator(machine: Machine) -> tuple[str, str | None]:
    return str((await machine.gateway()).client.base_url), None


@pytest.mark.parametrize(
    ("of", "code", "detail"),
    [
        (nobody, "unreachable", "no gateway answers at"),
        (an_engine, "not_a_gateway", ""),
        (unknown_key, "unauthenticated", "does not exist"),
        (narrow_key, "coordinator_missing", "No coordinator"),
        (without_coordinator, "coordinator_missing", "No coordinator"),
    ],
)
async def test_a_gateway_is_asked_for_its_findings(
    machine: Machine, of: Callable[[Machine], Awaitable[tuple[str, str | None]]], code: str, detail: str
) -> None:
    url, key = await of(machine)
    target, found = await doctor.examine(url, None, key)
    assert target is not None and target.url == url
    assert (found[0].code, detail in found[0].detail) == (code, True), found
    codes = {each.code for each in found}
    assert ("unauthenticated" in codes, "insufficient_scope" in codes) == (of is unknown_key, of is narrow_key)


async def test_a_part_that_is_asked_in_its_container_says_nothing_of_a_stack_there(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await machine.gateway()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NATS_URL", await machine.log())
    monkeypatch.setenv("PORT", str(gateway.client.base_url.port))
    monkeypatch.setattr(doctor, "machine_findings", lambda _: pytest.fail("the machine is looked at"))
    _, found = await doctor.examine(None, None, None)
    assert found[0].code == "coordinator_missing", found


# What surrounds the command, the shell's words before it, the code of the first finding, and a part of what it says.
MACHINES: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "few open files": (HERE, "ulimit -n 512;", "open_files_few", "512 files may be open"),
    "no loopback": (APART, "", "address_unusable", "127.0.0.1 cannot be used"),
    "no right to write": (NAMELESS, "mkdir -m 555 d; cd d;", "data_dir_unusable", "Permission denied"),
    "a disk of 4 MiB": (MOUNTED, "mkdir d && mount -t tmpfs -o size=4m tmpfs d && cd d;", "data_dir_unusable", "4 MiB"),
    "no room in /tmp for Ray": (
        MOUNTED,
        "mount -t tmpfs tmpfs /mnt && cd /mnt && mount -t tmpfs -o size=4m tmpfs /tmp;",
        "ray_dir_unusable",
        "/tmp cannot hold Ray's files",
    ),
    "small shared memory": (MOUNTED, "mount -t tmpfs -o size=64m tmpfs /dev/shm;", "shared_memory_small", "/dev/shm"),
    "a disk that fills": (
        MOUNTED,
        "mount -t tmpfs -o size=200m tmpfs /mnt && mount -t tmpfs -o size=512m tmpfs /dev/shm && cd /mnt;",
        "disk_filling",
        "on the disk of .deliberate",
    ),
}


@pytest.mark.parametrize("name", MACHINES)
async def test_a_broken_machine_is_named_by_its_first_finding(name: str, tmp_path: Path) -> None:
    around, before, code, detail = MACHINES[name]
    if not may(around):
        pytest.skip(f"this machine forbids {shlex.join(around)}")
    exit_code, found = await shown(tmp_path, *around, f"{before} exec {DELIBERATE} doctor --json")
    assert (found[0]["code"], detail in found[0]["detail"]) == (code, True), found
    assert exit_code == {"error": 1, "warning": 6, "info": 0}[found[0]["severity"]]


async def shown(place: Path, *command: str, **given: str) -> tuple[int, list[dict[str, Any]]]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=place, env={**os.environ, **given}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None and out, err.decode()
    return process.returncode, json.loads(out)["findings"]


def slowness_of_machine() -> float:
    """How much longer than alone a fixed loop takes now."""
    samples: list[float] = []
    for _ in range(9):
        began_s = monotonic()
        loop_once()
        samples.append(monotonic() - began_s)
    return median(samples) / LOOP_S


async def test_a_sound_set_up_has_no_fault(machine: Machine) -> None:
    archive = {"DATABASE_URL": f"sqlite:///{machine.place}/archive.db"}
    await migrate(archive["DATABASE_URL"])
    environment = {**archive, "VLLM_URL": await machine.engine()}

    async def timed() -> tuple[float, int, list[dict[str, Any]]]:
        slowness, began_s = slowness_of_machine(), monotonic()
        shown_here = await shown(machine.place, str(DELIBERATE), "doctor", "--json", **environment)
        seconds = monotonic() - began_s
        print(f"{seconds:.1f} s while the machine takes {slowness:.1f} times its time")
        return seconds / max(1.0, slowness, slowness_of_machine()), *shown_here

    runs = [await timed()]
    while runs[-1][0] > SOUND_WITHIN_S and len(runs) < ATTEMPTS_MAX:
        runs.append(await timed())
    seconds, exit_code, found = runs[-1]
    print(f"a sound set-up: {seconds:.1f} s")
    assert seconds <= SOUND_WITHIN_S
    assert [each for each in found if each["part"] != "machine" and each["severity"] != "info"] == []
    assert [each["code"] for each in found if each["severity"] == "info"][:1] == ["simulated"], found
    assert exit_code in (0, 6)


async def test_up_says_what_is_wrong_with_a_stack_that_serves(tmp_path: Path) -> None:
    database = "postgresql://u:hunter2@127.0.0.1:9/d"
    process = await asyncio.create_subprocess_exec(
        *(str(DELIBERATE), "up", "--json", "--port", "0", "--agents", "nats"),
        cwd=tmp_path,
        env={**os.environ, "DATABASE_URL": database},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    events = list[dict[str, Any]]()
    async with asyncio.timeout(60):
        while not events or events[-1]["event"] != "fault_found":
            events.append(json.loads(await process.stdout.readline()))
    process.terminate()
    await process.communicate()
    assert (events[-1]["code"], "127.0.0.1:9" in events[-1]["detail"]) == ("archive_unusable", True)
    assert "hunter2" not in json.dumps(events) and process.returncode == 0
