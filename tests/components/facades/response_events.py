"""The events in a stream of responses."""

import json
from typing import Any


def events(content: list[bytes]) -> list[dict[str, Any]]:
    assert content[-1] == b"data: [DONE]\n\n"
    shown: list[dict[str, Any]] = []
    for frame in content[:-1]:
        kind, data = frame.decode().removesuffix("\n\n").split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        shown.append(event)
    return shown
