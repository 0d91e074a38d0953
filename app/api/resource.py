"""A deliberation's state as the resource that clients read."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta

from app.api.schemas import (
    Cancellation,
    CriterionMean,
    CutCall,
    Deliberation,
    FilesView,
    FileView,
    Links,
    Progress,
    Proposal,
    ReceivedCritique,
    TextVersion,
)
from app.deliberation.choice.ballots import Ballot, author, ballot, candidate_id, criterion_means
from app.deliberation.errors import CallCancelled
from app.deliberation.fold import State, usage
from app.deliberation.outputs import CheckOutcome, Critique, SandboxReport, Scores
from app.deliberation.specification import Criterion, FilesWorkspace, GitWorkspace
from app.deliberation.works import AgentWork, calls, works


def links(deliberation_id: str, *, ended: bool) -> Links:
    path = f"/deliberations/{deliberation_id}"
    return Links(
        self=path,
        events=f"{path}/events",
        cancel=f"{path}/cancel",
        delete=path if ended else None,
        deliveries=f"{path}/deliveries",
    )


def _reviews(state: State) -> tuple[Mapping[str, Sequence[ReceivedCritique]], Sequence[Ballot]]:
    critiques: defaultdict[str, list[ReceivedCritique]] = defaultdict(list)
    ballots: list[Ballot] = []
    for call in calls(state):
        if call.planned.output not in ("critique", "score"):
            continue
        reviewer, labels = call.planned.agent_id, call.planned.labels
        match call.output(state.specification.constraints):
            case Critique(verdict=verdict, issues=issues):
                received = ReceivedCritique(agent_id=reviewer, round=call.opened.round, verdict=verdict, issues=issues)
                for target in {author(shown) for shown in labels.values()}:
                    critiques[target].append(received)
            case Scores() as scores:
                ballots.append(ballot(reviewer, labels, scores))
            case _:
                pass
    return critiques, ballots


def _checks(work: AgentWork) -> tuple[CheckOutcome, ...]:
    """The results of running the chosen version: a report is on the last version before it."""
    found: dict[int, tuple[CheckOutcome, ...]] = {}
    written = {version.finished.call_id: version.number for version in work.versions}
    number = -1
    for call in work.calls:
        number = written.get(call.planned.call_id, number)
        parsed = call.output(work.constraints) if call.planned.output == "report" else None
        if isinstance(parsed, SandboxReport):
            found[number] = parsed.outcomes
    return () if work.chosen is None else found.get(work.chosen.number, ())


def _criteria(ballots: Sequence[Ballot], rubric: Sequence[Criterion]) -> Mapping[str, tuple[CriterionMean, ...]]:
    counts = Counter(candidate for cast in ballots for candidate in cast.scores)
    return {
        candidate: tuple(
            CriterionMean(id=criterion.id, score=float(means[criterion.id]), ballots=counts[candidate])
            for criterion in rubric
        )
        for candidate, means in criterion_means(ballots).items()
    }


def _proposals(state: State) -> tuple[Proposal, ...]:
    critiques, ballots = _reviews(state)
    criteria = _criteria(ballots, state.specification.constraints.rubric)
    proposals: list[Proposal] = []
    for work in works(state):
        agent_id, chosen, standing = work.spec.agent_id, work.chosen, work.standing
        proposals.append(
            Proposal(
                agent_id=agent_id,
                role=work.spec.role,
                model=work.model,
                content=None if chosen is None else chosen.text,
                revisions=tuple(
                    TextVersion(version=each.number, round=each.round, content=each.text, responses=each.responses)
                    for each in work.versions
                    if each is not chosen
                ),
                critiques=tuple(critiques.get(agent_id, ())),
                score=None if standing is None else standing.score,
                criteria=() if chosen is None else criteria.get(candidate_id(agent_id, chosen.number), ()),
                checks=_checks(work),
                rank=None if standing is None else standing.rank,
                usage=work.usage,
                calls_finished=work.calls_finished,
                calls_total=len(work.calls),
                status=work.status,
                error=work.problem,
            )
        )
    return tuple(proposals)


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
        by=state.cancel.by,
        reason=state.cancel.reason,
        cut=tuple(CutCall(call_id=each.call_id, agent_id=each.agent_id, usage=each.usage) for each in cut),
        finished_after=tuple(each.call_id for each in uncut),
        tokens_after=sum(each.usage.tokens for each in uncut),
    )


def _workspace(found: GitWorkspace | FilesWorkspace | None) -> GitWorkspace | FilesView | None:
    if not isinstance(found, FilesWorkspace):
        return found
    return FilesView(files=tuple(FileView(path=each.path, bytes=len(each.text.encode())) for each in found.files))


def resource(state: State, *, epoch: str, retention_s: int) -> Deliberation:
    """The resource of a state, with facts kept for `retention_s`. Equal facts give equal bytes: its ETag is strong."""
    accepted, specification, end = state.accepted, state.specification, state.end
    roles = {agent.role for agent in specification.agents}
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
        workspace=_workspace(specification.workspace),
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
        proposals=_proposals(state),
        verdict=None if end is None else end.verdict,
        usage=usage(state),
        degraded=None if end is None else end.degraded,
        participation=None if end is None else end.participation,
        problem=None if end is None else end.problem,
        cancellation=_cancellation(state),
        last_event_id=f"{epoch}-{state.last_sequence}",
        retention_until=accepted.ts + timedelta(seconds=retention_s),
        links=links(state.deliberation_id, ended=state.ended),
    )
