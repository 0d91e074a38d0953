import re
from typing import Any

import jsonschema
import pytest

from app.api.event_schemas import DeliberationEvent
from app.deliberation.facts import TERMINAL_STATUS
from app.log.stream_settings import PUBLICATIONS, StreamSettings
from app.log.streams import declared_streams
from app.openapi.asyncapi import ENDS, EVENTS, NEIGHBOURS, STREAM_EVENTS, asyncapi, type_of
from tests.components.openapi.documented import references
from tests.fakes import subject_matches

DOCUMENT = asyncapi()
NEIGHBOURS_STREAMS = {
    "endings": "ORCHESTRATOR_EVENTS",
    "responses": "AGENT_RESPONSES",
    "plans": "PLANNING_EVENTS",
    "transitions": "PLANNING_EVENTS",
    "rejections": "PLANNING_EVENTS",
    "contextUpdates": "CONTEXT_EVENTS",
}


def resolved(reference: str) -> Any:
    found: Any = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def test_every_reference_resolves() -> None:
    for reference in references(DOCUMENT):
        assert resolved(reference), reference


def test_declares_every_event_of_the_stream() -> None:
    types = {type_of(model) for model in (*EVENTS, *STREAM_EVENTS)}
    assert types == DeliberationEvent.model_json_schema()["discriminator"]["mapping"].keys()
    assert DOCUMENT["channels"]["deliberationEvents"]["messages"].keys() == types
    assert DOCUMENT["components"]["messages"].keys() == types | NEIGHBOURS.keys()


def test_subjects_match_the_declared_streams() -> None:
    streams = {stream["name"]: stream for stream in declared_streams(StreamSettings(publications=PUBLICATIONS))}
    addresses = {name: channel["address"] for name, channel in DOCUMENT["channels"].items()}
    assert addresses["facts"].startswith(streams["DELIBERATIONS"]["republish"]["dest"].removesuffix(">"))
    for channel, name in (("answers", "AGENT_RESULTS"), ("pieces", "VLLM_STREAMING")):
        (transform,) = streams[name]["sources"][0]["subject_transforms"]
        assert addresses[channel] == transform["dest"].replace("{{wildcard(2)}}", "{deliberation_id}")
        (message,) = DOCUMENT["channels"][channel]["messages"]
        assert transform["src"].endswith(message.replace(".", ".*."))
        assert name in DOCUMENT["channels"][channel]["description"]
    for channel, name in NEIGHBOURS_STREAMS.items():
        subject = re.sub(r"{\w+}", "x", addresses[channel])
        assert any(subject_matches(pattern, subject) for pattern in streams[name]["subjects"])
        assert name in DOCUMENT["channels"][channel]["description"]
    # A stream that stored requests would answer them.
    stored = [pattern for stream in streams.values() for pattern in stream.get("subjects", ())]
    assert not any(subject_matches(pattern, addresses["contexts"]) for pattern in stored)
    assert TERMINAL_STATUS.keys() == {type_of(end) for end in ENDS}
    assert DOCUMENT["channels"]["endings"]["parameters"]["status"]["enum"] == list(TERMINAL_STATUS.values())


@pytest.mark.parametrize("name", DOCUMENT["components"]["messages"])
def test_every_message_has_an_example_that_matches_its_schema(name: str) -> None:
    message = DOCUMENT["components"]["messages"][name]
    schema = {"$ref": message["payload"]["$ref"], "components": DOCUMENT["components"]}
    (example,) = message["examples"]
    jsonschema.Draft202012Validator(schema).validate(example["payload"])
