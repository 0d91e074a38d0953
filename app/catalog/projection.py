"""A deliberation's state as the resource that clients read."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import ValidationError

from app.api.schemas import (
    AgentCount,
    Cancellation,
    CriterionMean,
    CutCall,
    Deliberation,
    DeliberationSummary,
    Links,
    Progress,
    Proposal,
    ProposalStatus,
    ReceivedCritique,
    TextVersion,
)
from app.catalog.entries import Entry
from app.deliberation.calls import FactProblem, Usage
from app.deliberation.choice.ballots import Ballot, author, ballot, criterion_means
from app.deliberation.errors import CallCancelled, InvalidOutput, UnexpectedFact
from app.deliberation.facts import CallFinished, PlannedCall, StageOpened, Standing, decode
from app.deliberation.fold import Stage, State, fold, usage
from app.deliberation.outputs import (
    Answer,
    CheckOutcome,
    Critique,
    DebateTurn,
    IssueResponse,
    Output,
    OutputKind,
    ParsedOutput,
    Program,
    Revision,
    SandboxReport,
    Scores,
    parse_output,
)
from app.deliberation.ports import Record
from app.deliberation.specification import AgentSpec

RESPONSES_MAX = 1_000
# The kinds of output that are a version of an answer.
_VERSIONS: frozenset[OutputKind] = frozenset({"answer", "turn", "program", "revision"})

Labels = Mapping[str, str]


@dataclass(slots=True)
class _Work:
    """The work of one agent so far."""

    spec: AgentSpec
    status: ProposalStatus = "pending"
    model: str | None = None
    error: FactProblem | None = None
    versions: list[TextVersion] = field(default_factory=list[TextVersion])
    critiques: list[ReceivedCritique] = field(default_factory=list[ReceivedCritique])
    checks: dict[int, tuple[CheckOutcome, ...]] = field(default_factory=dict[int, "tuple[CheckOutcome, ...]"])

    def add(self, round_: int, content: str, responses: tuple[IssueResponse, ...] = ()) -> None:
        number = len(self.versions)
        self.versions.append(TextVersion(version=number, round=round_, content=content, responses=responses))

    def candidate(self, version: int) -> str:
        """The id of a version on ballots."""
        return self.spec.agent_id if version == 0 else f"{self.spec.agent_id}#{version}"


@dataclass(slots=True)
class _Council:
    """The work of all agents so far, and their ballots."""

    works: dict[str, _Work]
    ballots: list[Ballot] = field(default_factory=list[Ballot])


def state_of(records: Sequence[Record]) -> State | None:
    """Fold stored records, None without any; raises UnexpectedFact when one is damaged or foreign."""
    try:
        return fold((record.sequence, decode(record.data)) for record in records)  # pyright: ignore[reportArgumentType]
    except ValidationError:
        # Without `from`, because the validation error quotes the fact, and with it a client's task.
        raise UnexpectedFact("a stored fact does not decode") from None


def links(deliberation_id: str, *, ended: bool) -> Links:
    """The links of a deliberation."""
    path = f"/deliberations/{deliberation_id}"
    return Links(
        self=path,
        events=f"{path}/events",
        cancel=f"{path}/cancel",
        delete=path if ended else None,
        deliveries=f"{path}/deliveries",
    )


def _counted(state: State, stage: Stage) -> Iterator[tuple[PlannedCall, CallFinished | None, bool]]:
    """Each call of a stage, its outcome, and whether the stage's closing left it out."""
    seen = None if stage.closed is None else set(stage.closed.seen)
    for planned in stage.opened.calls:
        yield planned, state.finished.get(planned.call_id), seen is not None and planned.call_id not in seen


def _parsed(state: State, planned: PlannedCall, finished: CallFinished) -> ParsedOutput | None:
    if finished.text is None:
        return None
    constraints = state.specification.constraints
    criteria = tuple(criterion.id for criterion in constraints.rubric)
    # A revision may answer any issue: the number of issues in its prompt is not recorded.
    form = Output(kind=planned.output, labels=tuple(planned.labels), criteria=criteria, issues=RESPONSES_MAX)
    try:
        return parse_output(form.with_answers_of(constraints.answer_schema), finished.text)
    except InvalidOutput:
        return None  # another version of the gateway may have requested another shape; the rest is shown


def _first_answer(work: _Work, finished: CallFinished | None, late: bool) -> None:
    work.status = "late" if late else "pending" if finished is None else "answered"
    if finished is not None:
        work.model = finished.model or work.model
        if finished.problem is not None:
            work.status, work.error = "failed", finished.problem


def _take(council: _Council, opened: StageOpened, finished: CallFinished, labels: Labels, parsed: ParsedOutput) -> None:
    work = council.works.get(finished.agent_id)
    match parsed:
        # A text fused from several candidates is no agent's version.
        case Answer() if work is not None and opened.purpose == "propose":
            work.add(opened.round, parsed.answer)
        case DebateTurn() if work is not None:
            work.add(opened.round, parsed.answer)
        case Program() if work is not None:
            work.add(opened.round, parsed.code)
        case SandboxReport() if work is not None and work.versions:
            work.checks[len(work.versions) - 1] = parsed.outcomes
        case Revision() if work is not None:
            work.add(opened.round, parsed.answer, parsed.responses)
        case Critique():
            critique = ReceivedCritique(
                agent_id=finished.agent_id, round=opened.round, verdict=parsed.verdict, issues=parsed.issues
            )
            for target in {author(shown) for shown in labels.values()} & council.works.keys():
                council.works[target].critiques.append(critique)
        case Scores():
            council.ballots.append(ballot(finished.agent_id, labels, parsed))
        case _:
            return


