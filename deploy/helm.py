"""A Helm chart of deploy/kustomize/base, written from its rendered documents, so that both are in step.

python -m deploy.helm FOLDER
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.kubernetes import program

BASE = Path(__file__).parent / "kustomize" / "base"
NAME = "deliberation-gateway"
ENGINE = "VLLM_URL"
VALUES = """# The image of every part of ours.
image: {image}
engine:
  # An OpenAI-compatible server, or several separated by commas.
  url: {engine}
replicas:
  gateway: {gateway}
  webhooks: {webhooks}
# Secrets of this namespace; docs/operations.md says how to make them.
secrets:
  # With the key `pepper`.
  gateway: gateway
  # With the key `secrets`.
  webhooks: webhooks
"""

Document = dict[str, Any]


def rendered() -> list[Document]:
    """The documents of the base, as kustomize renders them."""
    kustomize = [program("kubectl"), "kustomize", BASE]
    text = subprocess.run(kustomize, check=True, stdout=subprocess.PIPE, text=True).stdout
    return list(yaml.safe_load_all(text))


def write_chart(folder: Path) -> None:
    documents = [each for each in rendered() if each["kind"] != "Namespace"]
    of = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    replicas = {name: of["Deployment", name]["spec"]["replicas"] for name in ("gateway", "webhooks")}
    (engine,) = {each["value"] for each in _parts(documents) if each.get("name") == ENGINE}
    (image,) = {each["image"] for each in _parts(documents) if str(each.get("image")).startswith(NAME)}
    version = image.partition(":")[2]
    chart = {"apiVersion": "v2", "name": NAME, "type": "application", "version": version, "appVersion": version}
    chart["description"] = "Councils of LLM agents behind a REST and SSE gateway; needs KubeRay's operator."
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart, sort_keys=False))
    (folder / "values.yaml").write_text(VALUES.format(image=image, engine=engine, **replicas))
    expressions: list[str] = []
    for each in documents:
        _parametrise(each, image, expressions)
    # Braces of the documents themselves are no template.
    text = yaml.safe_dump_all(documents, sort_keys=False).replace("{{", '{{ "{{" }}')
    for number, expression in enumerate(expressions):
        text = text.replace(_mark(number), f"{{{{ {expression} }}}}")
    (folder / "templates" / f"{NAME}.yaml").write_text(text)


def _mark(number: int) -> str:
    return f"helm-value-{number:03d}-of-this-chart"


def _parametrise(document: Document, image: str, expressions: list[str]) -> None:
    """Put a mark in the place of each value that the chart's user chooses, and its expression into `expressions`."""

    def choose(holder: Document, key: str, expression: str) -> None:
        holder[key] = _mark(len(expressions))
        expressions.append(expression)

    kind, metadata = document["kind"], document["metadata"]
    if "namespace" in metadata:
        choose(metadata, "namespace", ".Release.Namespace")
    if kind == "Deployment":
        choose(document["spec"], "replicas", f".Values.replicas.{metadata['name']}")
    if kind == "Job":
        # A Job cannot be changed, so each revision has its own.
        choose(metadata, "name", f'printf "{metadata["name"]}-%d" .Release.Revision')
    for each in _parts(document):
        if each.get("image") == image:
            choose(each, "image", ".Values.image | quote")
        if each.get("name") == ENGINE:
            choose(each, "value", ".Values.engine.url | quote")
        if isinstance(reference := each.get("secretKeyRef"), dict):
            choose(reference, "name", f".Values.secrets.{reference['name']}")


def _parts(found: object) -> Iterator[Document]:
    """Each object within a document, itself too."""
    if isinstance(found, dict):
        yield found
        for each in list(found.values()):
            yield from _parts(each)
    elif isinstance(found, list):
        for each in found:
            yield from _parts(each)


if __name__ == "__main__":
    write_chart(Path(sys.argv[1]))
