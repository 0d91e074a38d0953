"""The texts of several deliberations in one stream; `app.api.partial_text` has those of one."""

from collections.abc import Iterator, Mapping

from app.api.event_schemas import DeliberationSnapshot, DeliberationsSnapshot, StreamGap
from app.api.partial_text import CallText, Texts
from app.client.reading import AnyEvent, UnknownEvent
from app.deliberation.facts import TERMINAL_STATUS, CallDelta, CallFinished, CallStarted, Deleted

__all__ = ["CallText", "Texts", "TextsOfSeveral"]


class TextsOfSeveral(Mapping[str, Texts]):
    """Deliberation id → its texts. `apply` takes every event of a stream of several, in order.

    The texts of a deleted deliberation are dropped. On a stream of `all`, which has no end, those of an ended one are
    dropped at the next event, so that memory stays bounded.
    """

    def __init__(self, *, all: bool) -> None:
        self._all = all
        self._texts: dict[str, Texts] = {}
        self._ended: str | None = None

    def __getitem__(self, deliberation_id: str) -> Texts:
        return self._texts[deliberation_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def apply(self, event: AnyEvent) -> None:
        """Apply an event: see `Texts.apply`. The list of a tenant's newest deliberations holds no text."""
        if self._ended is not None:
            self._texts.pop(self._ended, None)
            self._ended = None
        match event:
            case StreamGap(reason="epoch"):
                self._texts.clear()
            case DeliberationsSnapshot():
                for texts in self._texts.values():
                    texts.forget_unfinished()
            case Deleted():
                self._texts.pop(event.deliberation_id, None)
            case CallStarted() | CallDelta() | CallFinished() | DeliberationSnapshot():
                self._texts.setdefault(event.deliberation_id, Texts()).apply(event)
            case _ if self._all and event.type in TERMINAL_STATUS and not isinstance(event, UnknownEvent):
                self._ended = event.deliberation_id
            case _:
                return
