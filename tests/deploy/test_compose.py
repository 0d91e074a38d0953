import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.deploy import schemas, wiring
from tests.deploy.commands import command_faults
from tests.deploy.manifests import COMPOSE, IMAGE, Document, compose_services, gpu_services, monitoring_services

SERVICES = compose_services()
MONITORING = monitoring_services()
GPU = {name: service for name, service in gpu_services().items() if name not in SERVICES}
ALL = SERVICES | GPU | MONITORING
# One-shot services that set the owner of a new volume.
OWNERS_OF_VOLUMES = {"volumes", "vllm-volume"}


def document(name: str) -> Document:
    return yaml.safe_load((COMPOSE / name).read_text())


def part_of(service: Document) -> str:
    return wiring.part_of({"command": service.get("command", []), "image": service["image"]})


def listens_at(service: Document) -> str | None:
    command = " ".join(service.get("command", []))
    return (re.findall(r"--port[ =](\d+)", command) or [service.get("environment", {}).get("PORT")])[0]


def hardening_faults(name: str, service: Document) -> list[str]:
    one_shot = name in OWNERS_OF_VOLUMES
    rules = (
        (one_shot or service.get("user", "0").partition(":")[0] not in ("0", "root"), "runs as root"),
        (service.get("read_only") is True or part_of(service) in wiring.MAY_WRITE_ITS_ROOT, "can write to its root"),
        (service.get("cap_drop") == ["ALL"], "keeps capabilities"),
        (service.get("cap_add", []) == (["CHOWN"] if one_shot else []), "takes capabilities"),
        (service.get("security_opt") == ["no-new-privileges:true"], "may gain privileges"),
        (not one_shot or service.get("network_mode") == "none", "has a network"),
    )
    return [f"{name} {what}" for holds, what in rules if not holds]


def dependency_faults(services: dict[str, Document]) -> list[str]:
    faults: list[str] = []
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                faults.append(f"{name} depends on {other}, which is not there")
            elif how["condition"] == "service_healthy" and "healthcheck" not in services[other]:
                faults.append(f"{name} waits for {other}'s health, which is never checked")
            elif how["condition"] == "service_completed_successfully" and services[other].get("restart", "no") != "no":
                faults.append(f"{name} waits for {other}'s end, which is started again for ever")
    return faults


def address_faults(services: dict[str, Document]) -> list[str]:
    faults: list[str] = []
    for name, service in services.items():
        for value in service.get("environment", {}).values():
            for host, port in re.findall(r"^(?:nats|http)://([\w-]+):(\d+)$", str(value)):
                other = services.get(host)
                if other is None:
                    faults.append(f"{name}: there is no service {host}")
                elif not set(service["networks"]) & set(other["networks"]):
                    faults.append(f"{name} cannot reach {host}: they share no network")
                elif port != (listens_at(other) or "4222"):
                    faults.append(f"{name}: {host} does not listen on {port}")
    return faults


@pytest.mark.parametrize("name", ["compose.yaml", "gpu.yaml", "monitoring.yaml", "tracing.yaml"])
def test_files_match_the_compose_specification(name: str) -> None:
    assert schemas.violations(document(name), schemas.compose_schema()) == []


@pytest.mark.parametrize("name", ALL)
def test_services_run_with_least_privilege(name: str) -> None:
    assert hardening_faults(name, ALL[name]) == []


@pytest.mark.parametrize("name", ALL)
def test_every_variable_is_a_known_setting(name: str) -> None:
    service = ALL[name]
    assert wiring.variable_faults(name, part_of(service), service.get("environment", {})) == []


def test_traces_are_turned_on_in_each_part_that_records_spans_by_its_own_variables() -> None:
    services = document("tracing.yaml")["services"]
    assert {part_of(ALL[name]) for name in services} == {"gateway", "application", "webhooks"}
    for name, service in services.items():
        assert wiring.variable_faults(name, part_of(ALL[name]), service["environment"]) == []


@pytest.mark.parametrize("name", sorted(set(ALL) - OWNERS_OF_VOLUMES - set(MONITORING)))
def test_commands_exist_and_take_their_options(name: str) -> None:
    service = ALL[name]
    assert command_faults(name, part_of(service), service["command"]) == []


@pytest.mark.parametrize("name", ALL)
def test_images_are_pinned_and_the_gateways_is_built_locally(name: str) -> None:
    service = ALL[name]
    assert wiring.image_faults(name, service["image"]) == []
    assert service.get("build") == ({"context": "../.."} if IMAGE in service["image"] else None)


def test_service_dependencies_exist() -> None:
    assert dependency_faults(ALL) == []


def test_services_can_reach_each_other() -> None:
    assert address_faults(SERVICES) == []
    with_gpu = copy.deepcopy(ALL)
    with_gpu["ray"]["environment"] |= gpu_services()["ray"]["environment"]
    assert address_faults(with_gpu) == []
    assert with_gpu["ray"]["environment"]["VLLM_URL"] == "http://vllm:8000"


def test_a_second_gpu_has_a_second_replica_that_agents_reach() -> None:
    class Loader(yaml.SafeLoader):
        """Compose's own tags say how files are merged."""

    Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node, deep=True))
    second = yaml.load((COMPOSE / "gpus.yaml").read_text(), Loader)["services"]
    assert set(second) == {"vllm-second", "ray"}
    assert second["vllm-second"]["extends"] == {"file": "gpu.yaml", "service": "vllm"}
    assert second["ray"]["environment"]["VLLM_URL"] == "http://vllm:8000,http://vllm-second:8000"
    gpus = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for service in (GPU["vllm"], second["vllm-second"])
    ]
    assert gpus == [["${GPU:-0}"], ["${SECOND_GPU:-1}"]]


