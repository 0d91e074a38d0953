"""The events of a stream, and the texts of several deliberations in it; `app.api.partial_text` has those of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from app.api.event_schemas import DeliberationEvent, DeliberationSnapshot, DeliberationsSnapshot, KnownEvent, StreamGap
from app.api.partial_text import Texts
from app.deliberation.facts import TERMINAL_STATUS, CallDelta, CallFinished, CallStarted, Deleted
from app.sse import Frame


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a type or shape that this version does not know.

    Args:
        type: The event's type.
        fields: The JSON object of its data; empty for other data.
    """

    type: str
    fields: Mapping[str, Any]


AnyEvent: TypeAlias = KnownEvent | UnknownEvent


def event_of(frame: Frame) -> AnyEvent:
    """Parse the event in a frame's data.

    Args:
        frame: A frame of a stream.

    Returns:
        The event; an `UnknownEvent` where the data do not parse.
    """
    try:
        return DeliberationEvent.model_validate_json(frame.data).root
    except ValidationError:
        return UnknownEvent(frame.event, frame.fields())


class TextsOfSeveral(dict[str, Texts]):
    """The texts of each deliberation, by its id, rebuilt from a multiplexed stream.

    The texts of a deleted deliberation are removed. A stream of all deliberations never ends, so there the next event
    also removes the texts of a deliberation that has ended.

    Args:
        all: Whether the stream covers all deliberations of a tenant.
    """

    def __init__(self, *, all: bool) -> None:
        super().__init__()
        self._all = all
        self._ended: str | None = None

    def apply(self, event: AnyEvent) -> None:
        """Apply an event; one without text changes nothing.

        Args:
            event: The next event of the stream. Every event is applied, in order.
        """
        if self._ended is not None:
            self.pop(self._ended, None)
            self._ended = None
        match event:
            case StreamGap(reason="epoch" | "beyond_end"):
                self.clear()
            case DeliberationsSnapshot():
                for texts in self.values():
                    texts.forget_unfinished()
            case Deleted():
                self.pop(event.deliberation_id, None)
            case CallStarted() | CallDelta() | CallFinished() | DeliberationSnapshot():
                self.setdefault(event.deliberation_id, Texts()).apply(event)
            case _ if self._all and event.type in TERMINAL_STATUS and not isinstance(event, UnknownEvent):
                self._ended = event.deliberation_id
            case _:
                return
