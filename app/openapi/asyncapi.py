"""The AsyncAPI document: event streams over HTTP, and the NATS subjects that other services may read.

The described application only sends. Tests compare the subjects with the streams in `app.log.streams`.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.event_schemas import StreamEvent
from app.deliberation.facts import CallDelta, CallFinished, End, Event, encode
from app.openapi.example_log import KEY, events

_REFS = "#/components/schemas/{model}"
_DESCRIPTION = """\
Every event of a deliberation is a JSON object with a `type`. Over HTTP it is the data of a server-sent event, in NATS
the payload of a message, with identical bytes. Types and fields may be added: clients must ignore unknown ones."""
_TENANT = {"description": "The tenant; `default` in development mode", "default": "default"}

Model = type[BaseModel]
EVENTS: tuple[Model, ...] = get_args(Event)
STREAM_EVENTS: tuple[Model, ...] = get_args(StreamEvent)
ENDS: tuple[Model, ...] = get_args(End)


def type_of(model: Model) -> str:
    """The `type` of a model's events."""
    return str(model.model_fields["type"].default)


@cache
def _examples() -> dict[str, Any]:
    """The first event of each type in the example log, by type."""
    return {event.type: json.loads(encode(event)) for event in reversed(events(KEY))}


def _message(model: Model) -> dict[str, Any]:
    kind = type_of(model)
    return {
        "name": kind,
        "title": model.__name__,
        "summary": (model.__doc__ or "").strip().partition("\n")[0],
        "contentType": "application/json",
        "payload": {"$ref": _REFS.format(model=model.__name__)},
        **({"examples": [{"payload": _examples()[kind]}]} if kind in _examples() else {}),
    }


def _channel(
    address: str, server: str, models: Sequence[Model], description: str, **parameters: dict[str, Any]
) -> dict[str, Any]:
    return {
        "address": address,
        "description": description,
        "servers": [{"$ref": f"#/servers/{server}"}],
        "messages": {type_of(model): {"$ref": f"#/components/messages/{type_of(model)}"} for model in models},
        "parameters": parameters,
    }


def _sends(channel: str, description: str, **more: object) -> dict[str, Any]:
    return {"action": "send", "channel": {"$ref": f"#/channels/{channel}"}, "description": description, **more}


def _channels() -> dict[str, dict[str, Any]]:
    id = {"description": "Letters a-z, digits, `-` and `_`, at most 64", "examples": [events(KEY)[0].deliberation_id]}
    status = {"description": "The terminal status", "enum": [type_of(end).rpartition(".")[2] for end in ENDS]}
    return {
        "deliberationEvents": _channel(
            "/deliberations/{deliberation_id}/events",
            "gateway",
            (*EVENTS, *STREAM_EVENTS),
            "One deliberation's events as server-sent events (text/event-stream): replayed, then live, until the "
            "terminal one. `Last-Event-ID` or `after` is the cursor to resume from; `deltas` and `types` filter.",
            deliberation_id=id,
        ),
        "facts": _channel(
            "live.deliberations.{tenant}.{deliberation_id}.>",
            "nats",
            EVENTS,
            "Every stored event, republished by the stream DELIBERATIONS with its sequence in the header "
            "`Nats-Sequence`. Earlier events are in the stream itself, at the subject without `live.`.",
            tenant=_TENANT,
            deliberation_id=id,
        ),
        "endings": _channel(
            "orchestration.deliberation.{status}",
            "nats",
            ENDS,
            "Each deliberation's terminal event, once (`Nats-Msg-Id: <id>.end`), kept 7 days in ORCHESTRATOR_EVENTS.",
            status=status,
        ),
        "answers": _channel(
            "agent.results.{deliberation_id}",
            "nats",
            (CallFinished,),
            "The outcome of each call, kept for an hour in AGENT_RESULTS.",
            deliberation_id=id,
        ),
        "pieces": _channel(
            "vllm.streaming.{deliberation_id}",
            "nats",
            (CallDelta,),
            "Text deltas as the engines generate them, kept for 10 minutes in VLLM_STREAMING.",
            deliberation_id=id,
        ),
    }


def asyncapi() -> dict[str, Any]:
    """The document (AsyncAPI 3.0)."""
    models = (*EVENTS, *STREAM_EVENTS)
    _, schemas = models_json_schema([(model, "serialization") for model in models], ref_template=_REFS)
    get = {"http": {"method": "GET", "bindingVersion": "0.3.0"}}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Deliberation Gateway",
            "version": version("deliberation-gateway"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "tags": [{"name": "events", "description": "Events of deliberations"}],
        },
        "defaultContentType": "application/json",
        "servers": {
            "gateway": {"host": "127.0.0.1:8080", "protocol": "http", "description": "The gateway, see openapi.json"},
            "nats": {"host": "127.0.0.1:4222", "protocol": "nats", "description": "NATS with JetStream"},
        },
        "channels": _channels(),
        "operations": {
            "watch": _sends("deliberationEvents", "Watch a deliberation", bindings=get),
            "republish": _sends("facts", "Republish every event once it is stored"),
            "announce": _sends("endings", "Announce the end of each deliberation"),
            "copyAnswers": _sends("answers", "Copy the outcome of each call for other services"),
            "copyPieces": _sends("pieces", "Copy text deltas for other services"),
        },
        "components": {
            "messages": {type_of(model): _message(model) for model in models},
            "schemas": dict(sorted(schemas["$defs"].items())),
        },
    }
