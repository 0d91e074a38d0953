"""Grades deliberations on questions with known answers, sums them up per strategy, and formats the sums."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean

from rich.text import Text

from app.api.schemas import Deliberation, Proposal, TextVersion
from app.cli.bench.questions import Question
from app.cli.client import JsonObject
from app.deliberation.answers import tally
from app.deliberation.facts import Verdict

_Z_95 = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedAnswer:
    """The grade of one ended deliberation.

    `majority_right`: whether the most frequent first draft is right; `first_right`: whether the first agent's draft is;
    None without drafts. `readable` of `answers` (first drafts and verdict) have the required form. `seconds` are from
    acceptance to the end. `problem` is the code of what a deliberation without a verdict ended with.
    """

    id: str
    status: str
    problem: str | None = None
    right: bool
    majority_right: bool | None
    first_right: bool | None
    answers: int
    readable: int
    calls: int
    tokens: int
    seconds: float
    degraded: bool


def first_drafts(deliberation: Deliberation) -> dict[str, str]:
    """The answers before any revision, in the council's order; of an action its JSON."""
    drafts: dict[str, str] = {}
    for proposal in deliberation.proposals:
        earlier = {version.version: version for version in proposal.revisions}
        answer = _answer(earlier.get(0, proposal))
        if answer is not None:
            drafts[proposal.agent_id] = answer
    return {agent.agent_id: drafts[agent.agent_id] for agent in deliberation.agents if agent.agent_id in drafts}


def _answer(version: TextVersion | Proposal | Verdict) -> str | None:
    return version.content if version.action is None else version.action.model_dump_json()


def grade(question: Question, deliberation: Deliberation) -> GradedAnswer:
    """The grade of an ended deliberation. A failed one is wrong, and so is an unreadable verdict."""
    drafts = first_drafts(deliberation)
    verdict = _answer(deliberation.verdict) if deliberation.verdict is not None else None
    first = drafts.get(deliberation.agents[0].agent_id)
    texts = [*drafts.values(), *([] if verdict is None else [verdict])]
    ended_at = deliberation.ended_at or deliberation.created_at
    return GradedAnswer(
        id=deliberation.id,
        status=deliberation.status,
        problem=None if deliberation.problem is None else deliberation.problem.code,
        right=question.is_right(verdict),
        majority_right=_majority_right(question, drafts, deliberation.seed),
        first_right=None if first is None else question.is_right(first),
        answers=len(texts),
        readable=sum(question.read(text) is not None for text in texts),
        calls=deliberation.usage.calls,
        tokens=deliberation.usage.tokens,
        seconds=(ended_at - deliberation.created_at).total_seconds(),
        degraded=deliberation.degraded is not None,
    )


def _majority_right(question: Question, drafts: dict[str, str], seed: int) -> bool | None:
    if not drafts:
        return None
    answers = {agent_id: question.read(text) for agent_id, text in drafts.items()}
    count = tally(answers.items(), seed)
    # Any draft of the first group: its answers are equal.
    return bool(count.groups) and question.is_right(
        next(drafts[agent_id] for agent_id, answer in answers.items() if answer == count.groups[0].answer)
    )


@dataclass(frozen=True, slots=True)
class Flips:
    """Counts of right answers that deliberation turned wrong (spoilt), and of wrong ones turned right (mended)."""

    spoilt: int
    mended: int


