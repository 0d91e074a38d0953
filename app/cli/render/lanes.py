"""What a viewer knows of one running council: one lane per agent, folded from the event stream.

Pure: no clock, no terminal. Pieces of text are applied by offset, so a replayed or doubled delta changes nothing, and a
text is rebuilt exactly whatever is sent twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

from pydantic import ValidationError

from app.api.event_schemas import DeliberationSnapshot
from app.cli.render.prose import Prose
from app.client.sse import Frame
from app.deliberation.facts import (
    TERMINAL_STATUS,
    Accepted,
    CallDelta,
    CallFinished,
    CallStarted,
    Cancelled,
    CancelRequested,
    Completed,
    Deleted,
    Event,
    Failed,
    Resumed,
    StageClosed,
    StageOpened,
    TimedOut,
    decode,
)
from app.deliberation.specification import Purpose
from app.deliberation.strategies import STRATEGIES

IDLE = "idle"
_TYPICAL_CHARS = 800
_UNFINISHED_MAX = 0.95
_NOT_ENDED_MAX = 0.99

_PER_ROUND = "R"
_PURPOSES = frozenset(get_args(Purpose))


def is_simulated(model: str | None) -> bool:
    """Whether a model's name says that its text is simulated."""
    return model is not None and "simulated" in model.lower()


def expected_stages(
    strategy: str, rounds: int, parameters: Mapping[str, Any] | None = None
) -> list[tuple[str, int | None]]:
    """(purpose, round) of each stage that a run without shortcuts opens; empty when the strategy is not known here.

    The round is None where a purpose does not belong to one. A lane's bar is measured by this before the stages are
    open, so it is a guess: stages may be left out, and others may come.
    """
    # A strategy that goes on as another one has that one's stages, if it comes to them.
    chosen = str((parameters or {}).get("escalate_to", strategy))
    definition = STRATEGIES.get(chosen) or STRATEGIES.get(strategy)
    steps = [step.partition(" × ") for step in definition.steps] if definition else []
    known = [(purpose, times) for purpose, _, times in steps if purpose in _PURPOSES]
    repeated = [purpose for purpose, times in known if times == _PER_ROUND]
    exchanges = [(purpose, number) for number in range(1, rounds + 1) for purpose in repeated]
    first = next((place for place, (_, times) in enumerate(known) if times == _PER_ROUND), len(known))
    once: list[tuple[str, int | None]] = [(purpose, None) for purpose, times in known if times != _PER_ROUND]
    return [*once[:first], *exchanges, *once[first:]]


class StreamedText:
    """One call's text, rebuilt from pieces that may come twice, late, or from an attempt that was given up."""

    def __init__(self) -> None:
        self.attempt = 0
        self.text = ""
        self.prose = Prose()
        self._ahead: dict[int, str] = {}

    def begin(self, attempt: int) -> None:
        """Start again at offset 0 when `attempt` is newer than what is known."""
        if attempt > self.attempt:
            self.attempt, self.text, self.prose = attempt, "", Prose()
            self._ahead.clear()

    def apply(self, attempt: int, offset: int, piece: str) -> None:
        """Place `piece` at `offset` characters; what is known already is dropped, what is ahead waits for its turn."""
        self.begin(attempt)
        if attempt < self.attempt:
            return
        self._ahead[offset] = max(piece, self._ahead.get(offset, ""), key=len)
        while (ready := next((at for at in sorted(self._ahead) if at <= len(self.text)), None)) is not None:
            waiting = self._ahead.pop(ready)
            self._append(waiting[len(self.text) - ready :])

    def finish(self, attempt: int, text: str) -> None:
        """Take the recorded text, which stands whatever was streamed."""
        self.begin(attempt)
        if text.startswith(self.text):
            self._append(text[len(self.text) :])
        else:
            self.text, self.prose = text, Prose()
            self.prose.feed(text)
        self._ahead.clear()

    def _append(self, piece: str) -> None:
        self.text += piece
        self.prose.feed(piece)


