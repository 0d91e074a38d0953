from collections.abc import Callable

import pytest
import yaml

from app.log.stream_settings import TASKS_STREAM, worker_consumer
from tests.deploy import manifests, schemas, wiring
from tests.deploy.commands import command_faults
from tests.deploy.manifests import KUSTOMIZE, Document, combined, of_kind, pod_of, the

WORKERS = ("components/planning", "components/archive", "components/workers")
USERS = ("components/nats-users", "components/log-key", "components/engine-keys")
ROLES = tuple(yaml.safe_load((KUSTOMIZE / "base/roles.yaml").read_text())["roles"])


@pytest.fixture(scope="module", params=["keda", "hpa"])
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    scaled = ["components/workers-hpa"] if request.param == "hpa" else []
    return combined(tmp_path_factory.mktemp(request.param), ["overlays/local"], [*WORKERS, *scaled, *USERS])


@pytest.mark.parametrize("check", wiring.FAULTS)
def test_references_resolve(rendered: list[Document], check: Callable[[list[Document]], list[str]]) -> None:
    assert check(rendered) == []


def test_nothing_of_ray_is_left(rendered: list[Document]) -> None:
    assert of_kind(rendered, "RayService") == []
    assert [each["metadata"]["name"] for each in of_kind(rendered, "NetworkPolicy") if "agents" in str(each)] == []
    faults, unknown = schemas.kubernetes_faults(rendered)
    assert faults == [] and unknown <= {"keda.sh/v1alpha1 ScaledObject"}


def test_each_role_has_a_worker_with_its_arguments_and_user(rendered: list[Document]) -> None:
    for role in ROLES:
        (container,) = pod_of(rendered, f"Deployment/worker-{role.lower()}").containers
        assert container["command"] == ["deliberate", "worker", "--role", role, "--concurrency", "16"]
        assert command_faults(role, wiring.part_of(container), container["command"]) == []
        urls = [entry["value"] for entry in container["env"] if entry["name"] == "NATS_URL"]
        assert urls == ["nats://worker:$(NATS_PASSWORD)@nats:4222"]
    (coordinator,) = pod_of(rendered, "Deployment/coordinator").containers
    assert {"name": "NATS_URL", "value": "nats://agents:$(NATS_PASSWORD)@nats:4222"} in coordinator["env"]
    assert the(rendered, "ConfigMap/settings")["data"]["AGENTS"] == "nats"


def test_the_streams_job_knows_the_roles(rendered: list[Document]) -> None:
    mounts = pod_of(rendered, "Job/streams").containers[0]["volumeMounts"]
    assert {"name": "roles", "mountPath": "/etc/deliberate", "readOnly": True} in mounts


def test_each_role_is_scaled_once(rendered: list[Document]) -> None:
    keda, plain = of_kind(rendered, "ScaledObject"), of_kind(rendered, "HorizontalPodAutoscaler")
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in keda + plain]
    assert sorted(scaled) == sorted(f"worker-{role.lower()}" for role in ROLES) and not (keda and plain)
    triggers = [trigger for each in keda for trigger in each["spec"]["triggers"]]
    found = {each["metadata"]["consumer"] for each in triggers}
    assert found == ({worker_consumer(role) for role in ROLES} if keda else set())
    for each in triggers:
        assert (each["type"], each["metadata"]["stream"]) == ("nats-jetstream", TASKS_STREAM)
        host, _, port = each["metadata"]["natsServerMonitoringEndpoint"].partition(":")
        ports = [found["port"] for found in the(rendered, "Service/nats")["spec"]["ports"]]
        assert host.startswith("nats.deliberations.") and int(port) in ports


def test_a_pod_has_time_to_finish_its_calls(rendered: list[Document]) -> None:
    for role in ROLES:
        pod = pod_of(rendered, f"Deployment/worker-{role.lower()}")
        (drain,) = (entry["value"] for entry in pod.containers[0]["env"] if entry["name"] == "WORKER_DRAIN")
        assert pod.spec["terminationGracePeriodSeconds"] > float(drain) + 5


def test_every_file_is_a_manifest_of_a_known_kind() -> None:
    """This reads the files as they are written."""
    faults, unknown = schemas.kubernetes_faults(manifests.written("components/workers", "components/workers-hpa"))
    assert faults == [] and unknown == {"keda.sh/v1alpha1 ScaledObject"}
