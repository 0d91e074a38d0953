"""A deliberation's state as the resource that clients read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import fmean

from pydantic import ValidationError

from app.deliberation.calls import FactProblem, Usage
from app.deliberation.errors import InvalidOutput, UnexpectedFact
from app.deliberation.facts import CallFinished, PlannedCall, StageOpened, Standing, Verdict, decode
from app.deliberation.fold import Stage, State, fold, usage
from app.deliberation.outputs import (
    Answer,
    Critique,
    IssueResponse,
    Output,
    ParsedOutput,
    Revision,
    Scores,
    parse_output,
)
from app.deliberation.ports import Record
from app.deliberation.specification import AgentSpec, Specification
from app.schemas import (
    CriterionMean,
    Deliberation,
    Links,
    Progress,
    Proposal,
    ProposalStatus,
    ReceivedCritique,
    TextVersion,
)

# A recorded answer was within its stage's bound when it was recorded; here it is only read.
_ANY_LENGTH = 1 << 30


@dataclass(slots=True)
class _Work:
    """What the facts tell of one agent so far."""

    spec: AgentSpec
    status: ProposalStatus = "pending"
    model: str | None = None
    error: FactProblem | None = None
    versions: list[TextVersion] = field(default_factory=list[TextVersion])
    critiques: list[ReceivedCritique] = field(default_factory=list[ReceivedCritique])
    ballots: dict[int, list[dict[str, int]]] = field(default_factory=dict[int, list[dict[str, int]]])

    def add(self, round_: int, content: str, responses: tuple[IssueResponse, ...] = ()) -> None:
        number = len(self.versions)
        self.versions.append(TextVersion(version=number, round=round_, content=content, responses=responses))


def state_of(records: Sequence[Record]) -> State | None:
    """Fold stored records, None when there are none; raises UnexpectedFact when one of them is damaged or foreign."""
    try:
        return fold((record.sequence, decode(record.data)) for record in records)  # pyright: ignore[reportArgumentType]
    except ValidationError:
        # Not `from`: the validation error quotes the fact, and with it a client's task.
        raise UnexpectedFact("a stored fact does not decode") from None


def links(deliberation_id: str) -> Links:
    """Where to go from a deliberation."""
    path = f"/deliberations/{deliberation_id}"
    return Links(self=path, events=f"{path}/events", cancel=f"{path}/cancel")


def common_role(specification: Specification) -> str | None:
    """The role that all members share, if they do."""
    roles = {agent.role for agent in specification.agents}
    return roles.pop() if len(roles) == 1 else None


def candidate(shown: str) -> tuple[str, int | None]:
    """The agent and the version behind a letter: `dev-002` or `dev-002#1`."""
    agent_id, _, version = shown.partition("#")
    return agent_id, int(version) if version.isdecimal() else None


def _output(purpose: str, planned: PlannedCall, specification: Specification) -> Output | None:
    match purpose:
        case "propose":
            return Output(kind="answer", answer_chars_max=_ANY_LENGTH)
        case "critique":
            return Output(kind="critique")
        case "revise":
            return Output(kind="revision", answer_chars_max=_ANY_LENGTH)
        case "score":
            criteria = tuple(criterion.id for criterion in specification.constraints.rubric)
            return Output(kind="score", labels=tuple(planned.labels), criteria=criteria)
        case _:
            return None


def _counted(state: State, stage: Stage) -> Iterator[tuple[PlannedCall, CallFinished | None, bool]]:
    """Each call of a stage, its outcome, and whether the stage's closing left it out."""
    seen = None if stage.closed is None else set(stage.closed.seen)
    for planned in stage.opened.calls:
        yield planned, state.finished.get(planned.call_id), seen is not None and planned.call_id not in seen


def _parsed(state: State, opened: StageOpened, planned: PlannedCall, finished: CallFinished) -> ParsedOutput | None:
    output = _output(opened.purpose, planned, state.specification)
    if output is None or finished.text is None:
        return None
    try:
        return parse_output(output, finished.text)
    except InvalidOutput:
        return None  # another version of the gateway may have asked in another shape; the rest is still told


def _first_answer(work: _Work, finished: CallFinished | None, late: bool) -> None:
    if finished is None:
        work.status = "late" if late else "pending"
        return
    work.model = finished.model or work.model
    if finished.problem is not None:
        work.status, work.error = "failed", finished.problem
    else:
        work.status = "late" if late else "answered"


def _take(
    works: dict[str, _Work],
    opened: StageOpened,
    planned: PlannedCall,
    parsed: ParsedOutput,
) -> None:
    match parsed:
        case Answer() if planned.agent_id in works:
            works[planned.agent_id].add(opened.round, parsed.answer)
        case Revision() if planned.agent_id in works:
            works[planned.agent_id].add(opened.round, parsed.answer, parsed.responses)
        case Critique():
            critique = ReceivedCritique(
                agent_id=planned.agent_id, round=opened.round, verdict=parsed.verdict, issues=parsed.issues
            )
            for shown in planned.labels.values():
                if (target := candidate(shown)[0]) in works:
                    works[target].critiques.append(critique)
        case Scores():
            for label, scored in parsed.candidates.items():
                agent_id, version = candidate(planned.labels[label])
                if agent_id in works:
                    place = len(works[agent_id].versions) - 1 if version is None else version
                    ballot = {entry.id: entry.score for entry in scored.criteria}
                    works[agent_id].ballots.setdefault(place, []).append(ballot)
        case _:
            return