def test_the_gpu_file_disables_the_simulator() -> None:
    assert gpu_services()["simulator"] == {"profiles": ["simulator"]}
    assert [name for name, service in ALL.items() if "simulator" in service.get("depends_on", {})] == []


def test_publishes_only_the_gateway_and_grafana_on_loopback() -> None:
    published = {name: service["ports"] for name, service in ALL.items() if "ports" in service}
    assert published == {
        "gateway": ["127.0.0.1:${GATEWAY_PORT:-8080}:8080"],
        "grafana": ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"],
    }
    networks = document("compose.yaml")["networks"]
    assert {name for name, network in networks.items() if network.get("internal")} == {"log", "engines"}


def test_rays_daemons_listen_on_loopback_and_require_a_token() -> None:
    environment = SERVICES["ray"]["environment"]
    assert environment["RAY_ADDRESS"] == "local"
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_every_file_volume_and_network_exists() -> None:
    compose = document("compose.yaml") | {"services": ALL}
    compose["volumes"] |= document("gpu.yaml")["volumes"] | document("monitoring.yaml")["volumes"]
    compose["configs"] |= document("monitoring.yaml")["configs"]
    for entry in compose["configs"].values():
        assert (COMPOSE / entry["file"]).is_file()
    for name, service in ALL.items():
        assert {config["source"] for config in service.get("configs", [])} <= set(compose["configs"]), name
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"]), name
        assert set(service.get("networks", [])) <= set(compose["networks"]), name


def test_every_part_that_writes_or_reads_facts_has_the_log_key() -> None:
    compose = document("compose.yaml")
    keyed = {name for name, service in SERVICES.items() if "LOG_KEY_FILE" in service.get("environment", {})}
    assert keyed == {"gateway", "ray", "webhooks", "archive"}
    assert keyed == {name for name, service in SERVICES.items() if "secrets" in service}
    assert list(compose["secrets"]) == ["log_key"] and "LOG_KEY_FILE:?" in compose["secrets"]["log_key"]["file"]
    for name in keyed:
        assert SERVICES[name]["secrets"] == ["log_key"], name
        assert SERVICES[name]["environment"]["LOG_KEY_FILE"] == "/run/secrets/log_key", name


def test_stream_settings_match_the_gateways() -> None:
    declared, expected = SERVICES["streams"]["environment"], SERVICES["gateway"]["environment"]
    shared = wiring.streams_variables()
    assert {key: declared.get(key) for key in shared} == {key: expected.get(key) for key in shared}


def test_the_stop_grace_period_covers_the_drain() -> None:
    gateway = SERVICES["gateway"]
    assert int(gateway["stop_grace_period"].removesuffix("s")) > int(gateway["environment"]["DRAIN_TIMEOUT"])


def test_finds_a_misspelt_key() -> None:
    broken = document("compose.yaml")
    broken["services"]["gateway"]["enviroment"] = {}
    assert schemas.violations(broken, schemas.compose_schema())


def _broken(service: str, key: str, value: object) -> dict[str, Any]:
    broken = copy.deepcopy(ALL)
    broken[service][key] = value
    return broken


@pytest.mark.parametrize(
    ("check", "broken", "expected"),
    [
        (dependency_faults, _broken("streams", "restart", "always"), "started again for ever"),
        (address_faults, _broken("ray", "environment", {"VLLM_URL": "http://simulater:8000"}), "no service simulater"),
        (address_faults, _broken("ray", "environment", {"VLLM_URL": "http://simulator:8001"}), "listen on 8001"),
        (address_faults, _broken("gateway", "environment", {"VLLM_URL": "http://simulator:8000"}), "no network"),
    ],
)
def test_finds_each_mistake(
    check: Callable[[dict[str, Document]], list[str]], broken: dict[str, Document], expected: str
) -> None:
    assert any(expected in fault for fault in check(broken))


@pytest.mark.parametrize(
    ("key", "value"),
    [("user", "root"), ("read_only", False), ("cap_drop", []), ("cap_add", ["SYS_ADMIN"]), ("security_opt", [])],
)
def test_finds_a_service_with_more_privileges(key: str, value: object) -> None:
    assert hardening_faults("gateway", SERVICES["gateway"] | {key: value})


@pytest.mark.parametrize(
    "words",
    [
        ["deliberate", "streams", "apply", "--wiat", "30"],
        ["python", "-m", "app.routes.dependencies"],
        ["python", "-m", "serve_deployments.simulator", "--per-token", "10"],
        ["sh", "-c", "true"],
    ],
)
def test_finds_an_invalid_command(words: list[str]) -> None:
    assert command_faults("here", "application", words)


def test_finds_an_unknown_variable() -> None:
    assert wiring.variable_faults("here", "application", ["RAY_AUTH_MODES"]) == [
        "here: unknown variable RAY_AUTH_MODES"
    ]
    assert wiring.variable_faults("here", "application", ["RAY_worker_nicenes"])
    assert wiring.variable_faults("here", "gateway", ["VLLM_URL"])
