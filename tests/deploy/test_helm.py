"""Helm renders the chart to the documents of kustomize, but for the values that a user chooses."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.helm import rendered, write_chart
from deploy.kubernetes import program
from tests.deploy.manifests import Document

CHOSEN = {
    "image": "registry.example:5000/gateway:9",
    "engine.url": "https://models.example/v1",
    "replicas.gateway": "5",
    "replicas.webhooks": "3",
    "secrets.gateway": "peppers",
    "secrets.webhooks": "signing",
}


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("helm") / "deliberation-gateway"
    write_chart(folder)
    return folder


def helm(*arguments: str | Path) -> str:
    done = subprocess.run([program("helm"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def templated(chart: Path, namespace: str, *options: str) -> dict[tuple[str, str], Document]:
    text = helm("template", "release", chart, "--namespace", namespace, *options)
    return by_name([document for document in yaml.safe_load_all(text) if document])


def by_name(documents: list[Document]) -> dict[tuple[str, str], Document]:
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_helm_finds_no_fault(chart: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", chart)


def test_the_default_values_give_what_kustomize_renders(chart: Path) -> None:
    wanted = by_name([each for each in rendered() if each["kind"] != "Namespace"])
    wanted["Job", "streams-1"] = job = wanted.pop(("Job", "streams"))
    job["metadata"]["name"] = "streams-1"
    assert templated(chart, "deliberations") == wanted


def test_a_chosen_value_stands_wherever_it_belongs_and_changes_nothing_else(chart: Path) -> None:
    options = [argument for name, value in CHOSEN.items() for argument in ("--set", f"{name}={value}")]
    found, before = templated(chart, "elsewhere", *options), templated(chart, "deliberations")
    text = json.dumps([*found.values()])
    back: dict[str, Any] = {
        '"namespace": "elsewhere"': '"namespace": "deliberations"',
        CHOSEN["image"]: "deliberation-gateway:0.1.0",
        CHOSEN["engine.url"]: "http://engine:8000",
        '"replicas": 5': '"replicas": 2',
        '"replicas": 3': '"replicas": 2',
        '"name": "peppers"': '"name": "gateway"',
        '"name": "signing"': '"name": "webhooks"',
    }
    for chosen, default in back.items():
        assert chosen in text
        text = text.replace(chosen, default)
    assert by_name(json.loads(text)) == before
