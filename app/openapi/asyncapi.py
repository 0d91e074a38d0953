"""The AsyncAPI document: event streams over HTTP, and the NATS subjects that other services read and write.

Tests compare the subjects with the streams in `app.log.streams`.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.event_schemas import StreamEvent
from app.deliberation.announcements import AgentResponse, Announcement
from app.deliberation.facts import CallDelta, CallFinished, End, Event
from app.lifecycle.context import ContextReply, ContextRequest, ContextUpdated
from app.openapi.examples import ID, composed
from app.planning.consumer import PlanRejected
from app.planning.events import PlanRequest, StoryTransition

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
    return str(model.model_fields["type"].default)


# Messages for and from neighbours have no `type`: the subject says what they are.
NEIGHBOURS: dict[str, Model] = {
    "announcement": Announcement,
    "agent.response": AgentResponse,
    "plan.approved": PlanRequest,
    "story.transitioned": StoryTransition,
    "plan.rejected": PlanRejected,
    "context.request": ContextRequest,
    "context.reply": ContextReply,
    "context.updated": ContextUpdated,
}


def _message(name: str, model: Model, schemas: dict[str, Any]) -> dict[str, Any]:
    payload = {"$ref": _REFS.format(model=model.__name__)}
    return {
        "name": name,
        "title": model.__name__,
        "summary": (model.__doc__ or "").strip().partition("\n")[0],
        "contentType": "application/json",
        "payload": payload,
        "examples": [{"payload": composed(payload, schemas)}],
    }


def _channel(
    address: str, messages: Sequence[str], description: str, server: str = "nats", **parameters: dict[str, Any]
) -> dict[str, Any]:
    return {
        "address": address,
        "description": description,
        "servers": [{"$ref": f"#/servers/{server}"}],
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "parameters": parameters,
    }


def _sends(channel: str, description: str, **more: object) -> dict[str, Any]:
    return {"action": "send", "channel": {"$ref": f"#/channels/{channel}"}, "description": description, **more}


# Long by its parts, one for each channel.
def _channels() -> dict[str, dict[str, Any]]:
    id = {"description": "Letters a-z, digits, `-` and `_`, at most 64", "examples": [ID]}
    status = {"description": "The terminal status", "enum": [type_of(end).rpartition(".")[2] for end in ENDS]}
    return {
        "deliberationEvents": _channel(
            "/deliberations/{deliberation_id}/events",
            [type_of(model) for model in (*EVENTS, *STREAM_EVENTS)],
            "One deliberation's events as server-sent events (text/event-stream): replayed, then live, until the "
            "terminal one. `Last-Event-ID` or `after` is the cursor to resume from; `deltas` and `types` filter.",
            server="gateway",
            deliberation_id=id,
        ),
        "facts": _channel(
            "live.deliberations.{tenant}.{deliberation_id}.>",
            [type_of(model) for model in EVENTS],
            "Every stored event, republished by the stream DELIBERATIONS with its sequence in the header "
            "`Nats-Sequence`. Earlier events are in the stream itself, at the subject without `live.`.",
            tenant=_TENANT,
            deliberation_id=id,
        ),
        "endings": _channel(
            "orchestration.deliberation.{status}",
            ["announcement"],
            "The end of each deliberation with all that led to it, once for ever, kept 7 days in ORCHESTRATOR_EVENTS. "
            "Written by default; `PUBLISH` without `announcements` switches it off.",
            status=status,
        ),
        "responses": _channel(
            "agent.response.{outcome}.{deliberation_id}.{call_id}",
            ["agent.response"],
            "Each recorded outcome of a call, once, kept for an hour in AGENT_RESPONSES. Written with "
            "`PUBLISH=responses`.",
            outcome={"description": "Whether there is an answer", "enum": ["completed", "failed"]},
            deliberation_id=id,
            call_id={"description": "The call, unique within the deliberation", "examples": ["s1-dev-001"]},
        ),
        "plans": _channel(
            "planning.plan.approved", ["plan.approved"], "Approved plans, kept 30 days in PLANNING_EVENTS."
        ),
        "transitions": _channel(
            "planning.story.transitioned", ["story.transitioned"], "A story moved on, kept 30 days in PLANNING_EVENTS."
        ),
        "rejections": _channel(
            "planning.plan.rejected", ["plan.rejected"], "Events that were not taken, kept 30 days in PLANNING_EVENTS."
        ),
        "contexts": _channel(
            "context.get",
            ["context.request"],
            "Asked before the acceptance of work with `story_id` in its metadata, where CONTEXT is on; not stored.",
        ),
        "contextReplies": {
            "address": None,
            "description": "The inbox that the request names; the first reply within CONTEXT_TIMEOUT counts.",
            "servers": [{"$ref": "#/servers/nats"}],
            "messages": {"context.reply": {"$ref": "#/components/messages/context.reply"}},
        },
        "contextUpdates": _channel(
            "context.updated",
            ["context.updated"],
            "A context service knows more of a story, kept 7 days in CONTEXT_EVENTS. Nothing here reads it.",
        ),
        "answers": _channel(
            "agent.results.{deliberation_id}",
            [type_of(CallFinished)],
            "The outcome of each call, kept for an hour in AGENT_RESULTS. Written with `PUBLISH=results`.",
            deliberation_id=id,
        ),
        "pieces": _channel(
            "vllm.streaming.{deliberation_id}",
            [type_of(CallDelta)],
            "Text deltas as the engines generate them, kept for 10 minutes in VLLM_STREAMING. Written with "
            "`PUBLISH=texts`.",
            deliberation_id=id,
        ),
    }


def asyncapi() -> dict[str, Any]:
    models = (*EVENTS, *STREAM_EVENTS)
    serialized: Any = [(model, "serialization") for model in (*models, *NEIGHBOURS.values())]
    _, schemas = models_json_schema(serialized, ref_template=_REFS)
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
            "respond": _sends("responses", "Tell of each recorded outcome of a call"),
            "reject": _sends("rejections", "Answer plans and transitions that cannot be taken"),
            "approve": {**_sends("plans", "Start one deliberation per role of a plan"), "action": "receive"},
            "transit": {**_sends("transitions", "Keep the phase of a story"), "action": "receive"},
            "askContext": {
                **_sends("contexts", "Ask what is known of a story"),
                "reply": {"channel": {"$ref": "#/channels/contextReplies"}},
            },
            "copyAnswers": _sends("answers", "Copy the outcome of each call for other services"),
            "copyPieces": _sends("pieces", "Copy text deltas for other services"),
        },
        "components": {
            "messages": {
                name: _message(name, model, schemas["$defs"])
                for name, model in ({type_of(model): model for model in models} | NEIGHBOURS).items()
            },
            "schemas": dict(sorted(schemas["$defs"].items())),
        },
    }
