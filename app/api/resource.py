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
from app.deliberation.contributions import Contribution, calls, contributions
from app.deliberation.errors import CallCancelled
from app.deliberation.fold import State, usage
from app.deliberation.outputs import CheckOutcome, Critique, SandboxReport, Scores
from app.deliberation.specification import Criterion, FilesWorkspace, GitWorkspace


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


def _checks(contribution: Contribution) -> tuple[CheckOutcome, ...]:
    """The results of running the chosen version: a report is on the last version before it."""
    outcomes: dict[int, tuple[CheckOutcome, ...]] = {}
    written = {version.finished.call_id: version.number for version in contribution.versions}
    number = -1
    for call in contribution.calls:
        number = written.get(call.planned.call_id, number)
        parsed = call.output(contribution.constraints) if call.planned.output == "report" else None
        if isinstance(parsed, SandboxReport):
            outcomes[number] = parsed.outcomes
    return () if contribution.chosen is None else outcomes.get(contribution.chosen.number, ())


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
    for contribution in contributions(state):
        agent_id, chosen, standing = contribution.spec.agent_id, contribution.chosen, contribution.standing
        proposals.append(
            Proposal(
                agent_id=agent_id,
                role=contribution.spec.role,
                model=contribution.model,
                content=None if chosen is None else chosen.text,
                action=None if chosen is None else chosen.action,
                revisions=tuple(
                    TextVersion(
                        version=version.number,
                        round=version.round,
                        content=version.text,
                        action=version.action,
                        responses=version.responses,
                    )
                    for version in contribution.versions
                    if version is not chosen
                ),
                critiques=tuple(critiques.get(agent_id, ())),
                score=None if standing is None else standing.score,
                criteria=() if chosen is None else criteria.get(candidate_id(agent_id, chosen.number), ()),
                checks=_checks(contribution),
                rank=None if standing is None else standing.rank,
                usage=contribution.usage,
                calls_finished=contribution.calls_finished,
                calls_total=len(contribution.calls),
                status=contribution.status,
                error=contribution.problem,
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
    cut = [
        finished for finished in after if finished.problem is not None and finished.problem.code == CallCancelled.code
    ]
    uncut = [finished for finished in after if finished not in cut]
    return Cancellation(
        requested_at=state.cancel.ts,
        by=state.cancel.by,
        reason=state.cancel.reason,
        cut=tuple(
            CutCall(call_id=finished.call_id, agent_id=finished.agent_id, usage=finished.usage) for finished in cut
        ),
        finished_after=tuple(finished.call_id for finished in uncut),
        tokens_after=sum(finished.usage.tokens for finished in uncut),
    )


def _workspace(workspace: GitWorkspace | FilesWorkspace | None) -> GitWorkspace | FilesView | None:
    if not isinstance(workspace, FilesWorkspace):
        return workspace
    return FilesView(files=tuple(FileView(path=file.path, bytes=len(file.text.encode())) for file in workspace.files))


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
        turns=specification.turns,
        task_file=specification.task_file,
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
