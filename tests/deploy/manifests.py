"""Manifests and Compose files: loading, rendering, and iteration over pods."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy/kustomize"
COMPOSE = ROOT / "deploy/compose"
IMAGE = "deliberation-gateway"

Document = dict[str, Any]


def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(package: str) -> str:
    """The version at which pyproject.toml pins a dependency."""
    requirements: list[str] = project()["project"]["dependencies"]
    (version,) = (each.partition("==")[2] for each in requirements if each.partition("==")[0] == package)
    return version


def kubectl() -> str:
    """The path of kubectl; skips the test if it is not installed."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is not installed: only the unrendered files are checked")
    return found


def rendered(directory: Path) -> list[Document]:
    """The resources of a kustomization, as `kubectl apply -k` sends them."""
    done = subprocess.run([kubectl(), "kustomize", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def combined(place: Path, resources: Sequence[str], components: Sequence[str]) -> list[Document]:
    """The resources of an overlay with components, which is written into the directory `place`."""
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
    """The unrendered resources in the files of some directories."""
    found: list[Document] = []
    for directory in directories:
        for path in sorted((KUSTOMIZE / directory).rglob("*.yaml")):
            documents = yaml.safe_load_all(path.read_text())
            found += [each for each in documents if "apiVersion" in each and "kustomize" not in each["apiVersion"]]
    return found


@dataclass(frozen=True)
class Pod:
    """A pod template and its owner."""

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
        """The declared ports of all containers, by number and by name."""
        declared = [port for container in self.containers for port in container.get("ports", [])]
        return {port["containerPort"] for port in declared} | {port["name"] for port in declared if "name" in port}


def name_of(document: Document) -> str:
    """Kind and name of a resource, for messages."""
    return f"{document['kind']}/{document['metadata']['name']}"


def of_kind(documents: Sequence[Document], kind: str) -> list[Document]:
    """The resources of one kind."""
    return [document for document in documents if document["kind"] == kind]


def the(documents: Sequence[Document], name: str) -> Document:
    """The resource `Kind/name`, with or without kustomize's hash suffix."""
    (found,) = (each for each in documents if re.fullmatch(f"{re.escape(name)}(-[a-z0-9]{{10}})?", name_of(each)))
    return found


def pod_of(documents: Sequence[Document], owner: str) -> Pod:
    """The pod template of an owner, named as in `pods`."""
    (found,) = (pod for pod in pods(documents) if pod.owner == owner)
    return found


def pods(documents: Sequence[Document]) -> Iterator[Pod]:
    """Every pod template, including a RayService's head and workers."""
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
    """Every container, with the name of its owner."""
    for pod in pods(documents):
        for container in pod.containers:
            yield f"{pod.owner} {container['name']}", container


def compose_services() -> dict[str, Document]:
    """The services of compose.yaml, with resolved anchors."""
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


def gpu_services() -> dict[str, Document]:
    """The services of gpu.yaml: new ones, and changes to those of compose.yaml."""
    return yaml.safe_load((COMPOSE / "gpu.yaml").read_text())["services"]
