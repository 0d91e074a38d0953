"""Results of strategies as text and as JSON."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from rich.text import Text

from app.cli.client import JsonObject
from app.quality.grading import Flips, StrategyResult


def _mean(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _right(result: StrategyResult) -> str:
    interval = f"[{result.accuracy_low:.3f}, {result.accuracy_high:.3f}] at 95 %"
    return f"{result.right} of {result.questions} = {result.accuracy:.3f}  {interval}"


def _cost(result: StrategyResult) -> str:
    mean = f"{_mean(result.calls / result.questions)} calls and {_mean(result.tokens / result.questions, 0)} tokens"
    per_right = f"{_mean(result.calls_per_right)} calls and {_mean(result.tokens_per_right, 0)} tokens per right answer"
    return f"{mean} a question; {per_right}"


def _flips(found: Flips) -> str:
    return f"{found.spoilt} spoilt, {found.mended} mended"


def _failures(result: StrategyResult) -> str:
    """The number of failed deliberations by reason, and the command that shows the first one."""
    failed = [each for each in result.deliberations if each.status != "completed"]
    reasons = Counter(each.problem or each.status for each in failed).most_common()
    return f"{', '.join(f'{count} {reason}' for reason, count in reasons)}; see `deliberate show {failed[0].id}`"


def result_lines(result: StrategyResult, vote: StrategyResult | None) -> Iterator[Text]:
    """One strategy's result and that of the vote with as many calls."""
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
    """One strategy's result as JSON with each question, and that of the vote with as many calls, or null."""
    return {**_figures(result), "vote": None if vote is None else _figures(vote)}


def _figures(result: StrategyResult) -> JsonObject:
    names = ("id", "status", "problem", "right", "calls", "tokens")
    deliberations = [{name: getattr(each, name) for name in names} for each in result.deliberations]
    return asdict(result) | {"deliberations": deliberations}
