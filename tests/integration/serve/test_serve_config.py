"""The Serve configuration of the deployed RayService, checked by Ray's own schema and by the application it names.

Ray ignores keys that it does not know, so they are refused here.
"""

import importlib
from collections.abc import Iterator
from typing import Any, cast, get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from app.process_settings import load_roles
from serve_deployments.application import NAME, build
from serve_deployments.arguments import ApplicationArgs
from tests.deploy.manifests import KUSTOMIZE, put, the, written


def deployed() -> dict[str, Any]:
    service = the(written("base"), "RayService/agents")
    return yaml.safe_load(service["spec"]["serveConfigV2"])


def unknown_keys(config: dict[str, Any], model: type[BaseModel], where: str = "") -> Iterator[str]:
    for key, value in config.items():
        field = model.model_fields.get(key)
        if field is None:
            yield f"{where}{key}"
            continue
        held = next(models_in(field.annotation), None)
        parts = cast("list[Any]", value) if isinstance(value, list) else [value]
        if held is not None:
            for place, part in enumerate(parts):
                yield from unknown_keys(part, held, f"{where}{key}.{place}.")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def test_ray_accepts_the_configuration_and_reads_every_key_of_it() -> None:
    config = deployed()
    ServeDeploySchema.model_validate(config)
    assert list(unknown_keys(config, ServeDeploySchema)) == []


def test_the_application_is_deployed_as_up_deploys_it() -> None:
    """One name, no HTTP proxy, no route."""
    config = deployed()
    (application,) = config["applications"]
    assert application["name"] == NAME
    assert application["route_prefix"] is None
    assert config["proxy_location"] == "Disabled"


def test_the_import_path_leads_to_the_builder() -> None:
    (application,) = deployed()["applications"]
    module, _, name = application["import_path"].partition(":")
    assert getattr(importlib.import_module(module), name) is build


def test_the_builder_takes_the_arguments_and_the_deployed_roles() -> None:
    (application,) = deployed()["applications"]
    args = ApplicationArgs.model_validate(application["args"])
    assert args.coordinator_replicas >= 2, "one may die while the other one goes on"
    assert set(load_roles(KUSTOMIZE / "base/roles.yaml")) == set(load_roles(None))


def test_the_arguments_do_not_repeat_the_environment() -> None:
    """A password in NATS_URL would otherwise stand in the resource; all pods share the environment."""
    (application,) = deployed()["applications"]
    assert not {"nats_url", "engine_urls", "roles_file"} & set(application["args"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("proxy_locations", "Disabled"),
        ("applications.0.import_pth", "x:y"),
        ("applications.0.deployments", [{"name": "Coordinator", "max_ongoing_request": 5}]),
    ],
)
def test_detects_a_key_that_ray_ignores(path: str, value: object) -> None:
    config = deployed()
    put(config, path, value)
    assert list(unknown_keys(config, ServeDeploySchema))


@pytest.mark.parametrize(
    "args", [{"coordinator_replica": 2}, {"coordinator_replicas": 0}, {"coordinator_slots": "many"}]
)
def test_an_argument_that_the_builder_does_not_know_is_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ApplicationArgs.model_validate(args)
