import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import typer
from pydantic_settings import BaseSettings

from app.archive.process import ArchiveSettings
from app.cli.admin.streams import streams_cli
from app.settings import Settings
from app.webhooks.sender.sender_process import SenderSettings
from tests.components.docs.tables import deployer_variables, trace_variables
from tests.deploy.manifests import IMAGE, Document, Pod, containers, name_of, of_kind, pods, project

USERS = ("GATEWAY", "AGENTS", "STREAMS", "KEYS", "WEBHOOKS", "ARCHIVE", "PLANNER", "CONTEXT", "WORKER")
# Variables that third-party programs read.
FOREIGN_VARIABLES = {
    "nats": {"POD_NAME", "GOMEMLIMIT", *(f"{user}_PASSWORD" for user in USERS)},
    "vllm": {"HF_HOME", "HF_TOKEN"},
    "prometheus": set[str](),
    "grafana": {
        "GF_SECURITY_ADMIN_PASSWORD",
        "GF_ANALYTICS_REPORTING_ENABLED",
        "GF_ANALYTICS_CHECK_FOR_UPDATES",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES",
        "GF_PLUGINS_PREINSTALL_DISABLED",
    },
}
DAEMON_SETTINGS = ("worker_niceness",)
TRACED = ("gateway", "webhooks", "worker", "coordinator", "application")
VLLM_MIN = (0, 33, 0)
NATS_MIN = (2, 15, 1)
# Prometheus' release with long support, and the first Grafana that can be told to fetch no plugins.
PROMETHEUS_MIN = (3, 5, 0)
GRAFANA_MIN = (12, 1, 0)
MAY_WRITE_ITS_ROOT = {"vllm"}


def strings_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def settings_variables(model: type[BaseSettings]) -> set[str]:
    return {str(field.validation_alias) for field in model.model_fields.values()}


def streams_variables() -> set[str]:
    command = cast("Any", typer.main.get_group(streams_cli)).commands["apply"]
    return {name for option in command.params if (name := option.envvar)}


@cache
def ray_variables() -> frozenset[str]:
    spec = find_spec("ray")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    places = (
        "_private/ray_constants.py",
        "_private/authentication/authentication_token_setup.py",
        "_common/usage/usage_constants.py",
        "serve/_private/constants.py",
    )
    named = {name for place in places for name in strings_in(root / place) if re.fullmatch("RAY_[A-Z_]+", name)}
    daemon = (root / "core/src/ray/raylet/raylet").read_bytes()
    return frozenset(named | {f"RAY_{setting}" for setting in DAEMON_SETTINGS if setting.encode() in daemon})


def part_of(container: Document) -> str:
    command = " ".join([*container.get("command", []), *container.get("args", [])])
    image = container["image"].partition(":")[0].rpartition("/")[2]
    if image != IMAGE:
        return "vllm" if image == "vllm-openai" else image
    marks = {
        "gateway": "app.main",
        "webhooks": "app.webhooks",
        "archive": "app.archive",
        "worker": "deliberate worker",
        "coordinator": "serve_deployments.coordinator",
        "migration": "archive migrate",
        "simulator": "simulator",
        "streams": "streams apply",
    }
    for part, mark in marks.items():
        if mark in command:
            return part
    return "application"


def known_variables(part: str) -> set[str]:
    readers = {
        "gateway": lambda: settings_variables(Settings),
        "webhooks": lambda: settings_variables(SenderSettings),
        "archive": lambda: settings_variables(ArchiveSettings),
        "migration": lambda: {"DATABASE_URL"},
        "streams": streams_variables,
        "simulator": set[str],
        "worker": deployer_variables,
        "coordinator": deployer_variables,
        "application": lambda: deployer_variables() | ray_variables(),
    }
    traced = trace_variables() if part in TRACED else set[str]()
    return readers[part]() | traced if part in readers else FOREIGN_VARIABLES[part]


def variable_faults(owner: str, part: str, names: Iterable[str], values: Iterable[str] = ()) -> list[str]:
    quoted = {name for value in values for name in re.findall(r"\$\((\w+)\)", value)}
    unread = set(names) - known_variables(part) - quoted
    return [f"{owner}: unknown variable {name}" for name in sorted(unread)]


