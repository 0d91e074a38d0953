"""What the calls of the open stage have said so far, rebuilt from the deltas that are stored."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.api.event_schemas import UnfinishedCall
from app.deliberation.facts import CallDelta, CallStarted
from app.deliberation.fold import State


@dataclass(slots=True)
class _Text:
    """An attempt's text from `begin` on: pieces that follow each other without a hole, and are not older than one."""

    attempt: int
    begin: int = 0
    text: str = ""

    @property
    def end(self) -> int:
        return self.begin + len(self.text)

    def apply(self, offset: int, piece: str) -> None:
        """Put a piece where it belongs. A hole (deltas may be lost or expired) drops what came before it."""
        if self.begin <= offset <= self.end:
            # A piece that begins earlier is of the same attempt begun again: what followed there is no longer true.
            self.text = self.text[: offset - self.begin] + piece
        else:
            self.begin, self.text = offset, piece


def unfinished_calls(state: State, views: Iterable[CallStarted | CallDelta]) -> tuple[UnfinishedCall, ...]:
    """One entry for each call of the open stage that has begun and has no outcome: its newest attempt's text.

    `views` are in stream order. The text ends at `offset` and begins at `offset - len(text)`, which is 0 unless
    pieces were lost.
    """
    stage = state.open_stage
    if stage is None or state.ended:
        return ()
    waiting = {planned.call_id: planned.agent_id for planned in stage.opened.calls}
    texts: dict[str, _Text] = {}
    for view in views:
        if view.call_id not in waiting or view.call_id in state.finished:
            continue
        text = texts.get(view.call_id)
        if text is None or text.attempt < view.attempt:
            text = texts[view.call_id] = _Text(view.attempt)
        if isinstance(view, CallDelta) and view.attempt == text.attempt:
            text.apply(view.offset, view.text)
    return tuple(
        UnfinishedCall(
            call_id=call_id, agent_id=waiting[call_id], attempt=text.attempt, text=text.text, offset=text.end
        )
        for call_id, text in texts.items()
    )
