import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.kubernetes import program

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy/kustomize"
COMPOSE = ROOT / "deploy/compose"
IMAGE = "deliberation-gateway"

Document = dict[str, Any]


def project(folder: Path = ROOT) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def pinned(package: str) -> str:
    requirements: list[str] = project()["project"]["dependencies"]
    (version,) = (each.partition("==")[2] for each in requirements if each.partition("==")[0] == package)
    return version


def rendered(directory: Path) -> list[Document]:
    done = subprocess.run([program("kubectl"), "kustomize", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def combined(place: Path, resources: Sequence[str], components: Sequence[str]) -> list[Document]:
    overlay = place / "overlay"
    overlay.mkdir()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(KUSTOMIZE / each, overlay) for each in resources],
        "components": [os.path.relpath(KUSTOMIZE / each, overlay) for each in components],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return rendered(overlay)


def written(*directories: str) -> list[Document]:
    found: list[Document] = []
    for directory in directories:
        for path in sorted((KUSTOMIZE / directory).rglob("*.yaml")):
            documents = yaml.safe_load_all(path.read_text())
            found += [each for each in documents if "apiVersion" in each and "kustomize" not in each["apiVersion"]]
    return found


@dataclass(frozen=True)
class Pod:
    owner: str
    template: Document

    @property
    def spec(self) -> Document:
        return self.template["spec"]

    @property
    def labels(self) -> Mapping[str, str]:
        return self.template["metadata"]["labels"]

    @property
    def containers(self) -> list[Document]:
        return self.spec["containers"]

    @property
    def ports(self) -> set[int | str]:
        declared = [port for container in self.containers for port in container.get("ports", [])]
        return {port["containerPort"] for port in declared} | {port["name"] for port in declared if "name" in port}


def name_of(document: Document) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def of_kind(documents: Sequence[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def the(documents: Sequence[Document], name: str) -> Document:
    (found,) = (each for each in documents if re.fullmatch(f"{re.escape(name)}(-[a-z0-9]{{10}})?", name_of(each)))
    return found


def pod_of(documents: Sequence[Document], owner: str) -> Pod:
    (found,) = (pod for pod in pods(documents) if pod.owner == owner)
    return found


def pods(documents: Sequence[Document]) -> Iterator[Pod]:
    for document in documents:
        owner = name_of(document)
        if document["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield Pod(owner, document["spec"]["template"])
        elif document["kind"] == "RayService":
            cluster = document["spec"]["rayClusterConfig"]
            yield Pod(f"{owner} head", cluster["headGroupSpec"]["template"])
            for group in cluster["workerGroupSpecs"]:
                yield Pod(f"{owner} {group['groupName']}", group["template"])


def containers(documents: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    for pod in pods(documents):
        for container in pod.containers:
            yield f"{pod.owner} {container['name']}", container


def put(document: Document, path: str, value: object) -> None:
    """Sets the value at a path such as `spec.ports.0.port`."""
    place: Any = document
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value


def compose_services() -> dict[str, Document]:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


def gpu_services() -> dict[str, Document]:
    return yaml.safe_load((COMPOSE / "gpu.yaml").read_text())["services"]


def monitoring_services() -> dict[str, Document]:
    return yaml.safe_load((COMPOSE / "monitoring.yaml").read_text())["services"]
