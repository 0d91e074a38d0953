"""Follows deliberations from Python: typed events over any number of connections, without gaps or duplicates.

    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as http:
        async with EventStream(http, deliberation_id) as stream:
            async for event in stream:
                ...

docs/sdks.md describes its guarantees.
"""

from app.api.partial_text import CallText, Texts
from app.client.follower import Retry, Waits
from app.client.reading import AnyEvent, UnknownEvent
from app.client.sse import Frame, SseDecoder
from app.client.stream import EventStream, MultiplexedStream, StreamLost, StreamRefused
from app.client.texts import TextsOfSeveral

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
]
