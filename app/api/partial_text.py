"""The text of each call so far, rebuilt from deltas, which may come twice or belong to a repeated attempt."""

from dataclasses import dataclass

from app.api.event_schemas import DeliberationSnapshot, StreamGap
from app.deliberation.facts import CallDelta, CallFinished, CallStarted


@dataclass(slots=True)
class CallText:
    """The text of a call's newest attempt, from the attempt's character number `begin` on."""

    call_id: str
    agent_id: str
    attempt: int
    text: str = ""
    begin: int = 0
    finished: bool = False

    @property
    def whole(self) -> bool:
        """Whether no character is missing before the text: deltas past their retention cannot be replayed."""
        return self.begin == 0

    @property
    def end(self) -> int:
        return self.begin + len(self.text)

    def place(self, offset: int, piece: str) -> None:
        """Insert a delta at its offset. After a gap the text begins anew; a known delta changes nothing."""
        at = offset - self.begin
        if not 0 <= at <= len(self.text):
            self.begin, self.text = offset, piece
        elif self.text[at : at + len(piece)] != piece:
            # The attempt goes on, or was repeated with another text: what followed here no longer holds.
            self.text = self.text[:at] + piece


class Texts(dict[str, CallText]):
    def apply(self, event: object) -> None:
        """Apply an event; those without text change nothing.

        The recorded text of `call.finished` replaces what was streamed; a failed call keeps its partial text. A
        snapshot replaces every unfinished text, a gap to other events every text.
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
            case StreamGap(reason="epoch" | "beyond_end"):
                self.clear()
            case DeliberationSnapshot():
                self.forget_unfinished()
                for call in event.unfinished:
                    begin = call.offset - len(call.text)
                    self[call.call_id] = CallText(call.call_id, call.agent_id, call.attempt, call.text, begin)
            case _:
                return

    def forget_unfinished(self) -> None:
        for call_id in [call_id for call_id, text in self.items() if not text.finished]:
            del self[call_id]

    def _attempt(self, call_id: str, agent_id: str, attempt: int) -> CallText:
        """The text of this attempt, or of a newer known one; a finished call has no newer attempts."""
        known = self.get(call_id)
        if known is None or (known.attempt < attempt and not known.finished):
            known = self[call_id] = CallText(call_id, agent_id, attempt)
        return known
