"""The contribution of each agent, read off the facts. Resource, announcement, archive and CLI show this reading.

The form of a call's output says whether its agent was asked for an answer; no rule depends on a stage's purpose.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from app.deliberation.actions import read_action, told
from app.deliberation.calls import FactProblem, Usage
from app.deliberation.errors import InvalidOutput
from app.deliberation.facts import Action, CallFinished, Participation, PlannedCall, StageOpened, Stall, Standing
from app.deliberation.fold import State
from app.deliberation.outputs import (
    VERSION_KINDS,
    IssueResponse,
    Output,
    OutputKind,
    ParsedOutput,
    Revision,
    answer_text,
    parse_output,
)
from app.deliberation.specification import AgentSpec, Constraints

# A revision may answer any issue, because the number of issues in its prompt is not recorded.
_ISSUES_MAX = 1_000

ContributionStatus = Literal["pending", "answered", "failed", "late", "skipped"]
"""The outcome of an agent's calls for an answer.

`answered`: an answer counts. Otherwise `failed`: a call ended in a problem; `late`: a stage closed without its answer;
`skipped`: the deliberation ended first; `pending`: the answer may still come.
"""


def form_of(constraints: Constraints, planned: PlannedCall) -> Output:
    criteria = tuple(criterion.id for criterion in constraints.rubric)
    form = _form(planned.output, tuple(planned.labels), criteria)
    return form.with_answers_of(constraints.answer_form, is_action=constraints.actions is not None)


@lru_cache(maxsize=1_024)
def _form(kind: OutputKind, labels: tuple[str, ...], criteria: tuple[str, ...]) -> Output:
    return Output(kind=kind, labels=labels, criteria=criteria, issues=_ISSUES_MAX)


class AgentCall(NamedTuple):
    """A planned call with its outcome, if any. `left_out`: its stage closed without the outcome."""

    opened: StageOpened
    planned: PlannedCall
    finished: CallFinished | None
    left_out: bool

    def output(self, constraints: Constraints) -> ParsedOutput | None:
        """The output that counts; None without one, and for a text that another version of the gateway accepted."""
        if self.left_out or self.finished is None or self.finished.text is None:
            return None
        try:
            return parse_output(form_of(constraints, self.planned), self.finished.text)
        except InvalidOutput:
            return None


class Version(NamedTuple):
    """A counted text of an agent, numbered from 0; `responses` are a revision's to the issues of its critics.

    An `action` has the text in words.
    """

    number: int
    round: int
    text: str
    action: Action | None
    responses: tuple[IssueResponse, ...]
    finished: CallFinished


@dataclass(frozen=True)
class Contribution:
    spec: AgentSpec
    constraints: Constraints
    calls: tuple[AgentCall, ...]
    ended: bool
    standing: Standing | None
    spent: tuple[Usage, ...]

    @cached_property
    def versions(self) -> tuple[Version, ...]:
        written: list[Version] = []
        for call in self._asked:
            parsed = call.output(self.constraints)
            text = None if parsed is None else answer_text(parsed)
            if text is not None and call.finished is not None:
                responses = parsed.responses if isinstance(parsed, Revision) else ()
                action = None if self.constraints.actions is None else read_action(text)
                text = text if action is None else told(action)
                written.append(Version(len(written), call.opened.round, text, action, responses, call.finished))
        return tuple(written)

    @cached_property
    def _asked(self) -> list[AgentCall]:
        return [call for call in self.calls if call.planned.output in VERSION_KINDS]

    @property
    def chosen(self) -> Version | None:
        if not self.versions:
            return None
        last = len(self.versions) - 1
        return self.versions[last if self.standing is None else min(self.standing.version, last)]

    @cached_property
    def status(self) -> ContributionStatus:
        if any(call.finished is not None and call.finished.answered and not call.left_out for call in self._asked):
            return "answered"
        if any(call.finished is not None and call.finished.problem is not None for call in self._asked):
            return "failed"
        if any(call.left_out for call in self._asked):
            return "late"
        return "skipped" if self.ended else "pending"

    @property
    def problem(self) -> FactProblem | None:
        problems = [call.finished.problem for call in self._asked if call.finished and call.finished.problem]
        return problems[-1] if self.status == "failed" else None

    @property
    def model(self) -> str | None:
        """The model that wrote the chosen version, else the model of the last call, else the specification's."""
        if self.chosen is not None and self.chosen.finished.model is not None:
            return self.chosen.finished.model
        models = [call.finished.model for call in self._asked if call.finished and call.finished.model]
        return models[-1] if models else self.spec.model

    @property
    def calls_finished(self) -> int:
        """The count of calls that nothing waits for: with an outcome, left out, or of an ended deliberation."""
        return sum(self.ended or call.left_out or call.finished is not None for call in self.calls)

    @property
    def usage(self) -> Usage:
        return Usage.total(self.spent)

    @property
    def duration_ms(self) -> int:
        return sum(call.finished.duration_ms for call in self.calls if call.finished is not None)


def calls(state: State) -> Iterator[AgentCall]:
    for stage in state.stages:
        seen = None if stage.closed is None else frozenset(stage.closed.seen)
        for planned in stage.opened.calls:
            left_out = seen is not None and planned.call_id not in seen
            yield AgentCall(stage.opened, planned, state.finished.get(planned.call_id), left_out)


def contributions(state: State) -> tuple[Contribution, ...]:
    """The contribution of each member, in the order of the ranking, then of the council."""
    verdict = None if state.end is None else state.end.verdict
    standings = {} if verdict is None else {standing.agent_id: standing for standing in verdict.ranking}
    places = {agent_id: place for place, agent_id in enumerate(standings)}
    spent: dict[str, list[Usage]] = {}
    for finished in state.finished.values():
        spent.setdefault(finished.agent_id, []).append(finished.usage)
    by_agent: dict[str, list[AgentCall]] = {agent.agent_id: [] for agent in state.specification.agents}
    for call in calls(state):
        by_agent.setdefault(call.planned.agent_id, []).append(call)
    return tuple(
        Contribution(
            spec=agent,
            constraints=state.specification.constraints,
            calls=tuple(by_agent[agent.agent_id]),
            ended=state.ended,
            standing=standings.get(agent.agent_id),
            spent=tuple(spent.get(agent.agent_id, ())),
        )
        for agent in sorted(state.specification.agents, key=lambda agent: places.get(agent.agent_id, len(places)))
    )


def participation(state: State) -> Participation:
    members = contributions(state)
    counted = sum(contribution.status == "answered" for contribution in members)
    stalled: dict[tuple[str, int], Stall] = {}
    for opened, planned, finished, left_out in calls(state):
        if finished is not None and finished.answered and not left_out:
            continue
        key = planned.agent_id, opened.stage
        stalled[key] = Stall(
            agent_id=planned.agent_id,
            stage=opened.stage,
            purpose=opened.purpose,
            round=opened.round,
            calls=1 + (stalled[key].calls if key in stalled else 0),
            code=None if left_out or finished is None or finished.problem is None else finished.problem.code,
        )
    return Participation(took_place=counted > 1, members=len(members), counted=counted, stalled=tuple(stalled.values()))


def winner(state: State) -> Contribution | None:
    verdict = None if state.end is None else state.end.verdict
    return next((member for member in contributions(state) if verdict and member.spec.agent_id == verdict.winner), None)