def flips(pairs: Iterable[tuple[bool | None, bool]]) -> Flips:
    """Counts flips from pairs (right before, right at the end); None before counts as no flip."""
    known = [(before, after) for before, after in pairs if before is not None]
    spoilt = sum(before and not after for before, after in known)
    return Flips(spoilt=spoilt, mended=sum(after and not before for before, after in known))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion; (0, 1) of nothing. Wilson, JASA 22 (1927)."""
    if not 0 <= hits <= total:
        raise ValueError(f"{hits} of {total} is not a proportion")
    if total == 0:
        return 0.0, 1.0
    rate, weight = hits / total, _Z_95**2 / total
    centre = (rate + weight / 2) / (1 + weight)
    half = _Z_95 * sqrt(rate * (1 - rate) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResult:
    """The grades of one strategy, summed up.

    A failed deliberation counts as wrong; `accuracy` has its 95 % interval. A cost per right answer is None without
    one. `against_majority` are flips against the most frequent first draft, `against_first` against the first agent's,
    the answer of a single call. `answers` counts first drafts and verdicts, `unread` those without the required form.
    """

    strategy: str
    agents: int
    questions: int
    right: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    calls: int
    tokens: int
    calls_per_right: float | None
    tokens_per_right: float | None
    against_majority: Flips
    against_first: Flips
    answers: int
    unread: int
    mean_seconds: float
    degraded: int
    failed: int
    deliberations: Sequence[GradedAnswer]


def summed_up(strategy: str, agents: int, grades: Sequence[GradedAnswer]) -> StrategyResult:
    questions, right = len(grades), sum(graded.right for graded in grades)
    calls, tokens = sum(graded.calls for graded in grades), sum(graded.tokens for graded in grades)
    low, high = wilson(right, questions)
    return StrategyResult(
        strategy=strategy,
        agents=agents,
        questions=questions,
        right=right,
        accuracy=right / questions,
        accuracy_low=low,
        accuracy_high=high,
        calls=calls,
        tokens=tokens,
        calls_per_right=calls / right if right else None,
        tokens_per_right=tokens / right if right else None,
        against_majority=flips((graded.majority_right, graded.right) for graded in grades),
        against_first=flips((graded.first_right, graded.right) for graded in grades),
        answers=sum(graded.answers for graded in grades),
        unread=sum(graded.answers - graded.readable for graded in grades),
        mean_seconds=fmean(graded.seconds for graded in grades),
        degraded=sum(graded.degraded for graded in grades),
        failed=sum(graded.status != "completed" for graded in grades),
        deliberations=grades,
    )


def _mean(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _right(result: StrategyResult) -> str:
    interval = f"[{result.accuracy_low:.3f}, {result.accuracy_high:.3f}] at 95 %"
    return f"{result.right} of {result.questions} = {result.accuracy:.3f}  {interval}"


def _cost(result: StrategyResult) -> str:
    mean = f"{_mean(result.calls / result.questions)} calls and {_mean(result.tokens / result.questions, 0)} tokens"
    per_right = f"{_mean(result.calls_per_right)} calls and {_mean(result.tokens_per_right, 0)} tokens per right answer"
    return f"{mean} a question; {per_right}"


def _flips(counts: Flips) -> str:
    return f"{counts.spoilt} spoilt, {counts.mended} mended"


def _failures(result: StrategyResult) -> str:
    failed = [graded for graded in result.deliberations if graded.status != "completed"]
    reasons = Counter(graded.problem or graded.status for graded in failed).most_common()
    return f"{', '.join(f'{count} {reason}' for reason, count in reasons)}; see `deliberate show {failed[0].id}`"


def result_lines(result: StrategyResult, vote: StrategyResult | None) -> Iterator[Text]:
    members = "1 agent" if result.agents == 1 else f"{result.agents} agents"
    yield Text.assemble((result.strategy, "bold"), f", {members}")
    entries = {
        "right": _right(result),
        "cost": _cost(result),
        "flips": f"against the drafts' majority {_flips(result.against_majority)}; "
        f"against the first draft {_flips(result.against_first)}",
        "unread": f"{result.unread} of {result.answers} answers",
        "time": f"{result.mean_seconds:.1f} s in the mean; {result.degraded} degraded, {result.failed} failed",
    }
    if result.failed:
        entries["failed"] = _failures(result)
    if vote is not None:
        entries[f"vote of {vote.agents}"] = f"{_right(vote)}; {_cost(vote)}"
    for name, text in entries.items():
        yield Text.assemble((f"  {name:<12}", "dim"), text)


def result_document(result: StrategyResult, vote: StrategyResult | None) -> JsonObject:
    """A strategy's result as JSON with each question, and the result of the vote with as many calls, or null."""
    return {**_figures(result), "vote": None if vote is None else _figures(vote)}


def _figures(result: StrategyResult) -> JsonObject:
    names = ("id", "status", "problem", "right", "calls", "tokens")
    deliberations = [{name: getattr(graded, name) for name in names} for graded in result.deliberations]
    return asdict(result) | {"deliberations": deliberations}
