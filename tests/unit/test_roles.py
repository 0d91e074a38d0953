"""Roles as roles.yaml declares them."""

from importlib.resources import files

import pytest
import yaml

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import Replicas, parse_roles
from app.deliberation.specification import Sampling

PERSONA = {"persona": "You are a cooper."}


def test_the_shipped_file_declares_five_roles_with_personas_of_their_own() -> None:
    roles = parse_roles(yaml.safe_load(files("app").joinpath("roles.yaml").read_text()))
    assert list(roles) == ["DEV", "QA", "ARCHITECT", "DEVOPS", "DATA"]
    assert len({role.persona for role in roles.values()}) == 5
    assert all(role.model is None and role.engines == () for role in roles.values()), "the default engines serve them"


def test_omitted_fields_of_a_role_have_defaults() -> None:
    role = parse_roles({"roles": {"COOPER": PERSONA}})["COOPER"]
    assert (role.model, role.engines, role.sampling, role.replicas) == (None, (), Sampling(), Replicas(min=1, max=1))
    assert role.concurrency == 1_024


def test_a_role_may_name_all_of_it() -> None:
    role = parse_roles(
        {
            "roles": {
                "COOPER": {
                    **PERSONA,
                    "model": "oak",
                    "engines": ["http://a:1/v1/", "https://b"],
                    "sampling": {"temperature": 0, "max_tokens": 10, "top_p": 0.5},
                    "replicas": {"min": 2, "max": 4},
                    "concurrency": 1,
                }
            }
        }
    )["COOPER"]
    assert role.engines == ("http://a:1", "https://b"), "with or without /v1"
    assert role.sampling == Sampling(temperature=0, max_tokens=10, top_p=0.5)
    assert (role.replicas.min, role.replicas.max, role.concurrency, role.model) == (2, 4, 1, "oak")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (None, "roles.yaml"),
        ([], "roles.yaml"),
        ("DEV", "roles.yaml"),
        ({}, "roles"),
        ({"roles": {}}, "roles"),
        ({"roles": [PERSONA]}, "roles"),
        ({"roles": {"DEV": {}}}, "roles.DEV.persona"),
        ({"roles": {"DEV": {"persona": ""}}}, "roles.DEV.persona"),
        ({"roles": {"DEV": {"persona": "x" * 4_001}}}, "roles.DEV.persona"),
        ({"roles": {"DEV": {**PERSONA, "modle": "m"}}}, "roles.DEV.modle"),
        ({"roles": {"dev": PERSONA}}, "roles"),
        ({"roles": {"A.B": PERSONA}}, "roles"),
        ({"roles": {"*": PERSONA}}, "roles"),
        ({"roles": {"A" * 33: PERSONA}}, "roles"),
        ({"roles": {"DEV\n": PERSONA}}, "roles"),
        ({"roles": {"DEV": PERSONA}, "rolls": {}}, "rolls"),
        ({"roles": {"DEV": {**PERSONA, "engines": ["vllm:8000"]}}}, "roles.DEV.engines.0"),
        ({"roles": {"DEV": {**PERSONA, "engines": "http://a"}}}, "roles.DEV.engines"),
        ({"roles": {"DEV": {**PERSONA, "sampling": {"temprature": 0.1}}}}, "roles.DEV.sampling"),
        ({"roles": {"DEV": {**PERSONA, "sampling": {"temperature": 2.1}}}}, "roles.DEV.sampling.temperature"),
        ({"roles": {"DEV": {**PERSONA, "sampling": None}}}, "roles.DEV.sampling"),
        ({"roles": {"DEV": {**PERSONA, "replicas": {"min": 0}}}}, "roles.DEV.replicas.min"),
        ({"roles": {"DEV": {**PERSONA, "replicas": {"min": 3, "max": 2}}}}, "roles.DEV.replicas"),
        ({"roles": {"DEV": {**PERSONA, "concurrency": 0}}}, "roles.DEV.concurrency"),
    ],
)
def test_a_fault_is_named_by_its_place(content: object, where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_roles(content)
    assert caught.value.field == where
    assert str(caught.value).startswith(f"roles.yaml: {where}: ")
