"""Rebuilds the text of each call from deltas, which may repeat or belong to an abandoned attempt."""

from dataclasses import dataclass

from app.api.event_schemas import DeliberationSnapshot, DeliberationsSnapshot, StreamGap
from app.client.reading import AnyEvent, UnknownEvent
from app.deliberation.facts import TERMINAL_STATUS, CallDelta, CallFinished, CallStarted, Deleted


@dataclass(slots=True)
class CallText:
    """The text of a call's newest attempt, from its character number `begin` on."""

    call_id: str
    agent_id: str
    attempt: int
    text: str = ""
    begin: int = 0
    finished: bool = False

    @property
    def whole(self) -> bool:
        """Whether the text has its beginning: expired pieces cannot be replayed."""
        return self.begin == 0

    def place(self, offset: int, piece: str) -> None:
        """Place a piece at its offset. After a gap the text starts again; a repeated piece changes nothing."""
        at = offset - self.begin
        if not 0 <= at <= len(self.text):
            self.begin, self.text = offset, piece
        elif self.text[at : at + len(piece)] != piece:
            # The attempt continues, or restarted here and invalidated the rest.
            self.text = self.text[:at] + piece


class Texts(dict[str, CallText]):
    """Call id → its text. `apply` takes every event of a stream, in order."""

    def apply(self, event: AnyEvent) -> None:
        """Update the texts with an event.

        The recorded text of `call.finished` replaces the streamed one; a failed call keeps its streamed text. A
        snapshot replaces all unfinished texts, and a change of the log removes all texts.
        """
        match event:
            case CallStarted():
                self._attempt(event.call_id, event.agent_id, event.attempt)
            case CallDelta():
                text = self._attempt(event.call_id, event.agent_id, event.attempt)
                if text.attempt == event.attempt and not text.finished:
                    text.place(event.offset, event.text)
            case CallFinished():
                text = self._attempt(event.call_id, event.agent_id, event.attempt)
                if event.text is not None:
                    text.text, text.begin = event.text, 0
                text.finished = True
            case StreamGap(reason="epoch"):
                self.clear()
            case DeliberationSnapshot():
                self.forget_unfinished()
                for call in event.unfinished:
                    begin = call.offset - len(call.text)
                    self[call.call_id] = CallText(call.call_id, call.agent_id, call.attempt, call.text, begin)
            case _:
                return

    def forget_unfinished(self) -> None:
        """Keep only the texts of finished calls."""
        for call_id in [call_id for call_id, text in self.items() if not text.finished]:
            del self[call_id]

    def _attempt(self, call_id: str, agent_id: str, attempt: int) -> CallText:
        """The text of this attempt or of a newer known one; a finished call has no newer attempts."""
        known = self.get(call_id)
        if known is None or (known.attempt < attempt and not known.finished):
            known = self[call_id] = CallText(call_id, agent_id, attempt)
        return known


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
            case StreamGap(reason="epoch"):
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
