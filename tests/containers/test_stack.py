"""The stack of compose.yaml as it is: health, rights, networks, secrets, and a council with a key."""

import json

import httpx
import pytest

from tests.containers.docker import Project
from tests.containers.load import council
from tests.containers.services import ONE_SHOT, RUNNING, STATUS

OF_THE_IMAGE = sorted(set(RUNNING) - {"nats"})
NETWORKS = {"front": False, "log": True, "engines": True}
CONNECT = """
import socket
try:
    socket.create_connection(("{host}", {port}), timeout=3)
except OSError as exc:
    print(type(exc).__name__)
else:
    print("connected")
"""
WRITE = """
import pathlib
for path in ("/x", "/opt/venv/x", "/tmp/x"):
    try:
        pathlib.Path(path).touch()
    except OSError as exc:
        print(exc.strerror)
    else:
        print("written")
"""
READ_METRICS = """
import urllib.request as u
request = u.Request("http://gateway:8080/metrics", headers={{"Authorization": "Bearer {key}"}})
print(u.urlopen(request, timeout=10).status)
"""


def test_every_service_is_healthy_and_every_job_has_succeeded(stack: Project) -> None:
    states = {name: stack.inspect(name)["State"] for name in stack.services()}
    assert {name: state["Health"]["Status"] for name, state in states.items() if name in RUNNING} == dict.fromkeys(
        RUNNING, "healthy"
    )
    assert {name: (states[name]["Status"], states[name]["ExitCode"]) for name in ONE_SHOT} == dict.fromkeys(
        ONE_SHOT, ("exited", 0)
    )


@pytest.mark.parametrize("service", RUNNING)
def test_a_first_process_has_no_rights(stack: Project, service: str) -> None:
    assert stack.status(service).items() >= STATUS.items()


@pytest.mark.parametrize("service", OF_THE_IMAGE)
def test_the_root_is_read_only_and_tmp_is_not(stack: Project, service: str) -> None:
    assert stack.python(service, WRITE).splitlines() == [*["Read-only file system"] * 2, "written"]


@pytest.mark.parametrize(
    ("service", "host", "port", "expected"),
    [
        ("gateway", "nats", 4222, "connected"),
        ("gateway", "simulator", 8000, "gaierror"),
        ("ray", "nats", 4222, "connected"),
        ("ray", "simulator", 8000, "connected"),
        ("simulator", "nats", 4222, "gaierror"),
        ("simulator", "gateway", 8080, "gaierror"),
        # Ray's daemons listen on loopback alone.
        ("simulator", "ray", 6379, "ConnectionRefusedError"),
        ("simulator", "ray", 8265, "ConnectionRefusedError"),
        ("simulator", "ray", 52365, "ConnectionRefusedError"),
    ],
)
def test_a_service_reaches_those_of_its_networks_alone(
    stack: Project, service: str, host: str, port: int, expected: str
) -> None:
    assert stack.python(service, CONNECT.format(host=host, port=port)) == expected


def test_only_the_network_in_front_leads_out(stack: Project) -> None:
    networks = json.loads(stack.docker("network", "inspect", *(f"{stack.name}_{name}" for name in NETWORKS)))
    assert {found["Name"].partition("_")[2]: found["Internal"] for found in networks} == NETWORKS


@pytest.mark.parametrize("service", ["simulator", "ray", "archive"])
def test_a_service_behind_does_not_reach_the_network_in_front_by_address(stack: Project, service: str) -> None:
    address = stack.inspect("gateway")["NetworkSettings"]["Networks"][f"{stack.name}_front"]["IPAddress"]
    assert stack.python("webhooks", CONNECT.format(host=address, port=8080)) == "connected"
    assert stack.python(service, CONNECT.format(host=address, port=8080)) in ("TimeoutError", "OSError")


def test_secrets_are_in_no_log_and_the_log_key_in_no_description_of_a_container(
    stack: Project, secret_values: dict[str, str], key: str
) -> None:
    logs = stack.compose("logs", "--no-color")
    assert [name for name, value in {**secret_values, "key": key}.items() if value in logs] == []
    described = json.dumps([stack.inspect(name) for name in stack.services()])
    assert secret_values["LOG_KEY"] not in described
    assert stack.python("gateway", "print(open('/run/secrets/log_key').read())") == secret_values["LOG_KEY"]


async def test_a_council_with_a_key_runs_to_its_verdict_and_reaches_the_archive(client: httpx.AsyncClient) -> None:
    assert (await client.get("/deliberations", headers={"Authorization": ""})).status_code == 401
    ended = await council(client)
    assert (ended["status"], ended["verdict"]["winner"] is not None) == ("completed", True)
    listed = await client.get("/deliberations", params={"after": "now"})
    assert ended["id"] in [item["id"] for item in listed.json()["items"]]


@pytest.fixture(scope="module")
def admin_key(stack: Project) -> str:
    return stack.exec(
        "gateway", "deliberate", "keys", "create", "admin", "--tenant", "mine", "--scope", "admin"
    ).strip()


async def test_the_gateways_doctor_finds_nothing_but_the_simulator(client: httpx.AsyncClient, admin_key: str) -> None:
    found = await client.get("/status", headers={"Authorization": f"Bearer {admin_key}"})
    assert [finding["code"] for finding in found.raise_for_status().json()["findings"]] == ["simulated"]


def test_a_service_in_front_reads_the_metrics_as_monitoring_yaml_does(stack: Project, admin_key: str) -> None:
    assert stack.python("webhooks", READ_METRICS.format(key=admin_key)) == "200"
