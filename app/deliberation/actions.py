"""Actions: answers that reply, or call tools of the client. A machine checks whether two are equal.

Two actions are equal when their calls have equal names and arguments, in any order, after the defaults of the tools'
schemas are filled in. A tool says which arguments are compared by their words, as paths, or not at all. Replies are
compared as texts, and by their values where they are JSON of the client's schema. A call needs as many members as the
deliberation and its tool demand.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil
from posixpath import normpath
from typing import Any, Literal, cast

from app.deliberation.answers import canonical_json, normalise
from app.deliberation.facts import Action, ActionCall, Tally
from app.deliberation.specification import Actions, ActionTool, ArgumentComparison, Constraints

SHOWN_CHARS_MAX = 500


# Every decision reads the answers anew. The longest have 131,072 characters.
@lru_cache(maxsize=64)
def read_action(text: str) -> Action:
    """The action in the text of an answer that satisfies the schema of actions."""
    fields = json.loads(text)
    if "reply" in fields:
        reply = fields["reply"]
        return Action(reply=reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False))
    return Action(calls=tuple(ActionCall(name=call["name"], arguments=call["arguments"]) for call in fields["calls"]))


def told(action: Action) -> str:
    """An action in words: its reply, or its calls as they are written in programs, one on a line."""
    return action.reply if action.reply is not None else "\n".join(map(_told_call, action.calls))


def arguments_json(call: ActionCall) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


def _told_call(call: ActionCall) -> str:
    listed = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({', '.join(listed)})"


def with_ids(action: Action, prefix: str) -> Action:
    """The action with ids of its calls, which are the same whenever and wherever it is decided."""
    numbered = enumerate(action.calls, start=1)
    calls = tuple(call.model_copy(update={"id": f"call_{prefix}_{number}"}) for number, call in numbered)
    return action.model_copy(update={"calls": calls})


def compared_action(actions: Actions, text: str, *, replies: Literal["text", "json"] = "text") -> str | None:
    """The action as it is compared; None for a reply without words."""
    action = read_action(text)
    if action.reply is not None:
        return normalise(action.reply, replies)
    tools = {tool.name: tool for tool in actions.tools}
    try:
        # Calls in parallel have no order.
        return "\n".join(sorted(_compared_call(tools.get(call.name), call) for call in action.calls))
    except RecursionError:
        return text


def _compared_call(known: ActionTool | None, call: ActionCall) -> str:
    # A foreign writer may have recorded a call of another tool.
    tool = known or ActionTool(name=call.name, parameters={})
    arguments = cast("dict[str, Any]", _filled(tool.parameters, call.arguments))
    shown = {
        name: _compared(tool.comparisons.get(name), value)
        for name, value in arguments.items()
        if tool.comparisons.get(name) != "ignore"
    }
    document = json.dumps(shown)
    return f"{tool.name}({canonical_json(document) or document})"


def _filled(schema: Mapping[str, Any], value: object) -> object:
    """The value with the defaults of its schema where its objects lack a property."""
    if isinstance(value, list):
        return [_filled(schema.get("items", {}), entry) for entry in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    properties: Mapping[str, Any] = schema.get("properties", {})
    defaults = {name: of["default"] for name, of in properties.items() if "default" in of}
    fields = cast("dict[str, object]", value)
    return defaults | {name: _filled(properties.get(name, {}), entry) for name, entry in fields.items()}


def _compared(comparison: ArgumentComparison | None, value: object) -> object:
    if not isinstance(value, str):
        return value
    match comparison:
        case "text":
            return normalise(value, "text") or ""
        case "path":
            return normpath(value)
        case _:
            return value


def members_needed(constraints: Constraints, size: int, text: str | None = None) -> int:
    """How many of a council's members must give this answer; without a text, how many any answer needs at least."""
    shares = [constraints.agreement_min]
    if text is not None and constraints.actions is not None:
        called = {call.name for call in read_action(text).calls}
        shares += [tool.agreement_min for tool in constraints.actions.tools if tool.name in called]
    # Exact decimals: 0.56 of 25 is 14, and more in binary.
    return max((ceil(Fraction(str(share)) * size) for share in shares if share is not None), default=0)


def dissent_told(tallies: Sequence[Tally], needed: int, size: int) -> str:
    """The sentences that stand in place of an answer on which too few agree."""
    head = f"The council does not agree: an answer needs {needed} of {size} members."
    return "\n".join([head, *(f"- {tally.votes}: {tally.answer[:SHOWN_CHARS_MAX]}" for tally in tallies)])


def as_action(written: object, schema: Mapping[str, Any]) -> object:
    """An action in its form where a model's meaning is plain; anything else as it is. `schema` is that of actions.

    Models reply with a plain text, write one call alone, arguments as JSON within a string, as OpenAI's API does, and
    numbers within strings.
    """
    if isinstance(written, str):
        return {"reply": written}
    if isinstance(written, list):
        return {"calls": _as_calls(cast("list[object]", written), schema)}
    if not isinstance(written, dict):
        return written
    fields = cast("dict[str, object]", written)
    calls: object = fields.get("calls") or fields.get("tool_calls")
    if not calls and fields.keys() & {"name", "function"}:
        calls = fields
    if calls:
        listed = cast("list[object]", calls) if isinstance(calls, list) else [calls]
        return {"calls": _as_calls(listed, schema)}
    if _reply_schema(schema).get("type") == "object":
        # Nothing within it is retyped: what satisfies the client's schema is kept to the letter.
        return {"reply": _as_typed({"type": "object"}, fields.get("reply", fields))}
    return {"reply": fields["reply"]} if isinstance(fields.get("reply"), str) else fields


def _reply_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a reply in that of actions; empty where every action calls."""
    return schema["anyOf"][0]["properties"]["reply"] if "anyOf" in schema else {}


def _as_calls(written: Iterable[object], schema: Mapping[str, Any]) -> list[object]:
    calling = schema["anyOf"][-1] if "anyOf" in schema else schema
    tools = [call["properties"] for call in calling["properties"]["calls"]["items"]["anyOf"]]
    return [_as_call(call, {tool["name"]["enum"][0]: tool["arguments"] for tool in tools}) for call in written]


def _as_call(written: object, schemas: Mapping[str, Any]) -> object:
    if not isinstance(written, dict):
        return written
    fields = cast("dict[str, object]", written)
    if isinstance(fields.get("function"), dict):
        fields = cast("dict[str, object]", fields["function"])
    name = fields.get("name")
    arguments: object = fields.get("arguments") or {}
    return {"name": name, "arguments": _as_typed(schemas.get(str(name), {"type": "object"}), arguments)}


def _as_typed(schema: Mapping[str, Any], value: object) -> object:
    """The value with each text replaced that holds, as JSON, the value of another type that the schema wants there."""
    types = schema.get("type", "string")
    wanted: Sequence[str] = [types] if isinstance(types, str) else types
    if isinstance(value, str) and "string" not in wanted and "anyOf" not in schema:
        try:
            meant = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return value if isinstance(meant, str) else _as_typed(schema, meant)
    if isinstance(value, dict):
        properties: Mapping[str, Any] = schema.get("properties", {})
        fields = cast("dict[str, object]", value)
        return {name: _as_typed(properties.get(name, {}), entry) for name, entry in fields.items()}
    if isinstance(value, list):
        return [_as_typed(schema.get("items", {}), entry) for entry in cast("list[object]", value)]
    return value
