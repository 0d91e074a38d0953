"""The AsyncAPI document: every event is told, every subject is one that is declared, and examples fit their schemas."""

from collections.abc import Iterator
from typing import Any, cast

import jsonschema
import pytest

from app.api.event_schemas import DeliberationEvent
from app.deliberation.facts import TERMINAL_STATUS
from app.log.stream_settings import StreamSettings
from app.log.streams import declared_streams
from app.openapi.asyncapi import ENDS, EVENTS, STREAM_EVENTS, asyncapi, type_of

DOCUMENT = asyncapi()


def references(node: object) -> Iterator[str]:
    match node:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for value in cast("dict[str, object]", node).values():
                yield from references(value)
        case list():
            for value in cast("list[object]", node):
                yield from references(value)
        case _:
            return


def resolved(reference: str) -> Any:
    found: Any = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def test_every_reference_leads_somewhere() -> None:
    for reference in references(DOCUMENT):
        assert resolved(reference), reference


def test_every_event_of_the_stream_is_told() -> None:
    told = {type_of(model) for model in (*EVENTS, *STREAM_EVENTS)}
    assert told == DeliberationEvent.model_json_schema()["discriminator"]["mapping"].keys()
    assert DOCUMENT["channels"]["deliberationEvents"]["messages"].keys() == told
    assert DOCUMENT["components"]["messages"].keys() == told


def test_the_subjects_are_those_of_the_declared_streams() -> None:
    streams = {stream["name"]: stream for stream in declared_streams(StreamSettings())}
    addresses = {name: channel["address"] for name, channel in DOCUMENT["channels"].items()}
    assert addresses["facts"].startswith(streams["DELIBERATIONS"]["republish"]["dest"].removesuffix(">"))
    for channel, name in (("answers", "AGENT_RESULTS"), ("pieces", "VLLM_STREAMING")):
        (transform,) = streams[name]["sources"][0]["subject_transforms"]
        assert addresses[channel] == transform["dest"].replace("{{wildcard(2)}}", "{deliberation_id}")
        (message,) = DOCUMENT["channels"][channel]["messages"]
        assert transform["src"].endswith(message.replace(".", ".*."))
        assert name in DOCUMENT["channels"][channel]["description"]
    assert streams["ORCHESTRATOR_EVENTS"]["subjects"] == ["orchestration.>"]
    ends = {address: set(channel["messages"]) for address, channel in DOCUMENT["channels"].items()}["endings"]
    assert ends == TERMINAL_STATUS.keys() == {type_of(end) for end in ENDS}
    assert DOCUMENT["channels"]["endings"]["parameters"]["status"]["enum"] == list(TERMINAL_STATUS.values())


@pytest.mark.parametrize("name", DOCUMENT["components"]["messages"])
def test_an_example_fits_its_payload(name: str) -> None:
    message = DOCUMENT["components"]["messages"][name]
    for example in message.get("examples", ()):
        schema = {"$ref": message["payload"]["$ref"], "components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(example["payload"])


def test_the_log_s_events_of_a_whole_deliberation_have_examples() -> None:
    shown = {name for name, message in DOCUMENT["components"]["messages"].items() if "examples" in message}
    assert shown >= {"deliberation.accepted", "stage.opened", "call.delta", "call.finished", "deliberation.completed"}
