"""The spans of an ended deliberation: the workflow, its stages and its agents' calls, read off the facts.

The process that brings a deliberation to its end records them, so that a trace is complete whichever processes died.
After a takeover the successor's spans have the same ids.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from app.deliberation.choice.ballots import author
from app.deliberation.contributions import AgentCall, calls, contributions
from app.deliberation.facts import End
from app.deliberation.fold import Stage, State
from app.deliberation.outputs import Choice, Pair, Scores
from app.observability import conventions as names
from app.observability.trace_context import DeliberationTrace
from app.observability.traces import Attributes, RecordedSpan, SpanEvent


def deliberation_spans(
    tenant: str, state: State, end: End, trace: DeliberationTrace, *, content: bool
) -> Iterator[RecordedSpan]:
    """Yields each span of a deliberation that ended by `end`; with `content` the reasons of ballots stand in events."""
    yield _workflow(tenant, state, end, trace)
    yield from (_stage(stage, end, trace) for stage in state.stages)
    evaluations = _evaluations(state, content=content)
    yield from (_agent(call, end, trace, evaluations.get(call.planned.call_id, ())) for call in calls(state))


def _workflow(tenant: str, state: State, end: End, trace: DeliberationTrace) -> RecordedSpan:
    return RecordedSpan(
        name=f"{names.INVOKE_WORKFLOW} {state.specification.strategy}",
        ref=trace.workflow,
        parent_id=trace.parent and trace.parent.span_id,
        began_at=state.accepted.ts,
        ended_at=end.ts,
        attributes={
            names.OPERATION_NAME: names.INVOKE_WORKFLOW,
            names.AGENT_NAME: state.specification.strategy,
            names.CONVERSATION_ID: state.deliberation_id,
            names.USAGE_INPUT_TOKENS: end.usage.prompt_tokens,
            names.USAGE_OUTPUT_TOKENS: end.usage.completion_tokens,
            names.USAGE_CACHE_READ_INPUT_TOKENS: end.usage.cached_tokens,
            names.TENANT: tenant,
            names.STATUS: end.type.removeprefix("deliberation."),
            names.TAKEOVERS: state.takeovers,
            names.REQUEST_ID: state.accepted.request_id,
        },
        error=end.problem and end.problem.code,
    )


def _stage(stage: Stage, end: End, trace: DeliberationTrace) -> RecordedSpan:
    opened, closed = stage.opened, stage.closed
    return RecordedSpan(
        name=opened.purpose,
        ref=trace.stage(opened.stage),
        parent_id=trace.workflow.span_id,
        began_at=opened.ts,
        ended_at=closed.ts if closed else end.ts,
        attributes={
            names.STAGE: opened.stage,
            names.ROUND: opened.round,
            names.CLOSED_BY: closed and closed.reason,
        },
    )


def _agent(call: AgentCall, end: End, trace: DeliberationTrace, evaluations: Sequence[SpanEvent]) -> RecordedSpan:
    opened, planned, finished, _ = call
    problem = finished and finished.problem
    return RecordedSpan(
        name=f"{names.INVOKE_AGENT} {planned.role}",
        ref=trace.agent(planned.call_id),
        parent_id=trace.stage(opened.stage).span_id,
        began_at=opened.ts,
        ended_at=finished.ts if finished else end.ts,
        attributes={
            names.OPERATION_NAME: names.INVOKE_AGENT,
            names.AGENT_NAME: planned.role,
            names.CONVERSATION_ID: trace.deliberation_id,
            names.REQUEST_MODEL: finished and finished.model,
            names.USAGE_INPUT_TOKENS: finished and finished.usage.prompt_tokens,
            names.USAGE_OUTPUT_TOKENS: finished and finished.usage.completion_tokens,
            names.USAGE_CACHE_READ_INPUT_TOKENS: finished and finished.usage.cached_tokens,
            names.AGENT_ID: planned.agent_id,
            names.CALL_ID: planned.call_id,
        },
        error=problem.code if problem else None if finished else "no_outcome",
        events=evaluations,
    )


def _evaluations(state: State, *, content: bool) -> dict[str, list[SpanEvent]]:
    """Returns the evaluations of each call: a ballot or a comparison that counts has rated its text."""
    versions = {contribution.spec.agent_id: contribution.versions for contribution in contributions(state)}
    evaluations: dict[str, list[SpanEvent]] = defaultdict(list)
    for call in calls(state):
        if call.finished is None:
            continue
        for letter, attributes in _marks(call, state, content=content):
            candidate = call.planned.labels.get(letter, "")
            number = int(candidate.partition("#")[2] or 0)
            texts = versions.get(author(candidate), ())
            if number < len(texts):
                with_agent: Attributes = {**attributes, names.AGENT_ID: call.planned.agent_id}
                evaluations[texts[number].finished.call_id].append(
                    SpanEvent(names.EVALUATION, call.finished.ts, with_agent)
                )
    return evaluations


def _marks(call: AgentCall, state: State, *, content: bool) -> Iterator[tuple[str, Attributes]]:
    match call.output(state.specification.constraints):
        case Scores() as scores:
            for letter, candidate in scores.candidates.items():
                for criterion in candidate.criteria:
                    yield (
                        letter,
                        {
                            names.EVALUATION_NAME: criterion.id,
                            names.EVALUATION_SCORE_VALUE: float(criterion.score),
                            names.EVALUATION_EXPLANATION: criterion.rationale if content else None,
                        },
                    )
        case Pair() as pair:
            for letter, notes in (("A", pair.notes_a), ("B", pair.notes_b)):
                label = "tie" if pair.winner == "tie" else "preferred" if pair.winner == letter else "not preferred"
                yield (
                    letter,
                    {
                        names.EVALUATION_NAME: "comparison",
                        names.EVALUATION_SCORE_LABEL: label,
                        names.EVALUATION_EXPLANATION: notes if content else None,
                    },
                )
        case Choice() as chosen:
            yield (
                chosen.choice,
                {
                    names.EVALUATION_NAME: "choice",
                    names.EVALUATION_SCORE_LABEL: "chosen",
                    names.EVALUATION_EXPLANATION: chosen.reasoning if content else None,
                },
            )
        case _:
            return