def _council(state: State, kinds: Collection[OutputKind] | None = None) -> _Council:
    """What calls of these kinds, by default of all, made of the council."""
    council = _Council({agent.agent_id: _Work(agent, model=agent.model) for agent in state.specification.agents})
    for stage in state.stages:
        for planned, finished, left_out in _counted(state, stage):
            if stage.opened.purpose == "propose" and planned.agent_id in council.works:
                _first_answer(council.works[planned.agent_id], finished, left_out)
            if finished is None or left_out or (kinds is not None and planned.output not in kinds):
                continue
            parsed = _parsed(state, planned, finished)
            if parsed is not None:
                _take(council, stage.opened, finished, planned.labels, parsed)
    return council


def answers(state: State) -> Iterator[str]:
    """Every version of every agent's answer."""
    for work in _council(state, _VERSIONS).works.values():
        yield from (version.content for version in work.versions)


def _criteria(council: _Council, state: State) -> dict[str, tuple[CriterionMean, ...]]:
    """Means by candidate."""
    counts = Counter(candidate for cast in council.ballots for candidate in cast.scores)
    return {
        candidate: tuple(
            CriterionMean(id=criterion.id, score=float(means[criterion.id]), ballots=counts[candidate])
            for criterion in state.specification.constraints.rubric
        )
        for candidate, means in criterion_means(council.ballots).items()
    }


def _proposals(state: State, by_agent: dict[str, Usage]) -> tuple[Proposal, ...]:
    verdict = None if state.end is None else state.end.verdict
    standings: dict[str, Standing] = {} if verdict is None else {each.agent_id: each for each in verdict.ranking}
    council = _council(state)
    criteria = _criteria(council, state)
    proposals: list[Proposal] = []
    for agent_id, work in council.works.items():
        standing = standings.get(agent_id)
        chosen = len(work.versions) - 1 if standing is None else standing.version
        proposals.append(
            Proposal(
                agent_id=agent_id,
                role=work.spec.role,
                model=work.model,
                content=work.versions[chosen].content if work.versions else None,
                revisions=tuple(version for version in work.versions if version.version != chosen),
                critiques=tuple(work.critiques),
                score=None if standing is None else standing.score,
                criteria=criteria.get(work.candidate(chosen), ()),
                checks=work.checks.get(chosen, ()),
                rank=None if standing is None else standing.rank,
                usage=by_agent.get(agent_id, Usage()),
                status="skipped" if state.ended and work.status == "pending" else work.status,
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


def _cancellation(state: State) -> Cancellation | None:
    if state.cancel is None or state.status not in ("cancelling", "cancelled"):
        return None
    after = [state.finished[call_id] for call_id in state.after_cancel]
    cut = [each for each in after if each.problem is not None and each.problem.code == CallCancelled.code]
    uncut = [each for each in after if each not in cut]
    return Cancellation(
        requested_at=state.cancel.ts,
        reason=state.cancel.reason,
        cut=tuple(CutCall(call_id=each.call_id, agent_id=each.agent_id, usage=each.usage) for each in cut),
        finished_after=tuple(each.call_id for each in uncut),
        tokens_after=sum(each.usage.tokens for each in uncut),
    )


def resource(state: State, *, epoch: str, retention_s: int) -> Deliberation:
    """The resource of a state. Equal facts give equal bytes, so its ETag is strong.

    `epoch` is the stream's incarnation, `retention_s` the age at which the log removes facts.
    """
    accepted, specification, end = state.accepted, state.specification, state.end
    spent, roles = usage(state), {agent.role for agent in specification.agents}
    return Deliberation(
        id=state.deliberation_id,
        status=state.status,  # pyright: ignore[reportArgumentType] -- the fold's statuses are these
        status_reason=_status_reason(state),
        revision=state.revision,
        role=roles.pop() if len(roles) == 1 else None,
        agents=specification.agents,
        strategy=specification.strategy,
        parameters=specification.parameters,
        rounds=specification.rounds,
        task=specification.task,
        constraints=specification.constraints,
        evidence=specification.evidence,
        context=specification.context,
        quorum=specification.quorum,
        budget=specification.budget,
        seed=specification.seed,
        metadata=specification.metadata,
        webhook=specification.webhook,
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
        cancellation=_cancellation(state),
        last_event_id=f"{epoch}-{state.last_sequence}",
        retention_until=accepted.ts + timedelta(seconds=retention_s),
        links=links(state.deliberation_id, ended=state.ended),
    )


def summary(entry: Entry) -> DeliberationSummary:
    """The list item of an entry with a known acceptance."""
    assert entry.created_at is not None
    return DeliberationSummary(
        id=entry.id,
        status=entry.status,
        role=next(iter(entry.roles)) if len(entry.roles) == 1 else None,
        agents=tuple(AgentCount(role=role, count=count) for role, count in entry.roles.items()),
        strategy=entry.strategy,
        task=entry.task,
        metadata=dict(entry.metadata),
        created_at=entry.created_at,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
        links=links(entry.id, ended=entry.ended is not None),
    )
