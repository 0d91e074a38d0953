"""Strict schemas: no package has one for RayService, so the fields in use are declared here after KubeRay 1.7's."""

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import kubernetes_validate
from jsonschema.validators import validator_for

from tests.deploy.manifests import Document, name_of, pods

KUBERNETES = "1.34"

_COUNT = {"type": "integer", "minimum": 0}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
# `ray_faults` checks their content with Kubernetes' schema of pod templates.
_POD_TEMPLATE = {"type": "object", "required": ["spec"]}


def _closed(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_SECRET_VALUE = _closed(
    ["valueFrom"],
    valueFrom=_closed(
        ["secretKeyRef"],
        secretKeyRef=_closed(["name", "key"], name={"type": "string"}, key={"type": "string"}),
    ),
)
_CLUSTER = _closed(
    ["rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"],
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions=_closed(
        ["version", "idleTimeoutSeconds", "resources", "securityContext"],
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=_COUNT,
        resources={"type": "object"},
        securityContext={"type": "object"},
        volumeMounts={"type": "array"},
    ),
    authOptions=_closed(["mode"], mode={"const": "token"}, secretName={"type": "string"}),
    gcsFaultToleranceOptions=_closed(
        ["redisAddress"],
        redisAddress={"type": "string"},
        redisUsername=_SECRET_VALUE,
        redisPassword=_SECRET_VALUE,
        externalStorageNamespace={"type": "string"},
    ),
    headGroupSpec=_closed(["rayStartParams", "template"], rayStartParams=_STRINGS, template=_POD_TEMPLATE),
    workerGroupSpecs={
        "type": "array",
        "minItems": 1,
        "items": _closed(
            ["groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"],
            groupName={"type": "string"},
            replicas=_COUNT,
            minReplicas=_COUNT,
            maxReplicas={"type": "integer", "minimum": 1},
            rayStartParams=_STRINGS,
            template=_POD_TEMPLATE,
        ),
    },
)
RAY_SERVICE = _closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=_closed(["name"], name={"type": "string", "maxLength": 47}, namespace={"type": "string"}, labels=_STRINGS),
    spec=_closed(
        ["serveConfigV2", "rayClusterConfig"],
        serveConfigV2={"type": "string", "minLength": 1},
        excludeHeadPodFromServeSvc={"type": "boolean"},
        rayClusterDeletionDelaySeconds=_COUNT,
        upgradeStrategy=_closed(["type"], type={"enum": ["None", "NewCluster"]}),
        rayClusterConfig=_CLUSTER,
    ),
)


def violations(document: object, schema: dict[str, Any]) -> list[str]:
    validator: Any = validator_for(schema)(schema)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(document)]


def kubernetes_faults(documents: Sequence[Document]) -> tuple[list[str], set[str]]:
    faults: list[str] = []
    unknown: set[str] = set()
    for document in documents:
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            faults.append(f"{name_of(document)}: {'.'.join(map(str, error.absolute_path))}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            unknown.add(f"{document['apiVersion']} {document['kind']}")
    return faults, unknown


def ray_faults(service: Document) -> list[str]:
    faults = violations(service, RAY_SERVICE)
    # The operator makes a container of the options; Kubernetes' schema knows their fields.
    sidecar = service["spec"]["rayClusterConfig"].get("autoscalerOptions", {}) if not faults else {}
    fields = {name: sidecar[name] for name in ("resources", "securityContext", "volumeMounts") if name in sidecar}
    for pod in pods([service]) if not faults else ():
        if fields and pod.owner.endswith(" head"):
            containers = [*pod.containers, {"name": "autoscaler", **fields}]
            pod = replace(pod, template={**pod.template, "spec": {**pod.spec, "containers": containers}})
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": pod.owner.rpartition(" ")[2]},
            "template": pod.template,
        }
        faults += kubernetes_faults([template])[0]
    return faults


def compose_schema() -> dict[str, Any]:
    return json.loads(files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text())
