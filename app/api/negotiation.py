"""Content negotiation of events: a stream, or JSON pages."""

from typing import Annotated, Literal

from fastapi import Header

from app.api.problems import NotAcceptable

Media = Literal["text/event-stream", "application/json"]
_OFFERS: tuple[tuple[str, Media], ...] = (
    ("text/event-stream", "text/event-stream"),
    ("application/json", "application/json"),
    ("text/*", "text/event-stream"),
    ("application/*", "application/json"),
    ("*/*", "text/event-stream"),
)


async def media_of(accept: Annotated[str | None, Header(include_in_schema=False)] = None) -> Media:
    """The representation of the answer; raises NotAcceptable when the client accepts neither.

    A named type beats a wildcard regardless of weights; weight 0 refuses a type.
    """
    if accept is None or not accept.strip():
        return "text/event-stream"
    accepted: set[str] = set()
    for entry in accept.lower().split(","):
        media, *parameters = [part.strip() for part in entry.split(";")]
        weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
        if weight.strip("0.") != "":
            accepted.add(media)
    for pattern, media in _OFFERS:
        if pattern in accepted:
            return media
    raise NotAcceptable("This resource is a text/event-stream, or application/json in pages.")
