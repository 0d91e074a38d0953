"""Follows deliberations from Python: typed events over any number of connections, without gaps or duplicates.

    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as http:
        async with EventStream(http, deliberation_id) as stream:
            async for event in stream:
                ...

docs/sdks.md describes its guarantees, and docs/compatibility.md which changes a release may bring.
"""

from app.api.partial_text import CallText, Texts
from app.client.events import AnyEvent, TextsOfSeveral, UnknownEvent
from app.client.quote import quote
from app.client.stream import EventStream, MultiplexedStream, Retry, StreamLost, StreamRefused, Waits
from app.sse import Frame, SseDecoder

__all__ = [
    "AnyEvent",
    "CallText",
    "EventStream",
    "Frame",
    "MultiplexedStream",
    "Retry",
    "SseDecoder",
    "StreamLost",
    "StreamRefused",
    "Texts",
    "TextsOfSeveral",
    "UnknownEvent",
    "Waits",
    "quote",
]
