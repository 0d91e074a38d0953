from collections.abc import Callable

import pytest

from tests.deploy import manifests, schemas, wiring
from tests.deploy.manifests import Document, put, the

CONTAINER = "spec.template.spec.containers.0"
RAY = "spec.rayClusterConfig"
HEAD = f"{RAY}.headGroupSpec.template.spec"
SCALER = {"version": "v2", "idleTimeoutSeconds": 300, "resources": {}, "securityContext": {}}
WORKER = f"{RAY}.workerGroupSpecs.0"
RAY_CONTAINER = f"{WORKER}.template.spec.containers.0"
SECURITY = "spec.template.spec.securityContext"
GRACE = "spec.template.spec.terminationGracePeriodSeconds"


def broken(documents: list[Document], owner: str, path: str, value: object) -> Document:
    resource = the(documents, owner)
    put(resource, path, value)
    return resource


@pytest.mark.parametrize(
    ("check", "owner", "path", "value", "expected"),
    [
        (wiring.environment_faults, "Deployment/gateway", f"{CONTAINER}.env.2.name", "DRAIN_DELY", "DRAIN_DELY"),
        (wiring.environment_faults, "RayService/agents", f"{RAY_CONTAINER}.env.1.name", "RAY_GRPC", "RAY_GRPC"),
        (wiring.environment_faults, "ConfigMap/settings", "data.STREAMS_REPLICAS", "1", "STREAMS_REPLICAS"),
        (
            wiring.file_faults,
            "Job/streams",
            f"{CONTAINER}.volumeMounts",
            [],
            "ROLES_FILE is /etc/deliberate/roles.yaml",
        ),
        (wiring.selector_faults, "Service/gateway", "spec.selector", {"app": "gatway"}, "selects no pod"),
        (wiring.selector_faults, "Service/nats", "spec.ports.0.targetPort", "clients", "no such port: clients"),
        (wiring.selector_faults, "Deployment/gateway", "spec.selector.matchLabels", {"a": "b"}, "its own pods"),
        (wiring.selector_faults, "NetworkPolicy/nats", "spec.ingress.0.ports.0.port", 4223, "no such port: 4223"),
        (wiring.address_faults, "Service/engine", "metadata.name", "engines", "no Service engine"),
        (wiring.probe_faults, "Deployment/gateway", f"{CONTAINER}.readinessProbe.httpGet.port", "web", "port web"),
        (wiring.reference_faults, "Deployment/gateway", f"{CONTAINER}.volumeMounts.0.name", "role", "no volume role"),
        (wiring.hardening_faults, "StatefulSet/nats", f"{SECURITY}.runAsUser", 0, "runs as root"),
        (wiring.hardening_faults, "Job/streams", "spec.template.spec.enableServiceLinks", True, "every Service"),
        (wiring.hardening_faults, "RayService/agents", f"{HEAD}.automountServiceAccountToken", True, "has a token"),
        (
            wiring.hardening_faults,
            "RayService/agents",
            f"{RAY}.enableInTreeAutoscaling",
            True,
            "lacks its service account",
        ),
        (wiring.drain_faults, "Deployment/gateway", GRACE, 30, "30 s of grace"),
    ],
)
def test_finds_broken_references(
    local: list[Document],
    check: Callable[[list[Document]], list[str]],
    owner: str,
    path: str,
    value: object,
    expected: str,
) -> None:
    broken(local, owner, path, value)
    assert any(expected in fault for fault in check(local))


@pytest.mark.parametrize(
    ("owner", "path", "value", "expected"),
    [
        ("Deployment/gateway", "spec.replica", 2, "replica"),
        ("Job/streams", "spec.backoffLimit", "ten", "ten"),
    ],
)
def test_finds_a_misspelt_field_of_kubernetes(
    local: list[Document], owner: str, path: str, value: object, expected: str
) -> None:
    faults, _ = schemas.kubernetes_faults([broken(local, owner, path, value)])
    assert any(expected in fault for fault in faults)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.serveConfig", "", "serveConfig"),
        (f"{RAY}.authOptions.mode", "disabled", "'token' was expected"),
        (f"{RAY}.autoscalerOptions", {**SCALER, "version": "v3"}, "'v3' is not one of"),
        (f"{RAY}.autoscalerOptions", {**SCALER, "securityContext": {"privilege": True}}, "privilege"),
        (f"{WORKER}.rayStartParams.num-cpus", 1, "1 is not of type 'string'"),
        (f"{WORKER}.template.spec.enableServiceLink", False, "enableServiceLink"),
    ],
)
def test_finds_a_misspelt_field_of_kuberay(local: list[Document], path: str, value: object, expected: str) -> None:
    service = broken(local, "RayService/agents", path, value)
    assert any(expected in fault for fault in schemas.ray_faults(service))


@pytest.mark.parametrize(
    "image",
    [
        "deliberation-gateway:latest",
        "registry.example:5000/deliberation-gateway:9.9.9",
        "nats:2.15.0-alpine",
        "vllm/vllm-openai:v0.32.0",
        "busybox:1.36.1",
    ],
)
def test_finds_an_unpinned_or_outdated_image(image: str) -> None:
    assert wiring.image_faults("here", image)


def test_an_image_may_come_from_a_registry_and_be_pinned_by_digest() -> None:
    version = manifests.project()["project"]["version"]
    image = f"registry.example:5000/deliberation-gateway:{version}@sha256:{'0' * 64}"
    assert wiring.image_faults("here", image) == []


def test_finds_an_unknown_kind() -> None:
    gizmo = {"apiVersion": "example.org/v1", "kind": "Gizmo", "metadata": {"name": "x"}}
    assert schemas.kubernetes_faults([gizmo]) == ([], {"example.org/v1 Gizmo"})
