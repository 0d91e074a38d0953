"""The texts of several deliberations in one stream; `app.api.partial_text` has those of one."""

from app.api.event_schemas import DeliberationSnapshot, DeliberationsSnapshot, StreamGap
from app.api.partial_text import Texts
from app.client.reading import AnyEvent, UnknownEvent
from app.deliberation.facts import TERMINAL_STATUS, CallDelta, CallFinished, CallStarted, Deleted


class TextsOfSeveral(dict[str, Texts]):
    """Deliberation id → its texts. `apply` takes every event of a multiplexed stream, in order.

    The texts of a deleted deliberation are removed. A stream of `all` deliberations never ends, so there the next event
    also removes the texts of a deliberation that has ended.
    """

    def __init__(self, *, all: bool) -> None:
        super().__init__()
        self._all = all
        self._ended: str | None = None

    def apply(self, event: AnyEvent) -> None:
        """Update the texts with an event: see `Texts.apply`."""
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
