"""Accounts of strategies as text and as JSON."""

from collections.abc import Iterator

from rich.text import Text

from app.cli.client import JsonObject
from app.quality.accounts import Account, Flips


def _rate(value: float) -> str:
    return f"{value:.3f}"


def _mean(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _right(account: Account) -> str:
    low, high = account.interval
    shown = f"{account.right} of {account.questions} = {_rate(account.accuracy)}"
    return f"{shown}  [{_rate(low)}, {_rate(high)}] at 95 %"


def _cost(account: Account) -> str:
    calls, tokens = account.per_right(account.calls), account.per_right(account.tokens)
    asked = (
        f"{_mean(account.calls / account.questions)} calls and {_mean(account.tokens / account.questions, 0)} tokens"
    )
    return f"{asked} a question; {_mean(calls)} calls and {_mean(tokens, 0)} tokens per right answer"


def _flips(found: Flips) -> str:
    return f"{found.spoilt} spoilt, {found.mended} mended"


def account_lines(account: Account, vote: Account | None) -> Iterator[Text]:
    """One strategy's account, and the vote that cost as much."""
    members = "1 agent" if account.agents == 1 else f"{account.agents} agents"
    yield Text.assemble((account.strategy, "bold"), f", {members}")
    entries = {
        "right": _right(account),
        "cost": _cost(account),
        "flips": f"against the drafts' majority {_flips(account.against_majority)}; "
        f"against the first draft {_flips(account.against_first)}",
        "unread": f"{account.unread} of {account.answers} answers",
        "time": f"{account.seconds:.1f} s in the mean; {account.degraded} degraded, {account.failed} failed",
    }
    if vote is not None:
        entries[f"vote of {vote.agents}"] = f"{_right(vote)}; {_cost(vote)}"
    for name, said in entries.items():
        yield Text.assemble((f"  {name:<12}", "dim"), said)


def account_document(account: Account, vote: Account | None) -> JsonObject:
    """One strategy's account as JSON, with the vote that cost as much (null where there is none) and each question."""
    return {**_figures(account), "vote": None if vote is None else _figures(vote)}


def _figures(account: Account) -> JsonObject:
    low, high = account.interval
    return {
        "strategy": account.strategy,
        "agents": account.agents,
        "questions": account.questions,
        "right": account.right,
        "accuracy": account.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "calls": account.calls,
        "tokens": account.tokens,
        "calls_per_right": account.per_right(account.calls),
        "tokens_per_right": account.per_right(account.tokens),
        "against_majority": _flips_document(account.against_majority),
        "against_first": _flips_document(account.against_first),
        "answers": account.answers,
        "unread": account.unread,
        "mean_seconds": account.seconds,
        "degraded": account.degraded,
        "failed": account.failed,
        "deliberations": [
            {"id": each.id, "status": each.status, "right": each.right, "calls": each.calls, "tokens": each.tokens}
            for each in account.marked
        ],
    }


def _flips_document(found: Flips) -> JsonObject:
    return {"spoilt": found.spoilt, "mended": found.mended}