def environment_faults(documents: Sequence[Document]) -> list[str]:
    faults: list[str] = []
    shared: set[str] = set()
    readers: set[str] = set()
    for config in of_kind(documents, "ConfigMap"):
        if config["metadata"]["name"].startswith("settings"):
            shared |= set(config["data"])
    for owner, container in containers(documents):
        part = part_of(container)
        entries: list[Document] = container.get("env", [])
        faults += variable_faults(owner, part, [e["name"] for e in entries], [e.get("value", "") for e in entries])
        if "envFrom" in container:
            readers |= known_variables(part)
    return faults + [f"settings: unknown variable {name}" for name in sorted(shared - readers) if shared]


def file_faults(documents: Sequence[Document]) -> list[str]:
    """Containers that read a file which settings name, and that do not mount its directory."""
    settings = {c["metadata"]["name"]: c["data"] for c in of_kind(documents, "ConfigMap")}
    faults: list[str] = []
    for owner, container in containers(documents):
        given = {e["name"]: e["value"] for e in container.get("env", []) if "value" in e}
        for source in container.get("envFrom", []):
            given = settings[source["configMapRef"]["name"]] | given
        mounts = [Path(mount["mountPath"]) for mount in container.get("volumeMounts", [])]
        for name in sorted(given.keys() & known_variables(part_of(container))):
            path = Path(given[name])
            if path.is_absolute() and not any(path.is_relative_to(mount) for mount in mounts):
                faults.append(f"{owner}: {name} is {path}, and no volume is mounted there")
    return faults


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    required: Mapping[str, str] = selector.get("matchLabels", {})
    expressions: list[Document] = selector.get("matchExpressions", [])
    return all(labels.get(key) == value for key, value in required.items()) and all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"] for each in expressions
    )


def selector_faults(documents: Sequence[Document]) -> list[str]:
    templates = list(pods(documents))
    faults: list[str] = []

    def selected(owner: str, selector: Mapping[str, Any]) -> list[Pod]:
        found = [pod for pod in templates if _matches(selector, pod.labels)]
        if not found:
            faults.append(f"{owner}: selects no pod: {selector}")
        return found

    for document in documents:
        owner, spec = name_of(document), document.get("spec", {})
        match document["kind"]:
            case "Service":
                ports = {port for pod in selected(owner, {"matchLabels": spec["selector"]}) for port in pod.ports}
                faults += [
                    f"{owner}: no such port: {p['targetPort']}" for p in spec["ports"] if p["targetPort"] not in ports
                ]
            case "PodDisruptionBudget":
                selected(owner, spec["selector"])
            case "Deployment" | "StatefulSet":
                if not _matches(spec["selector"], spec["template"]["metadata"]["labels"]):
                    faults.append(f"{owner}: does not select its own pods")
            case "NetworkPolicy":
                reached = selected(owner, spec["podSelector"])
                ports = {port for pod in reached for port in pod.ports}
                for rule in spec.get("ingress", []):
                    faults += [
                        f"{owner}: no such port: {p['port']}" for p in rule.get("ports", []) if p["port"] not in ports
                    ]
                    for peer in rule["from"]:
                        if "podSelector" in peer and "namespaceSelector" not in peer:
                            selected(owner, peer["podSelector"])
            case _:
                pass
    return faults


def address_faults(documents: Sequence[Document]) -> list[str]:
    services = of_kind(documents, "Service")
    reachable = {(each["metadata"]["name"], port["port"]) for each in services for port in each["spec"]["ports"]}
    values = [value for each in of_kind(documents, "ConfigMap") for value in each["data"].values()]
    values += [entry.get("value", "") for _, container in containers(documents) for entry in container.get("env", [])]
    # A pod of a StatefulSet is named before its Service.
    url = r"^(?:nats|http)://(?:[^@\s]*@)?(?:[\w-]+\.)?([\w-]+):(\d+)$"
    urls = [found for value in values for part in value.split(",") for found in re.findall(url, part)]
    return [f"no Service {host} has port {port}" for host, port in urls if (host, int(port)) not in reachable]


def probe_faults(documents: Sequence[Document]) -> list[str]:
    faults: list[str] = []
    for owner, container in containers(documents):
        names = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in names:
                faults.append(f"{owner}: {probe} asks port {port}, which is undeclared")
    return faults


