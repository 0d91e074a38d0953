import asyncio
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import nats.errors
import pytest
from nats.aio.client import Client

from app.cli.stack.supervisor import marked
from app.log.connection import server_url
from tests.e2e.conftest import FAST, TASK, Stack
from tests.integration.cli.children import listeners
from tests.integration.log.forbidden_subjects import FORBIDDEN_TO_PUBLISH, FORBIDDEN_TO_SUBSCRIBE, pairs, violations

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

# A method of each of Ray's services, with a request that may be empty.
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ReporterService/GetTraceback",
    "/ray.serve.ASGIService/HandleRequest",
)
SERVES_HTTP = ("gateway", "webhooks", "simulator")


@dataclass(frozen=True)
class Door:
    child: str
    command: str
    port: int
    loopback: bool


@pytest.fixture
def doors(stack: Stack) -> list[Door]:
    processes = {process.pid: process for process in marked(stack.mark)}
    found = listeners({stack.process.pid, *processes})
    return [
        Door(processes[each.pid].child, processes[each.pid].command, each.port, each.loopback)
        for each in found
        if each.pid in processes
    ]


def secrets_of(stack: Stack) -> Iterator[str]:
    for file in (stack.data_dir / "nats_urls").iterdir():
        yield urlsplit(file.read_text()).password or ""
    yield (stack.data_dir / "ray_token").read_text()


def test_up_listens_on_loopback_alone(stack: Stack, doors: list[Door]) -> None:
    assert {door.child for door in doors} >= {"nats", "simulator", "ray", "gateway", "webhooks"}
    assert sum("ServeReplica" in door.command for door in doors) >= 2, "the replicas' own servers are among them"
    assert [door for door in doors if not door.loopback] == []
    assert [each for each in listeners({stack.process.pid})] == [], "`up` itself serves nothing"
    assert [door.port for door in doors if door.child == "nats"] == [urlsplit(stack.ready["nats_url"]).port]


def test_no_dashboard_of_ray_runs(stack: Stack) -> None:
    commands = [each.command for each in marked(stack.mark) if each.child == "ray"]
    assert any("gcs_server" in command for command in commands)
    assert [command for command in commands if "dashboard/dashboard.py" in command] == []


def status_of(port: int, method: str, *metadata: tuple[str, str]) -> grpc.StatusCode | None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method, lambda _: b"", lambda answer: answer)
        try:
            call(b"", timeout=5, metadata=metadata)
        except grpc.RpcError as error:
            code = error.code()
            return None if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) else code
        return grpc.StatusCode.OK


def test_no_port_of_ray_answers_without_the_token(stack: Stack, doors: list[Door]) -> None:
    ports = {door.port: door.command for door in doors if door.child in ("ray", "deployer")}
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.CANCELLED}
    serving_http = set[int]()
    for port, command in ports.items():
        try:
            statuses = {httpx.get(f"http://127.0.0.1:{port}{path}").status_code for path in ("/", "/metrics", "/nodes")}
            assert statuses == {401}, command
            serving_http.add(port)
        except httpx.HTTPError:
            for stranger in ((), (("authorization", "Bearer " + "0" * 64),)):
                codes = {method: status_of(port, method, *stranger) for method in METHODS}
                assert set(codes.values()) <= refused, (command, codes)
                assert grpc.StatusCode.UNAUTHENTICATED in codes.values(), (command, codes)
    assert len(serving_http) == 2, "the agents of the node"
    token = ("authorization", "Bearer " + (stack.data_dir / "ray_token").read_text())
    port = int(stack.ready["ray_address"].rpartition(":")[2])
    assert status_of(port, METHODS[0], token) is grpc.StatusCode.OK, "the token opens what a stranger is refused"


@pytest.mark.parametrize("login", ["", "gateway@", "gateway:@", "keys:keys@", "tests:tests@", "monitor:monitor@"])
async def test_nats_refuses_whoever_has_no_password(stack: Stack, login: str) -> None:
    client = Client()
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
        await client.connect(stack.ready["nats_url"].replace("//", f"//{login}"), allow_reconnect=False)
    await client.close()


