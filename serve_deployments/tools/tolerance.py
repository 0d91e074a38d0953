"""What a tool server sends, as the field's clients read it: null is absent, and one bad tool costs no other."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import mcp_types
from mcp import Client
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

ANSWERS_WAITING_MAX = 32
"""A server that asks and reads no answer would else have any number kept."""


def tolerated(client: Client) -> Client:
    """The client, whose session reads what a server sends as the field's clients do: one bad entry costs no other."""
    dispatcher: Any = client.session._dispatcher  # pyright: ignore[reportPrivateUsage] -- the package has no hook for it
    send = dispatcher.send_raw_request

    async def tolerant(method: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 -- the package's
        return mended_result(method, await send(method, *arguments, **options))

    dispatcher.send_raw_request = tolerant
    answers = Answers()
    for name in ("_write_result", "_write_error"):
        setattr(dispatcher, name, answers.few(getattr(dispatcher, name)))
    return client


class Answers:
    """The answers to what a server asks of its client, of which few wait to be read; further ones are dropped."""

    def __init__(self) -> None:
        self._waiting = 0

    def few(self, write: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def bounded(*arguments: Any) -> None:  # noqa: ANN401 -- the package's
            if self._waiting < ANSWERS_WAITING_MAX:
                self._waiting += 1
                try:
                    await write(*arguments)
                finally:
                    self._waiting -= 1

        return bounded


def mended_result(method: str, result: Any) -> Any:  # noqa: ANN401 -- a server's JSON
    """A result without null properties; of a list of tools those are left out that have no usable form."""
    if not isinstance(result, dict):
        return result
    fields = _without_nulls(cast("dict[str, Any]", result))
    if method == "tools/list" and isinstance(tools := fields.get("tools"), list):
        fields["tools"] = [tool for entry in cast("list[Any]", tools) if (tool := _usable(entry)) is not None]
    if method == "tools/call" and isinstance(content := fields.get("content"), list):
        parts = cast("list[Any]", content)
        fields["content"] = [
            _without_nulls(cast("dict[str, Any]", part)) if isinstance(part, dict) else part for part in parts
        ]
    return fields


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _usable(entry: Any) -> dict[str, Any] | None:  # noqa: ANN401 -- a server's JSON
    """A tool of a list; None for one without a name or with a schema that is no object's."""
    if not isinstance(entry, dict):
        return None
    tool = _without_nulls(cast("dict[str, Any]", entry))
    schema: Any = tool.get("inputSchema")
    if not isinstance(tool.get("name"), str) or not isinstance(schema, dict):
        return None
    tool["inputSchema"] = _without_nulls(cast("dict[str, Any]", schema))
    if tool["inputSchema"].get("type") != "object":
        return None
    try:
        mcp_types.Tool.model_validate(tool, by_name=False)
        # The package validates a whole list by this stricter form, and one bad tool would refuse all.
        validate_server_result("tools/list", LATEST_HANDSHAKE_VERSION, {"tools": [tool]})
    except ValidationError:
        return None
    return tool
