import re
from collections.abc import Callable

import pytest

from tests.deploy import manifests, schemas, wiring
from tests.deploy.commands import command_faults
from tests.deploy.manifests import KUSTOMIZE, ROOT, Document, name_of, of_kind, pod_of, the

UNKNOWN_KINDS = {"ray.io/v1 RayService"}
CLUSTER_WIDE = ("Namespace", "PriorityClass")


def test_resource_files_match_the_schemas() -> None:
    """This reads the files as they are written."""
    options = ("components/nats-r3", "components/archive", "components/planning")
    documents = manifests.written("base", "overlays/local", "overlays/gpu", *options)
    faults, unknown = schemas.kubernetes_faults(documents)
    assert faults == []
    assert unknown == UNKNOWN_KINDS
    present = {manifests.name_of(document) for document in documents}
    assert present >= {"Deployment/gateway", "StatefulSet/nats", "Job/streams", "RayService/agents", "Deployment/vllm"}
    assert [fault for service in of_kind(documents, "RayService") for fault in schemas.ray_faults(service)] == []


def test_builtin_kinds_match_the_strict_schemas(variant: list[Document]) -> None:
    faults, unknown = schemas.kubernetes_faults(variant)
    assert faults == []
    assert unknown == UNKNOWN_KINDS


def test_the_ray_service_matches_kuberays_schema(variant: list[Document]) -> None:
    (service,) = of_kind(variant, "RayService")
    assert schemas.ray_faults(service) == []


@pytest.mark.parametrize("check", wiring.FAULTS)
def test_references_resolve(variant: list[Document], check: Callable[[list[Document]], list[str]]) -> None:
    assert check(variant) == []


def test_images_are_pinned_and_the_gateways_has_this_version(variant: list[Document]) -> None:
    faults = [fault for owner, c in manifests.containers(variant) for fault in wiring.image_faults(owner, c["image"])]
    assert faults == []


def test_commands_exist_and_take_their_options(variant: list[Document]) -> None:
    with_command = {owner: container for owner, container in manifests.containers(variant) if "command" in container}
    assert {"Deployment/gateway gateway", "Job/streams streams"} <= set(with_command)
    for owner, container in with_command.items():
        words = [*container["command"], *container.get("args", [])]
        assert command_faults(owner, wiring.part_of(container), words) == []


def test_everything_is_in_one_namespace(variant: list[Document]) -> None:
    spaces = {each["metadata"].get("namespace") for each in variant if each["kind"] not in CLUSTER_WIDE}
    assert spaces == {"deliberations"}


def test_a_changed_setting_or_role_restarts_its_readers(variant: list[Document]) -> None:
    """ConfigMaps have a hash of their content in their name, and the RayService refers to that name."""
    names = {each["metadata"]["name"] for each in of_kind(variant, "ConfigMap")}
    assert {re.sub("-[a-z0-9]{10}$", "", name) for name in names} == {"settings", "roles", "nats"}
    assert all(re.search("-[a-z0-9]{10}$", name) for name in names)
    for owner in ("RayService/agents head", "RayService/agents agents"):
        pod = pod_of(variant, owner)
        assert pod.containers[0]["envFrom"][0]["configMapRef"]["name"] in names
        assert pod.spec["volumes"][0]["configMap"]["name"] in names


def test_rays_version_matches_its_image(variant: list[Document]) -> None:
    (service,) = of_kind(variant, "RayService")
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == manifests.pinned("ray[serve]")


