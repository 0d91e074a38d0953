"""The outcome of a deliberation as every façade reads it: the answers, or the problem that stands in their place."""

from collections.abc import Iterator
from importlib.metadata import version

from pydantic import Field

from app.api.refusals import HttpError
from app.api.schemas import Resource
from app.deliberation.actions import told, with_ids
from app.deliberation.calls import FactProblem
from app.deliberation.contributions import contributions
from app.deliberation.errors import QuorumNotReached
from app.deliberation.facts import DEGRADED_REASONS, Action, Tally
from app.deliberation.fold import State

_VERSION = version("deliberation-gateway")


class NoVerdict(HttpError):
    """The deliberation has ended without an answer, or not in time; `problem` is the cause."""

    code = "no_verdict"

    def __init__(self, problem: FactProblem, deliberation_id: str) -> None:
        super().__init__(f"Deliberation {deliberation_id}: {problem.detail}")
        self.problem = problem
        self.headers = deliberation_headers(deliberation_id)


class DeliberationOutcome(Resource):
    """The deliberation's outcome in short; the full deliberation is at `href`."""

    id: str
    href: str
    winner: str | None
    margin: float | None
    tie: bool
    agreement: float | None
    agreed: bool | None = Field(description="Whether as many members gave it as must; null where none is demanded")
    tally: tuple[Tally, ...] = Field(description="Equal answers, where they are counted, most votes first")
    calls: int
    degraded: tuple[str, ...] = Field(description="Why the deliberation is degraded; empty if it is not")


def deliberation_headers(deliberation_id: str) -> dict[str, str]:
    return {"Location": f"/deliberations/{deliberation_id}", "X-Deliberation-Id": deliberation_id}


def fingerprint(state: State) -> str:
    """The versions of gateway and strategy; with the same fingerprint, the same seed gives the same answer."""
    specified = state.specification
    return f"deliberation-gateway-{_VERSION}-{specified.strategy}-v{specified.strategy_version}"


def model_name(state: State) -> str:
    specified = state.specification
    return f"{specified.strategy}/{specified.agents[0].role}"


def answers(state: State) -> tuple[str, ...]:
    """The verdict's answer, or all agents' answers if the strategy does not rank them; raises NoVerdict."""
    return tuple(told(action) for action in actions(state))


def actions(state: State) -> tuple[Action, ...]:
    """The same as actions: a text is a reply. The calls of each have ids."""
    end = state.end
    assert end is not None
    if end.verdict is not None and end.verdict.content is not None:
        return (end.verdict.action or Action(reply=end.verdict.content),)
    if end.verdict is not None:
        chosen = [contribution.chosen for contribution in contributions(state)]
        standing = [version.action or Action(reply=version.text) for version in chosen if version is not None]
        if standing:
            return tuple(with_ids(action, f"{state.deliberation_id}_{place}") for place, action in enumerate(standing))
    detail = "it was cancelled" + (f": {state.cancel.reason}" if state.cancel and state.cancel.reason else "")
    cancelled = FactProblem(code="cancelled", detail=detail, retryable=False)
    raise NoVerdict(end.problem or cancelled, state.deliberation_id)


def is_cut_off(state: State) -> bool:
    """Whether it has no answer because every one was cut off at the limit of tokens."""
    end = state.end
    unanswered = [finished for finished in state.finished.values() if not finished.answered]
    return (
        end is not None
        and end.problem is not None
        and end.problem.code == QuorumNotReached.code
        and bool(unanswered)
        and all(finished.finish_reason == "length" for finished in unanswered)
    )


def outcome(state: State) -> DeliberationOutcome:
    assert state.end is not None and state.end.verdict is not None
    id, degraded = state.deliberation_id, state.end.degraded
    named = {"id": id, "href": f"/deliberations/{id}", "degraded": degraded.reasons if degraded else ()}
    return DeliberationOutcome.model_validate({**dict(state.end.verdict), **named})


def notes(state: State) -> Iterator[str]:
    """Notes on a verdict, a sentence each: dissent and degradation."""
    assert state.end is not None
    for dissent in () if state.end.verdict is None else state.end.verdict.dissent:
        yield f"Dissent: {dissent.agent_id} preferred {dissent.preferred} to the winner."
    if state.end.degraded is not None:
        for reason in state.end.degraded.reasons:
            yield f"Degraded: {DEGRADED_REASONS.get(reason, reason)}"
        for cut in state.end.degraded.cut:
            yield f"Degraded: {cut.purpose}, round {cut.round}, was cut by {cut.by}."
