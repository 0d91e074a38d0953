"""An event as this version of the package understands it, or as what it was when it does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from app.api.event_schemas import DeliberationEvent, KnownEvent
from app.client.sse import Frame


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a type that a newer gateway sends, or of a shape that this version does not read."""

    type: str
    fields: Mapping[str, Any]


AnyEvent: TypeAlias = KnownEvent | UnknownEvent


def event_of(frame: Frame) -> AnyEvent:
    """The event in a frame's data. Nothing is raised: what is not understood is an `UnknownEvent`."""
    try:
        return DeliberationEvent.model_validate_json(frame.data).root
    except ValidationError:
        return UnknownEvent(frame.event, frame.fields())