def test_only_ray_and_its_operator_reach_rays_ports(variant: list[Document]) -> None:
    deny = the(variant, "NetworkPolicy/deny-ingress")["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress"]}
    agents = the(variant, "NetworkPolicy/agents")["spec"]
    ours = {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "agents"}}}
    everywhere = [rule for rule in agents["ingress"] if "ports" not in rule]
    assert everywhere == [{"from": [ours]}]
    named = {port["port"] for rule in agents["ingress"] for port in rule.get("ports", [])}
    assert named & {8265, 10001, 6379} == {8265}
    (dashboard,) = (rule for rule in agents["ingress"] if {"port": 8265} in rule.get("ports", []))
    (operator,) = dashboard["from"]
    assert operator["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}
    assert 10001 not in pod_of(variant, "RayService/agents head").ports


def test_declares_the_port_and_probe_that_kuberay_requires(variant: list[Document]) -> None:
    """It refuses a head without a port `serve`, and its default probe of workers needs an HTTP proxy."""
    assert "serve" in pod_of(variant, "RayService/agents head").ports
    (worker,) = pod_of(variant, "RayService/agents agents").containers
    assert worker["readinessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}
    assert "command" not in worker and "args" not in worker


def test_the_streams_job_and_the_gateway_share_settings(variant: list[Document]) -> None:
    shared = [
        {source["configMapRef"]["name"] for source in pod_of(variant, owner).containers[0]["envFrom"]}
        for owner in ("Deployment/gateway", "Job/streams")
    ]
    assert shared[0] == shared[1]
    settings = the(variant, "ConfigMap/settings")["data"]
    servers = the(variant, "StatefulSet/nats")["spec"]["replicas"]
    assert int(settings["STREAM_REPLICAS"]) == servers
    assert settings["ACK_WAIT"] == ("6" if servers == 1 else "20")


def test_several_pods_of_a_part_spread_over_nodes_and_have_a_disruption_budget(variant: list[Document]) -> None:
    kinds = [*of_kind(variant, "Deployment"), *of_kind(variant, "StatefulSet")]
    several = [name_of(each) for each in kinds if each["spec"].get("replicas", 1) > 1]
    budgets = [each["spec"]["selector"]["matchLabels"] for each in of_kind(variant, "PodDisruptionBudget")]
    for pod in (pod_of(variant, owner) for owner in [*several, "RayService/agents agents"]):
        affinity: Document = pod.spec.get("affinity", {}).get("podAntiAffinity", {})
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        (spread,) = pod.spec.get("topologySpreadConstraints", required)
        assert spread["topologyKey"] == "kubernetes.io/hostname", pod.owner
        assert spread["labelSelector"]["matchLabels"].items() <= pod.labels.items(), pod.owner
        assert any(budget.items() <= pod.labels.items() for budget in budgets), pod.owner


def test_the_log_has_a_higher_priority_than_the_parts_that_need_it(variant: list[Document]) -> None:
    values = {each["metadata"]["name"]: each["value"] for each in of_kind(variant, "PriorityClass")}
    owners = ("StatefulSet/nats", "Deployment/gateway", "RayService/agents head", "RayService/agents agents")
    log, *others = (values[pod_of(variant, owner).spec["priorityClassName"]] for owner in owners)
    assert log > max(others) and min(others) > 0


def test_cluster_routes_name_every_server() -> None:
    routes = re.findall(r"nats://([\w.-]+):6222", (KUSTOMIZE / "components/nats-r3/cluster.conf").read_text())
    assert routes == ["nats-0.nats", "nats-1.nats", "nats-2.nats"]


def test_nats_storage_fits_its_volume(variant: list[Document]) -> None:
    (claim,) = the(variant, "StatefulSet/nats")["spec"]["volumeClaimTemplates"]
    (size,) = re.findall(r"^(\d+)Gi$", claim["spec"]["resources"]["requests"]["storage"])
    (bound,) = re.findall(r"max_file_store: (\d+)GB", (KUSTOMIZE / "base/nats.conf").read_text())
    assert int(bound) <= 0.7 * int(size)
    (gateway,) = pod_of(variant, "Deployment/gateway").spec["containers"]
    assert {"name": "NATS_STORE_MAX", "value": str(int(bound) << 30)} in gateway["env"]


def test_the_roles_are_the_packaged_ones() -> None:
    """They are copied, because kustomize reads no files outside its directory."""
    assert (KUSTOMIZE / "base/roles.yaml").read_bytes() == (ROOT / "app/roles.yaml").read_bytes()


def test_passwords_come_only_from_the_secret(variants: dict[str, list[Document]]) -> None:
    documents = variants["everything"]
    assert of_kind(documents, "Secret") == []
    for owner, user in {
        "Deployment/gateway": "gateway",
        "Deployment/webhooks": "webhooks",
        "Deployment/archive": "archive",
        "Job/streams": "streams",
        "RayService/agents head": "agents",
        "RayService/agents agents": "agents",
    }.items():
        entries = pod_of(documents, owner).containers[0]["env"]
        names = [entry["name"] for entry in entries]
        assert names.index("NATS_PASSWORD") < names.index("NATS_URL"), "Kubernetes expands only earlier variables"
        by_name = {entry["name"]: entry for entry in entries}
        assert by_name["NATS_URL"]["value"] == f"nats://{user}:$(NATS_PASSWORD)@nats:4222"
        assert by_name["NATS_PASSWORD"]["valueFrom"] == {"secretKeyRef": {"name": "nats-users", "key": user}}


def test_several_replicas_of_vllm_are_listed_by_name(variants: dict[str, list[Document]]) -> None:
    gpus = variants["gpus"]
    replicas = the(gpus, "StatefulSet/vllm")["spec"]["replicas"]
    urls = ",".join(f"http://vllm-{number}.engines:8000" for number in range(replicas))
    found = [e["value"] for _, c in manifests.containers(gpus) for e in c.get("env", []) if e["name"] == "VLLM_URL"]
    assert found and set(found) == {urls}
    assert {"Deployment/vllm", "PersistentVolumeClaim/models"}.isdisjoint(map(manifests.name_of, gpus))


def test_replicas_on_one_gpu_take_no_whole_gpu_and_together_no_more_than_its_memory(
    variants: dict[str, list[Document]],
) -> None:
    several = the(variants["shared gpu"], "StatefulSet/vllm")["spec"]
    (container,) = several["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert limits["nvidia.com/gpu.shared"] == 1 and "nvidia.com/gpu" not in limits
    (part,) = (each.partition("=")[2] for each in container["args"] if each.startswith("--gpu-memory-utilization="))
    assert several["replicas"] * float(part) <= 0.9


def test_all_vllms_run_with_the_same_options(variants: dict[str, list[Document]]) -> None:
    pods = (pod_of(variants["gpu"], "Deployment/vllm"), pod_of(variants["gpus"], "StatefulSet/vllm"))
    one, several = (pod.containers[0] for pod in pods)
    assert one["args"] == several["args"] and one["image"] == several["image"]
    compose = manifests.gpu_services()["vllm"]
    assert compose["command"][1:] == one["args"][1:] and compose["image"] == one["image"]
