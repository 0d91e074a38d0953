"""Inputs of runs as AG-UI's client sends them."""

from typing import Any


def message(text: str = "Name a colour.", id: str = "m1", **fields: Any) -> dict[str, Any]:
    return {"id": id, "role": "user", "content": text, **fields}


def run_input(*, run: str = "r1", thread: str = "t1", props: Any = None, **fields: Any) -> dict[str, Any]:
    """The input as AG-UI's client sends it, with every field that it always sends."""
    usual: dict[str, Any] = {"tools": [], "context": [], "state": {}, "protocolVersion": "1.0"}
    run_of = {"threadId": thread, "runId": run, "messages": [message()], "forwardedProps": props or {}}
    return {**usual, **run_of, **fields}


def props(background: bool = False, **options: Any) -> dict[str, Any]:
    return {"background": background, "deliberation": options, "theme": "dark"}
