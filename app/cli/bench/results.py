"""Results of strategies as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict

from rich.text import Text

from app.cli.client import JsonObject
from app.quality.grading import Flips, StrategyResult


def _rate(value: float) -> str:
    return f"{value:.3f}"


def _mean(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _right(result: StrategyResult) -> str:
    low, high = result.interval
    shown = f"{result.right} of {result.questions} = {_rate(result.accuracy)}"
    return f"{shown}  [{_rate(low)}, {_rate(high)}] at 95 %"


def _cost(result: StrategyResult) -> str:
    calls, tokens = result.per_right(result.calls), result.per_right(result.tokens)
    mean = f"{_mean(result.calls / result.questions)} calls and {_mean(result.tokens / result.questions, 0)} tokens"
    return f"{mean} a question; {_mean(calls)} calls and {_mean(tokens, 0)} tokens per right answer"


def _flips(found: Flips) -> str:
    return f"{found.spoilt} spoilt, {found.mended} mended"


def result_lines(result: StrategyResult, vote: StrategyResult | None) -> Iterator[Text]:
    """One strategy's result and that of the vote with as many calls."""
    members = "1 agent" if result.agents == 1 else f"{result.agents} agents"
    yield Text.assemble((result.strategy, "bold"), f", {members}")
    entries = {
        "right": _right(result),
        "cost": _cost(result),
        "flips": f"against the drafts' majority {_flips(result.against_majority)}; "
        f"against the first draft {_flips(result.against_first)}",
        "unread": f"{result.unreadable} of {result.answers} answers",
        "time": f"{result.seconds:.1f} s in the mean; {result.degraded} degraded, {result.failed} failed",
    }
    if vote is not None:
        entries[f"vote of {vote.agents}"] = f"{_right(vote)}; {_cost(vote)}"
    for name, text in entries.items():
        yield Text.assemble((f"  {name:<12}", "dim"), text)


def result_document(result: StrategyResult, vote: StrategyResult | None) -> JsonObject:
    """One strategy's result as JSON with each question, and that of the vote with as many calls, or null."""
    return {**_figures(result), "vote": None if vote is None else _figures(vote)}


def _figures(result: StrategyResult) -> JsonObject:
    low, high = result.interval
    return {
        "strategy": result.strategy,
        "agents": result.agents,
        "questions": result.questions,
        "right": result.right,
        "accuracy": result.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "calls": result.calls,
        "tokens": result.tokens,
        "calls_per_right": result.per_right(result.calls),
        "tokens_per_right": result.per_right(result.tokens),
        "against_majority": asdict(result.against_majority),
        "against_first": asdict(result.against_first),
        "answers": result.answers,
        "unread": result.unreadable,
        "mean_seconds": result.seconds,
        "degraded": result.degraded,
        "failed": result.failed,
        "deliberations": [
            {"id": each.id, "status": each.status, "right": each.right, "calls": each.calls, "tokens": each.tokens}
            for each in result.grades
        ],
    }