async def test_nats_has_no_monitoring_and_takes_nothing_before_a_login(stack: Stack) -> None:
    """What a stranger writes before the refusal reads no task, and stores neither a fact nor a revocation."""
    url = urlsplit(stack.ready["nats_url"])
    for said in (
        b"GET /connz?subs=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"SUB > 1\r\nPING\r\n",
        b"PUB deliberations.default.forged.accepted 2\r\n{}\r\nPUB keys.abcdefghijkl.revoked 2\r\n{}\r\n",
        b'CONNECT {"verbose":false}\r\nSUB > 1\r\nPUB deliberations.default.forged.accepted 2\r\n{}\r\nPING\r\n',
    ):
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(said)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"INFO ") and b"-ERR" in answer, answer
        # Lines alone: the server's random keys in its greeting may hold any three letters.
        protocol_words = [line.split(b" ")[0] for line in answer.splitlines()]
        assert protocol_words == [b"INFO", b"-ERR"] and b"subscriptions" not in answer, answer
    assert not await stack.journal.facts("default", "forged")
    assert not await stack.journal.last(["keys.abcdefghijkl.revoked"])


async def test_no_user_of_the_running_stack_may_do_what_is_anothers(stack: Stack) -> None:
    monitor = [("monitor", "deliberations.default.x.accepted"), ("monitor", "$SYS.REQ.SERVER.PING.CONNZ")]
    for user, subject in (*pairs(FORBIDDEN_TO_PUBLISH), *monitor):
        (refusal,) = await violations(server_url(stack.nats_url(user)), subject)
        assert re.search("permissions violation for publish", refusal, re.IGNORECASE), (user, subject)
    for user, subject in (*pairs(FORBIDDEN_TO_SUBSCRIBE), ("monitor", ">"), ("monitor", "$SYS.>")):
        (refusal,) = await violations(server_url(stack.nats_url(user)), subject, subscribe=True)
        assert re.search("permissions violation for subscription", refusal, re.IGNORECASE), (user, subject)
    assert await violations(server_url(stack.nats_url("gateway")), "control.coordinator") == []


def files_below(place: Path) -> Iterator[Path]:
    yield from (path for path in place.rglob("*") if path.is_file() and not path.is_symlink())


def processes_of(stack: Stack) -> dict[str, bytes]:
    return {
        f"{process.command}: {name}": Path(f"/proc/{process.pid}/{name}").read_bytes()
        for process in marked(stack.mark)
        for name in ("cmdline", "environ")
    }


async def test_no_secret_is_an_argument_a_variable_a_log_line_or_an_answer(stack: Stack) -> None:
    await stack.script(**FAST)
    await stack.until(await stack.submit(task=TASK, strategy="single"), status="completed")
    secrets = [secret.encode() for secret in secrets_of(stack)]
    assert len(secrets) == 11 and all(len(secret) >= 49 for secret in secrets)
    shown = {"ready": json.dumps(stack.ready).encode(), "state": (stack.data_dir / "stack.json").read_bytes()}
    for path in ("/readyz", "/status", "/metrics", "/"):
        shown[path] = (await stack.client.get(path)).content
    shown |= processes_of(stack)
    logs = stack.data_dir / "logs"
    shown |= {str(path): path.read_bytes() for place in (logs, (logs / "ray").resolve()) for path in files_below(place)}
    assert sum("environ" in name for name in shown) >= 10 and any("gcs_server" in name for name in shown)
    assert [name for name, content in shown.items() if any(secret in content for secret in secrets)] == []


def test_files_with_secrets_are_for_their_owner_alone(stack: Stack) -> None:
    holders = [path for path in files_below(stack.data_dir) if path.name not in ("lock", "stack.json")]
    secrets = [secret.encode() for secret in secrets_of(stack)]
    holders = [path for path in holders if any(secret in path.read_bytes() for secret in secrets)]
    assert {path.name for path in holders} >= {"nats.conf", "ray_token", "keys", "gateway"}
    assert [path for path in holders if path.stat().st_mode & 0o077] == []
