"""What each call has said so far, rebuilt from pieces that may come twice, or from an attempt that was given up."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.api.event_schemas import DeliberationSnapshot, DeliberationsSnapshot, StreamGap
from app.client.reading import AnyEvent, UnknownEvent
from app.deliberation.facts import TERMINAL_STATUS, CallDelta, CallFinished, CallStarted, Deleted


@dataclass(slots=True)
class CallText:
    """The text of a call's newest attempt. Its first character is the attempt's character number `begin`."""

    call_id: str
    agent_id: str
    attempt: int
    text: str = ""
    begin: int = 0
    finished: bool = False

    @property
    def whole(self) -> bool:
        """Whether nothing is missing before the text: pieces that are older than their retention cannot be replayed."""
        return self.begin == 0

    def place(self, offset: int, piece: str) -> None:
        """Put a piece where it belongs. After a hole the text begins anew; a known piece changes nothing."""
        at = offset - self.begin
        if not 0 <= at <= len(self.text):
            self.begin, self.text = offset, piece
        elif self.text[at : at + len(piece)] != piece:
            # The attempt was begun again, or goes on: what followed here is no longer true.
            self.text = self.text[:at] + piece


class Texts(Mapping[str, CallText]):
    """Call id → its text. `apply` takes every event of a stream, in order."""

    def __init__(self) -> None:
        self._texts: dict[str, CallText] = {}

    def __getitem__(self, call_id: str) -> CallText:
        return self._texts[call_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def apply(self, event: AnyEvent) -> None:
        """Take what an event says about texts.

        The recorded text of `call.finished` stands whatever was streamed; of a call that failed, what it had said
        stays. A snapshot replaces every text that was unfinished, and when the log has become another one all of them.
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
                self._texts.clear()
            case DeliberationSnapshot():
                self.forget_unfinished()
                for call in event.unfinished:
                    begin = call.offset - len(call.text)
                    self._texts[call.call_id] = CallText(call.call_id, call.agent_id, call.attempt, call.text, begin)
            case _:
                return

    def forget_unfinished(self) -> None:
        """Leave only the texts of calls that have finished."""
        self._texts = {call_id: text for call_id, text in self._texts.items() if text.finished}

    def _attempt(self, call_id: str, agent_id: str, attempt: int) -> CallText:
        """The text of this attempt, or of a newer one that is known; a finished call has no newer attempts."""
        known = self._texts.get(call_id)
        if known is None or (known.attempt < attempt and not known.finished):
            known = self._texts[call_id] = CallText(call_id, agent_id, attempt)
        return known


class TextsOfSeveral(Mapping[str, Texts]):
    """Deliberation id → its texts. `apply` takes every event of a stream of several, in order.

    Those of a deliberation that was deleted are forgotten; where the stream is of `all`, also those of one that has
    ended, when the next event comes: such a stream has no end, and what it holds must have one.
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
        """Take what an event says about texts: see `Texts.apply`. The list of a tenant's newest tells of no text."""
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
