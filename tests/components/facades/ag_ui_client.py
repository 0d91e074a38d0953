"""AG-UI's official types, and a client that applies events by its specification."""

from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

OFFICIAL: TypeAdapter[Any] = TypeAdapter(Event)

Events = list[dict[str, Any]]


class Client:
    """The messages, open parts and activity of a client that applies the events by the specification."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.open: set[tuple[str, str]] = set()
        self.state: Any = None
        self.activity: Any = None

    def take(self, event: dict[str, Any]) -> None:
        match event["type"].removeprefix("TEXT_"), event:
            case "MESSAGES_SNAPSHOT", {"messages": messages}:
                self.messages = {message["id"]: dict(message) for message in messages}
            case "STATE_SNAPSHOT", {"snapshot": snapshot}:
                self.state = snapshot
            case "ACTIVITY_SNAPSHOT", {"content": content}:
                self.activity = content
            case "ACTIVITY_DELTA", {"patch": patch}:
                assert all(change["op"] == "replace" and change["path"][1:] in self.activity for change in patch)
                self.activity = {**self.activity, **{change["path"][1:]: change["value"] for change in patch}}
            case "STEP_STARTED", {"stepName": name}:
                self._begin("step", name)
            case "STEP_FINISHED", {"stepName": name}:
                self.open.remove(("step", name))
            case "SUBAGENT_STARTED", {"subagentRunId": id}:
                self._begin("subagent", id)
            case "SUBAGENT_FINISHED" | "SUBAGENT_ERROR", {"subagentRunId": id}:
                self.open.remove(("subagent", id))
            case "MESSAGE_START", {"messageId": id, "role": role}:
                self._begin("message", id)
                assert id not in self.messages
                own = {name: event[name] for name in ("name", "subagentRunId") if name in event}
                assert not own or ("subagent", own["subagentRunId"]) in self.open
                self.messages[id] = {"id": id, "role": role, "content": "", **own}
            case "MESSAGE_CONTENT", {"messageId": id, "delta": delta}:
                assert ("message", id) in self.open
                self.messages[id]["content"] += delta
            case "MESSAGE_END", {"messageId": id}:
                self.open.remove(("message", id))
            case "TOOL_CALL_START", {"toolCallId": id, "toolCallName": name}:
                self._begin("tool", id)
                asked = {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                self.messages[id] = {"id": id, "role": "assistant", "toolCalls": [asked], **_author(event)}
            case "TOOL_CALL_ARGS", {"toolCallId": id, "delta": delta}:
                self.messages[id]["toolCalls"][0]["function"]["arguments"] += delta
            case "TOOL_CALL_END", {"toolCallId": id}:
                self.open.remove(("tool", id))
            case "TOOL_CALL_RESULT", {"messageId": id, "toolCallId": call, "content": content}:
                told = {"id": id, "role": "tool", "content": content, "toolCallId": call}
                self.messages[id] = {**told, **_author(event)}
            case "RUN_FINISHED", {}:
                assert self.open == set()
            case kind, _:
                assert kind in ("RUN_STARTED", "RUN_ERROR")

    def _begin(self, kind: str, id: str) -> None:
        assert (kind, id) not in self.open
        self.open.add((kind, id))


def _author(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("subagentRunId",) if name in event}


def client_of(events: Events) -> Client:
    client = Client()
    for event in events:
        client.take(event)
    return client