def _works(state: State) -> dict[str, _Work]:
    works = {agent.agent_id: _Work(agent, model=agent.model) for agent in state.specification.agents}
    for stage in state.stages:
        for planned, finished, left_out in _counted(state, stage):
            if stage.opened.purpose == "propose" and planned.agent_id in works:
                _first_answer(works[planned.agent_id], finished, left_out)
            if finished is None or left_out:
                continue
            parsed = _parsed(state, stage.opened, planned, finished)
            if parsed is not None:
                _take(works, stage.opened, planned, parsed)
    return works


def _mean(ballots: list[dict[str, int]], weights: dict[str, float]) -> float:
    total = sum(weights.values())
    return fmean(sum(weights[key] * score for key, score in ballot.items()) / total for ballot in ballots)


def _chosen(work: _Work, verdict: Verdict | None, weights: dict[str, float]) -> TextVersion | None:
    """The version that stands for the agent: the verdict's own, else the best scored, else the latest."""
    if not work.versions:
        return None
    if verdict is not None and verdict.winner == work.spec.agent_id:
        for version in work.versions:
            if version.content == verdict.content:
                return version
    scored = [version for version in work.versions if version.version in work.ballots]
    if not scored:
        return work.versions[-1]
    return max(scored, key=lambda version: (_mean(work.ballots[version.version], weights), version.version))


def _criteria(ballots: list[dict[str, int]], specification: Specification) -> tuple[CriterionMean, ...]:
    if not ballots:
        return ()
    return tuple(
        CriterionMean(id=criterion.id, score=fmean(ballot[criterion.id] for ballot in ballots), ballots=len(ballots))
        for criterion in specification.constraints.rubric
    )


def _proposals(state: State, by_agent: dict[str, Usage]) -> tuple[Proposal, ...]:
    specification = state.specification
    verdict = None if state.end is None else state.end.verdict
    standings: dict[str, Standing] = {} if verdict is None else {each.agent_id: each for each in verdict.ranking}
    weights = {criterion.id: criterion.weight for criterion in specification.constraints.rubric}
    proposals: list[Proposal] = []
    for agent_id, work in _works(state).items():
        chosen = _chosen(work, verdict, weights)
        standing = standings.get(agent_id)
        proposals.append(
            Proposal(
                agent_id=agent_id,
                role=work.spec.role,
                model=work.model,
                content=None if chosen is None else chosen.content,
                revisions=tuple(version for version in work.versions if version is not chosen),
                critiques=tuple(work.critiques),
                score=None if standing is None else standing.score,
                criteria=() if chosen is None else _criteria(work.ballots.get(chosen.version, []), specification),
                rank=None if standing is None else standing.rank,
                usage=by_agent.get(agent_id, Usage()),
                status=work.status,
                error=work.error,
            )
        )
    places = {agent_id: place for place, agent_id in enumerate(standings)}
    return tuple(sorted(proposals, key=lambda proposal: places.get(proposal.agent_id, len(places))))


def _progress(state: State) -> Progress | None:
    if state.ended or not state.stages:
        return None
    opened = state.stages[-1].opened
    return Progress(
        stage=opened.stage,
        purpose=opened.purpose,
        round=opened.round,
        calls_finished=sum(planned.call_id in state.finished for planned in opened.calls),
        calls_total=len(opened.calls),
    )


def _status_reason(state: State) -> str | None:
    if state.end is not None and state.end.problem is not None:
        return state.end.problem.detail
    if state.status in ("cancelling", "cancelled") and state.cancel is not None:
        return state.cancel.reason
    return None


def resource(state: State, *, epoch: str, retention_s: int) -> Deliberation:
    """The deliberation as clients read it, of one state: equal facts give equal bytes, so its ETag is strong.

    `epoch` is the stream's incarnation, `retention_s` the age at which its facts go.
    """
    accepted, specification, end = state.accepted, state.specification, state.end
    spent = usage(state)
    return Deliberation(
        id=state.deliberation_id,
        status=state.status,  # pyright: ignore[reportArgumentType] -- the fold's statuses are these
        status_reason=_status_reason(state),
        revision=state.revision,
        role=common_role(specification),
        agents=specification.agents,
        strategy=specification.strategy,
        rounds=specification.rounds,
        task=specification.task,
        constraints=specification.constraints,
        quorum=specification.quorum,
        budget=specification.budget,
        seed=specification.seed,
        metadata=specification.metadata,
        created_at=accepted.ts,
        started_at=state.started_at,
        ended_at=None if end is None else end.ts,
        deadline_at=accepted.deadline_at,
        progress=_progress(state),
        proposals=_proposals(state, {each.agent_id: each for each in spent.by_agent}),
        verdict=None if end is None else end.verdict,
        usage=spent,
        degraded=None if end is None else end.degraded,
        problem=None if end is None else end.problem,
        last_event_id=f"{epoch}-{state.last_sequence}",
        retention_until=accepted.ts + timedelta(seconds=retention_s),
        links=links(state.deliberation_id),
    )
