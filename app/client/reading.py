"""Parses the event of a frame; unknown events stay unparsed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from app.api.event_schemas import DeliberationEvent, KnownEvent
from app.client.sse import Frame


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a type or shape that this version does not know."""

    type: str
    fields: Mapping[str, Any]


AnyEvent: TypeAlias = KnownEvent | UnknownEvent


def event_of(frame: Frame) -> AnyEvent:
    """The event in a frame's data; an `UnknownEvent` if it does not parse. Never raises."""
    try:
        return DeliberationEvent.model_validate_json(frame.data).root
    except ValidationError:
        return UnknownEvent(frame.event, frame.fields())
