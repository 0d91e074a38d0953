"""One reading of a deliberation's events for every façade: a closed union of moments, in the order of the log.

A stage holds the texts of its members' calls; the verdict comes with the end. Each part that begins also ends: at the
latest before the end, or before the error that interrupts the reading.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, assert_never

from app.deliberation import facts
from app.deliberation.contributions import AgentCall
from app.deliberation.errors import DeliberationDeleted, DeliberationError
from app.deliberation.fold import State, apply, begin

Cut = Literal["stage", "end", "interruption"]
"""The reason why a part ends without its own fact: a closed stage, the deliberation's end, or an interruption."""


class Began(NamedTuple):
    """The first moment: the deliberation is accepted."""

    state: State


class StageBegan(NamedTuple):
    state: State
    opened: facts.StageOpened


class TextBegan(NamedTuple):
    """A member begins an attempt at a call; a repeated attempt begins its text anew, after the end of the last one."""

    state: State
    call: AgentCall
    attempt: int


class TextGrew(NamedTuple):
    """A piece of text that follows the attempt's earlier pieces. Only readings with texts have these moments."""

    state: State
    call: AgentCall
    piece: str


class ToolRan(NamedTuple):
    """A recorded use of a tool within a call that has no outcome yet."""

    state: State
    call: AgentCall
    use: facts.ToolUsed


class TextEnded(NamedTuple):
    """A text ends with the recorded outcome of its call, or is `cut` without one; `told` joins its pieces."""

    state: State
    call: AgentCall
    told: str
    cut: Cut | None = None


class StageEnded(NamedTuple):
    """The stage closed on the outcomes that count, or is `cut` and has no `closed`."""

    state: State
    opened: facts.StageOpened
    closed: facts.StageClosed | None
    cut: Cut | None = None


class Cancelling(NamedTuple):
    """A client asked to stop; calls may still end."""

    state: State


class Ended(NamedTuple):
    """The last moment: the end, with its verdict or problem, in `state`."""

    state: State


class Interrupted(NamedTuple):
    """The reading cannot go on, though the deliberation may. `state` is None before its first fact."""

    state: State | None
    error: DeliberationError


Moment = Began | StageBegan | TextBegan | TextGrew | ToolRan | TextEnded | StageEnded | Cancelling | Ended | Interrupted


@dataclass(slots=True)
class _Text:
    call: AgentCall
    attempt: int
    told: str = ""


class Telling:
    """Folds events into moments. Events that it knows already, of calls with an outcome or after the end, tell nothing.

    Views may begin anywhere in the log after the facts: a piece that does not follow what was told is left out.
    """

    def __init__(self) -> None:
        self.state: State | None = None
        self._texts: dict[str, _Text] = {}

    @property
    def ended(self) -> bool:
        return self.state is not None and self.state.ended

    def tell(self, event: facts.Event | facts.NewerEvent, sequence: int) -> Iterator[Moment]:
        """The moments of one event; raises DeliberationDeleted, and UnexpectedFact as the fold does."""
        if isinstance(event, facts.Deleted):
            raise DeliberationDeleted(f"Deliberation {event.deliberation_id} has been deleted.")
        state = self.state
        if state is None:
            assert isinstance(event, facts.Accepted), "a deliberation's facts begin with its acceptance"
            self.state = begin(event, sequence)
            yield Began(self.state)
        elif isinstance(event, facts.NewerEvent):
            return
        elif isinstance(event, facts.CallStarted | facts.CallDelta | facts.CallWaiting):
            yield from self._view(state, event)
        elif sequence > state.last_sequence:
            yield from self._fact(state, event, sequence)

    def _view(self, state: State, event: facts.CallStarted | facts.CallDelta | facts.CallWaiting) -> Iterator[Moment]:
        call = self._pending(state, event.call_id)
        if call is None or isinstance(event, facts.CallWaiting):
            return
        text = self._texts.get(event.call_id)
        if text is None or text.attempt < event.attempt:
            if text is not None:
                yield TextEnded(state, call, text.told, "stage")
            text = self._texts[event.call_id] = _Text(call, event.attempt)
            yield TextBegan(state, call, event.attempt)
        if isinstance(event, facts.CallDelta) and event.attempt == text.attempt:
            piece = event.text[max(0, len(text.told) - event.offset) :]
            if piece and event.offset <= len(text.told):
                text.told += piece
                yield TextGrew(state, call, piece)

    def _fact(self, before: State, event: facts.Fact, sequence: int) -> Iterator[Moment]:
        state = self.state = apply(before, event, sequence)
        if before.ended:
            return  # the bill takes late outcomes too
        match event:
            case facts.StageOpened():
                yield StageBegan(state, event)
            case facts.CallFinished():
                call = self._pending(before, event.call_id)
                if call is not None and state.finished[event.call_id] is event:
                    text = self._texts.pop(event.call_id, None)
                    if text is None:
                        yield TextBegan(state, call, event.attempt)
                    yield TextEnded(state, call._replace(finished=event), "" if text is None else text.told)
            case facts.StageClosed():
                yield from self._cut_texts(state, "stage")
                yield StageEnded(state, state.stages[event.stage - 1].opened, event)
            case facts.CancelRequested():
                yield Cancelling(state)
            case facts.ToolUsed():
                if (call := self._pending(state, event.call_id)) is not None:
                    yield ToolRan(state, call, event)
            case facts.Resumed() | facts.ToolStarted():
                pass
            case facts.Completed() | facts.Failed() | facts.Cancelled() | facts.TimedOut():
                yield from self._cut(state, "end")
                yield Ended(state)
            case facts.Accepted():
                raise AssertionError("the fold refuses a second acceptance")
            case _:
                assert_never(event)

    def interrupted(self, error: DeliberationError) -> Iterator[Moment]:
        """Close every open part, then tell the error."""
        if self.state is not None:
            yield from self._cut(self.state, "interruption")
        yield Interrupted(self.state, error)

    def _pending(self, state: State, call_id: str) -> AgentCall | None:
        stage = state.open_stage
        if stage is None or state.ended or call_id in state.finished:
            return None
        planned = next((call for call in stage.opened.calls if call.call_id == call_id), None)
        return None if planned is None else AgentCall(stage.opened, planned, None, left_out=False)

    def _cut(self, state: State, why: Cut) -> Iterator[Moment]:
        yield from self._cut_texts(state, why)
        if state.open_stage is not None:
            yield StageEnded(state, state.open_stage.opened, None, why)

    def _cut_texts(self, state: State, why: Cut) -> Iterator[Moment]:
        for text in self._texts.values():
            yield TextEnded(state, text.call._replace(left_out=True), text.told, why)
        self._texts.clear()