def reference_faults(documents: Sequence[Document]) -> list[str]:
    have = {(each["kind"], each["metadata"]["name"]) for each in documents}
    sets = of_kind(documents, "StatefulSet")
    claimed = {each["metadata"]["name"] for owner in sets for each in owner["spec"]["volumeClaimTemplates"]}
    faults: list[str] = []
    for pod in pods(documents):
        volumes: list[Document] = pod.spec.get("volumes", [])
        mounts = {mount["name"] for container in pod.containers for mount in container.get("volumeMounts", [])}
        faults += [f"{pod.owner}: no volume {name}" for name in sorted(mounts - {v["name"] for v in volumes} - claimed)]
        named = [("ConfigMap", v["configMap"]["name"]) for v in volumes if "configMap" in v]
        claims = [v["persistentVolumeClaim"] for v in volumes if "persistentVolumeClaim" in v]
        named += [("PersistentVolumeClaim", claim["claimName"]) for claim in claims]
        named += [("ConfigMap", e["configMapRef"]["name"]) for c in pod.containers for e in c.get("envFrom", [])]
        named += [("ServiceAccount", pod.spec["serviceAccountName"])] if "serviceAccountName" in pod.spec else []
        named += [("PriorityClass", pod.spec["priorityClassName"])] if "priorityClassName" in pod.spec else []
        faults += [f"{pod.owner}: no {kind} {name}" for kind, name in named if (kind, name) not in have]
    return faults


def _numbers(tag: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)(?![\w.])", tag)
    return tuple(map(int, found.groups())) if found else ()


def image_faults(owner: str, image: str) -> list[str]:
    name, _, tag = image.rpartition("@")[0].rpartition(":") if "@" in image else image.rpartition(":")
    short = name.rpartition("/")[2]
    if short == IMAGE:
        version = project()["project"]["version"]
        return [] if tag == version else [f"{owner}: {image} is not of version {version}"]
    least = {
        "nats": NATS_MIN,
        "vllm-openai": VLLM_MIN,
        "prometheus": PROMETHEUS_MIN,
        "grafana": GRAFANA_MIN,
    }.get(short)
    if least is None:
        return [f"{owner}: {image} is an unknown image"]
    return [] if _numbers(tag) >= least else [f"{owner}: {image} is older than {'.'.join(map(str, least))}"]


def hardening_faults(documents: Sequence[Document]) -> list[str]:
    faults: list[str] = []
    # The sidecar of Ray's head changes the RayCluster.
    scaling = {
        f"{name_of(each)} head"
        for each in of_kind(documents, "RayService")
        if each["spec"]["rayClusterConfig"].get("enableInTreeAutoscaling")
    }
    for pod in pods(documents):
        context = pod.spec.get("securityContext", {})
        token = pod.spec.get("automountServiceAccountToken")
        for holds, what in (
            (context.get("runAsNonRoot") is True and context.get("runAsUser", 0) > 0, "runs as root"),
            (context.get("seccompProfile") == {"type": "RuntimeDefault"}, "has no seccomp profile"),
            (token is (pod.owner in scaling), "lacks its service account's token" if not token else "has a token"),
            # A Service named `vllm` or `port` would set VLLM_PORT or PORT_…, which programs read.
            (pod.spec.get("enableServiceLinks") is False, "has every Service in its environment"),
        ):
            faults += [] if holds else [f"{pod.owner} {what}"]
    for owner, container in containers(documents):
        context = container.get("securityContext", {})
        for holds, what in (
            (context.get("allowPrivilegeEscalation") is False, "may gain privileges"),
            (context.get("capabilities") == {"drop": ["ALL"]}, "keeps capabilities"),
            (
                context.get("readOnlyRootFilesystem") is True or part_of(container) in MAY_WRITE_ITS_ROOT,
                "can write to its root file system",
            ),
            ("memory" in container.get("resources", {}).get("limits", {}), "has no memory limit"),
            ("requests" in container.get("resources", {}), "requests nothing"),
        ):
            faults += [] if holds else [f"{owner} {what}"]
    return faults


def drain_faults(documents: Sequence[Document]) -> list[str]:
    (gateway,) = (each for each in of_kind(documents, "Deployment") if each["metadata"]["name"] == "gateway")
    spec = gateway["spec"]["template"]["spec"]
    values = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
    needed = int(values["DRAIN_DELAY"]) + int(values["DRAIN_TIMEOUT"])
    grace: int = spec["terminationGracePeriodSeconds"]
    return [] if grace > needed else [f"{grace} s of grace for {needed} s of draining"]


FAULTS = (
    environment_faults,
    file_faults,
    selector_faults,
    address_faults,
    probe_faults,
    reference_faults,
    hardening_faults,
    drain_faults,
)