@dataclass(slots=True)
class Lane:
    """One agent: what it does now, and how far it is."""

    agent_id: str
    role: str = ""
    model: str | None = None
    purpose: str = IDLE
    state: str = "waiting"
    attempt: int = 1
    calls_opened: int = 0
    calls_done: int = 0
    calls_failed: int = 0
    tokens: int = 0
    problem: str | None = None
    reached: float = 0.0
    streamed: StreamedText = field(default_factory=StreamedText)

    @property
    def chars(self) -> int:
        """Characters of the text that is shown."""
        return len(self.streamed.text)


class CouncilView:
    """Everything that is shown of a deliberation while it runs. `apply` takes each frame of the stream in order."""

    def __init__(self) -> None:
        self.deliberation_id = ""
        self.task = ""
        self.strategy = ""
        self.status = "pending"
        self.lanes: dict[str, Lane] = {}
        self.stage = 0
        self.purpose = ""
        self.round = 0
        self.calls_total = 0
        self.calls_seen = 0
        self.notice: str | None = None
        self.accepted_at: datetime | None = None
        self.ended_at: datetime | None = None
        self._expected: list[tuple[str, int | None]] = []
        self._place = -1
        self._calls: dict[str, StreamedText] = {}
        self._finished: set[str] = set()
        self._chars_of: dict[str, list[int]] = {}

    @property
    def ended(self) -> bool:
        """Whether the terminal event is there."""
        return self.status in TERMINAL_STATUS.values()

    @property
    def simulated(self) -> bool:
        """Whether a simulator writes any of it."""
        return any(is_simulated(lane.model) for lane in self.lanes.values())

    @property
    def tokens(self) -> int:
        """Tokens of all calls that are recorded."""
        return sum(lane.tokens for lane in self.lanes.values())

    def planned(self, lane: Lane) -> int:
        """Calls that this agent is expected to make in all; exact once the last stage is open."""
        return max(1, lane.calls_opened + (0 if self.ended else self._stages_to_come()))

    def share(self, lane: Lane) -> float:
        """How much of the lane's work is done, in [0, 1]: 1 at the end and not before, and it never goes back."""
        return 1.0 if self.ended else lane.reached

    def _reach(self) -> None:
        """Take down how far each lane is: a running call counts by its length beside finished ones."""
        for lane in self.lanes.values():
            done = float(lane.calls_done)
            if lane.state == "writing":
                finished = self._chars_of.get(lane.purpose, [])
                typical = sum(finished) / len(finished) if finished else _TYPICAL_CHARS
                done += min(_UNFINISHED_MAX, lane.chars / max(1.0, typical))
            lane.reached = max(lane.reached, min(_NOT_ENDED_MAX, done / self.planned(lane)))

    def apply(self, frame: Frame) -> Event | None:
        """Fold one frame; returns the logged event in it, or None when it is of the stream itself or not known here."""
        if frame.event == "deliberation.snapshot":
            self._restore(frame.data)
            self._reach()
            return None
        if frame.event in ("stream.gap", "stream.reconnect"):
            self.notice = f"{frame.event.removeprefix('stream.')}: {frame.fields().get('reason', 'unknown')}"
            return None
        try:
            event = decode(frame.data.encode())
        except ValidationError:
            return None  # of the stream itself, or of a newer gateway
        self.notice = None
        self._fold(event)
        self._reach()
        return event

    def _fold(self, event: Event) -> None:
        match event:
            case Accepted():
                self._accept(event)
            case StageOpened():
                self._open(event)
            case CallStarted():
                lane = self._lane(event.agent_id, event.role)
                lane.model, lane.state, lane.attempt = event.model, "writing", event.attempt
                lane.streamed = self._text(event.call_id)
                lane.streamed.begin(event.attempt)
            case CallDelta():
                if event.call_id not in self._finished:
                    self._text(event.call_id).apply(event.attempt, event.offset, event.text)
                    lane = self._lane(event.agent_id)
                    lane.streamed, lane.state = self._text(event.call_id), "writing"
            case CallFinished():
                self._finish(event)
            case StageClosed():
                self._close()
            case CancelRequested():
                self.status = "cancelling"
            case Resumed():
                self.notice = "its coordinator stops" if event.given_back else "another coordinator took over"
            case Completed() | Failed() | Cancelled() | TimedOut():
                self.status = TERMINAL_STATUS[event.type]
                self.ended_at = event.ts
                self._close()
            case Deleted():
                self.notice = "somebody deleted it"

    def _lane(self, agent_id: str, role: str = "") -> Lane:
        lane = self.lanes.setdefault(agent_id, Lane(agent_id))
        lane.role = role or lane.role
        return lane

    def _text(self, call_id: str) -> StreamedText:
        return self._calls.setdefault(call_id, StreamedText())

    def _accept(self, event: Accepted) -> None:
        specification = event.specification
        self.deliberation_id, self.task = event.deliberation_id, specification.task
        self.strategy, self.accepted_at = specification.strategy, event.ts
        self._expected = expected_stages(specification.strategy, specification.rounds, specification.parameters)
        for agent in specification.agents:
            self._lane(agent.agent_id, agent.role).model = agent.model

    def _open(self, event: StageOpened) -> None:
        self.status = "in_progress" if self.status == "pending" else self.status
        self.stage, self.purpose, self.round = event.stage, event.purpose, event.round
        self.calls_total, self.calls_seen = len(event.calls), 0
        self._place = self._placed()
        for lane in self.lanes.values():
            lane.purpose, lane.state = IDLE, "waiting"
        for planned in event.calls:
            lane = self._lane(planned.agent_id, planned.role)
            lane.purpose = event.purpose
            lane.calls_opened += 1

    def _finish(self, event: CallFinished) -> None:
        if event.call_id in self._finished:
            return
        self._finished.add(event.call_id)
        self.calls_seen += 1
        lane = self._lane(event.agent_id, event.role)
        lane.calls_done = min(lane.calls_done + 1, lane.calls_opened)
        lane.model = event.model or lane.model
        lane.tokens += event.usage.tokens
        lane.state = "answered" if event.answered else "failed"
        lane.problem = None if event.problem is None else event.problem.code
        lane.calls_failed += not event.answered
        lane.streamed = self._text(event.call_id)
        if event.text is not None:
            lane.streamed.finish(event.attempt, event.text)
            self._chars_of.setdefault(lane.purpose, []).append(len(event.text))

    def _close(self) -> None:
        for lane in self.lanes.values():
            # A call that the stage did not wait for is over for its lane; a late answer is not waited for either.
            lane.state = "stopped" if lane.calls_done < lane.calls_opened else lane.state
            lane.calls_done = lane.calls_opened

    def _placed(self) -> int:
        """Where the open stage stands among those expected; where the one before stood when it was not expected."""
        ahead = range(max(0, self._place), len(self._expected))
        exact = (place for place, stage in enumerate(self._expected) if stage == (self.purpose, self.round))
        loose = (place for place in ahead if self._expected[place] == (self.purpose, None))
        return next(exact, next(loose, self._place))

    def _stages_to_come(self) -> int:
        return len(self._expected) - 1 - self._place

    def _restore(self, data: str) -> None:
        try:
            snapshot = DeliberationSnapshot.model_validate_json(data)
        except ValidationError:
            return  # of another version: the events that follow still tell the rest
        told = snapshot.deliberation
        self.deliberation_id, self.task, self.strategy = told.id, told.task, told.strategy
        self.status, self.accepted_at, self.ended_at = told.status, told.created_at, told.ended_at
        self._expected = expected_stages(told.strategy, told.rounds, told.parameters)
        if told.progress is not None:
            self.stage, self.purpose, self.round = told.progress.stage, told.progress.purpose, told.progress.round
            self._place = self._placed()
            self.calls_seen, self.calls_total = told.progress.calls_finished, told.progress.calls_total
        for proposal in told.proposals:
            lane = self._lane(proposal.agent_id, proposal.role)
            lane.model = proposal.model or lane.model
            lane.calls_done = max(lane.calls_done, proposal.usage.calls)
            lane.calls_opened = max(lane.calls_opened, lane.calls_done)
            lane.tokens = max(lane.tokens, proposal.usage.tokens)
        for call in snapshot.unfinished:
            text = self._text(call.call_id)
            text.apply(call.attempt, call.offset - len(call.text), call.text)
            lane = self._lane(call.agent_id)
            lane.streamed, lane.state, lane.purpose = text, "writing", self.purpose
            lane.calls_opened = max(lane.calls_opened, lane.calls_done + 1)
