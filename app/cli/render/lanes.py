"""The state of one running council for display: one lane per agent, folded from the event stream. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

from app.api.event_schemas import DeliberationSnapshot, StreamEvent
from app.api.partial_text import Texts
from app.client.events import UnknownEvent, event_of
from app.deliberation import facts
from app.deliberation.errors import EngineRejected
from app.deliberation.specification import Purpose
from app.deliberation.strategies import STRATEGIES
from app.sse import Frame

IDLE = "idle"
_TYPICAL_CHARS = 800
_UNFINISHED_MAX = 0.95
_NOT_ENDED_MAX = 0.99
_R = "R"  # the number of times of a repeated step, in a strategy's formula
_PURPOSES = frozenset(get_args(Purpose))
# The purposes that a strategy repeats; stages of other purposes have numbers of rounds that no request sets.
_PER_ROUND = frozenset(
    step.removesuffix(f" × {_R}")
    for definition in STRATEGIES.values()
    for step in definition.steps
    if step.endswith(f" × {_R}")
)


def is_simulated(model: str | None) -> bool:
    return model is not None and "simulated" in model.lower()


def stage_text(purpose: str, round: int) -> str:
    """A stage's purpose, and its round where the strategy repeats it: `critique, round 1`, but `score`."""
    return f"{purpose}, round {round}" if round and purpose in _PER_ROUND else purpose


def expected_stages(strategy: str, rounds: int, parameters: Mapping[str, Any] = {}) -> list[tuple[str, int | None]]:
    """(purpose, round) of each stage that a run without shortcuts opens; empty for an unknown strategy.

    The round is None for a purpose that is not repeated per round. Progress bars use this estimate: a run may skip
    stages or open others.
    """
    # A strategy that escalates runs the stages of the strategy it escalates to.
    definition = STRATEGIES.get(str(parameters.get("escalate_to"))) or STRATEGIES.get(strategy)
    steps = [step.partition(" × ") for step in definition.steps] if definition else []
    known = [(purpose, times) for purpose, _, times in steps if purpose in _PURPOSES]
    repeated = [purpose for purpose, times in known if times == _R]
    exchanges = [(purpose, number) for number in range(1, rounds + 1) for purpose in repeated]
    first = next((place for place, (_, times) in enumerate(known) if times == _R), len(known))
    once: list[tuple[str, int | None]] = [(purpose, None) for purpose, times in known if times != _R]
    return [*once[:first], *exchanges, *once[first:]]


@dataclass(slots=True)
class Lane:
    """One agent: its current call and its progress. `call_id` is of the newest call, empty before the first.

    `progress` is the completed share of its work in [0, 1]. The share never decreases, and is 1 only after the end.
    """

    agent_id: str
    role: str = ""
    model: str | None = None
    purpose: str = IDLE
    state: str = "waiting"
    attempt: int = 1
    calls_opened: int = 0
    calls_done: int = 0
    tokens: int = 0
    problem: str | None = None
    progress: float = 0.0
    call_id: str = ""


# After a gap the gateway sends the state, which stands for the events that are not there.
_STREAM_NOTICES = {
    ("stream.gap", "beyond_end"): "the log ends before this cursor; the state now takes its place",
    ("stream.gap", "epoch"): "the cursor is of another log; the state now takes its place",
    ("stream.gap", "retention"): "older events are no longer kept; the state now takes their place",
    ("stream.gap", "slow_consumer"): "this reader fell behind; the state now takes the place of what it missed",
    ("stream.reconnect", "draining"): "this gateway stops; the stream continues at another",
    ("stream.reconnect", "max_age"): "the stream has reached its age; another continues it",
    ("stream.reconnect", "slow_consumer"): "this reader is too slow; another stream continues",
}


class CouncilView:
    """The state of a running deliberation for display. `apply` takes each frame of the stream in order."""

    def __init__(self) -> None:
        self.deliberation_id = ""
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
        self._position = -1
        self._texts = Texts()
        self._finished: set[str] = set()
        self._chars_of: dict[str, list[int]] = {}

    @property
    def ended(self) -> bool:
        return self.status in facts.TERMINAL_STATUS.values()

    @property
    def tokens(self) -> int:
        return sum(lane.tokens for lane in self.lanes.values())

    def text(self, lane: Lane) -> str:
        written = self._texts.get(lane.call_id)
        return "" if written is None else written.text

    def planned(self, lane: Lane) -> int:
        """The expected total of the agent's calls; exact once the last stage is open."""
        stages_left = 0 if self.ended else len(self._expected) - 1 - self._position
        return max(1, lane.calls_opened + stages_left)

    def _update_progress(self) -> None:
        """Update each lane's progress; a running call counts by its length relative to finished ones."""
        for lane in self.lanes.values():
            if self.ended:
                lane.progress = 1.0
                continue
            done = float(lane.calls_done)
            if lane.state == "writing":
                finished = self._chars_of.get(lane.purpose, [])
                typical = sum(finished) / len(finished) if finished else _TYPICAL_CHARS
                done += min(_UNFINISHED_MAX, len(self.text(lane)) / max(1.0, typical))
            lane.progress = max(lane.progress, min(_NOT_ENDED_MAX, done / self.planned(lane)))

    def apply(self, frame: Frame) -> facts.Event | None:
        """Fold one frame; returns its logged event, None for an event about the stream, or of an unknown type."""
        event = event_of(frame)
        self._texts.apply(event)
        if frame.event in ("stream.gap", "stream.reconnect"):
            reason = str(frame.fields().get("reason", "unknown"))
            self.notice = _STREAM_NOTICES.get((frame.event, reason), f"{frame.event.removeprefix('stream.')}: {reason}")
        elif isinstance(event, DeliberationSnapshot):
            self._restore(event)
            self._update_progress()
        elif not isinstance(event, UnknownEvent | StreamEvent):
            # While no engine can be connected to, attempts to reach one start calls in vain.
            if not isinstance(event, facts.CallStarted):
                self.notice = None
            self._fold(event)
            self._update_progress()
            return event
        return None

    def _fold(self, event: facts.Event) -> None:
        match event:
            case facts.Accepted():
                self._accept(event)
            case facts.StageOpened():
                self._open(event)
            case facts.CallStarted():
                lane = self._lane(event.agent_id, event.role)
                lane.model, lane.attempt = event.model, event.attempt
                lane.call_id, lane.state = event.call_id, "writing"
            case facts.CallDelta():
                if event.call_id not in self._finished:
                    lane = self._lane(event.agent_id)
                    lane.call_id, lane.state = event.call_id, "writing"
            case facts.CallWaiting():
                self.notice = event.detail
            case facts.CallFinished():
                self._finish(event)
            case facts.ToolStarted() | facts.ToolUsed():
                self._lane(event.agent_id, event.role)
            case facts.StageClosed():
                self._close()
            case facts.CancelRequested():
                self.status = "cancelling"
            case facts.Resumed():
                self.notice = "its coordinator stops" if event.given_back else "another coordinator took over"
            case facts.Completed() | facts.Failed() | facts.Cancelled() | facts.TimedOut():
                self.status, self.ended_at = facts.TERMINAL_STATUS[event.type], event.ts
                self._close()
            case facts.Deleted():
                self.notice = "deleted"

    def _lane(self, agent_id: str, role: str = "") -> Lane:
        lane = self.lanes.setdefault(agent_id, Lane(agent_id))
        lane.role = role or lane.role
        return lane

    def _accept(self, event: facts.Accepted) -> None:
        specification = event.specification
        self.deliberation_id, self.strategy, self.accepted_at = event.deliberation_id, specification.strategy, event.ts
        self._expected = expected_stages(specification.strategy, specification.rounds, specification.parameters)
        for agent in specification.agents:
            self._lane(agent.agent_id, agent.role).model = agent.model

    def _open(self, event: facts.StageOpened) -> None:
        self.status = "in_progress" if self.status == "pending" else self.status
        self.stage, self.purpose, self.round = event.stage, event.purpose, event.round
        self.calls_total, self.calls_seen = len(event.calls), 0
        self._position = self._position_of_stage()
        for lane in self.lanes.values():
            lane.purpose, lane.state = IDLE, "waiting"
        for planned in event.calls:
            lane = self._lane(planned.agent_id, planned.role)
            lane.purpose = event.purpose
            lane.calls_opened += 1

    def _finish(self, event: facts.CallFinished) -> None:
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
        if event.problem is not None and event.problem.code == EngineRejected.code:
            # The problem has a remedy, and other calls to the engine will fail as well.
            self.notice = event.problem.detail
        lane.call_id = event.call_id
        if event.text is not None:
            self._chars_of.setdefault(lane.purpose, []).append(len(event.text))

    def _close(self) -> None:
        for lane in self.lanes.values():
            # The stage waits no longer for calls that are still running.
            lane.state = "stopped" if lane.calls_done < lane.calls_opened else lane.state
            lane.calls_done = lane.calls_opened

    def _position_of_stage(self) -> int:
        """The open stage's index among the expected stages; an unexpected stage has the previous stage's."""
        ahead = range(max(0, self._position), len(self._expected))
        exact = (index for index, stage in enumerate(self._expected) if stage == (self.purpose, self.round))
        loose = (index for index in ahead if self._expected[index] == (self.purpose, None))
        return next(exact, next(loose, self._position))

    def _restore(self, snapshot: DeliberationSnapshot) -> None:
        deliberation = snapshot.deliberation
        self.deliberation_id, self.strategy = deliberation.id, deliberation.strategy
        self.status, self.accepted_at, self.ended_at = (
            deliberation.status,
            deliberation.created_at,
            deliberation.ended_at,
        )
        self._expected = expected_stages(deliberation.strategy, deliberation.rounds, deliberation.parameters)
        if deliberation.progress is not None:
            self.stage, self.purpose, self.round = (
                deliberation.progress.stage,
                deliberation.progress.purpose,
                deliberation.progress.round,
            )
            self._position = self._position_of_stage()
            self.calls_seen, self.calls_total = deliberation.progress.calls_finished, deliberation.progress.calls_total
        for proposal in deliberation.proposals:
            lane = self._lane(proposal.agent_id, proposal.role)
            lane.model = proposal.model or lane.model
            lane.calls_opened, lane.calls_done = proposal.calls_total, proposal.calls_finished
            lane.tokens = proposal.usage.tokens
        for call in snapshot.unfinished:
            lane = self._lane(call.agent_id)
            lane.call_id, lane.state, lane.purpose = call.call_id, "writing", self.purpose
