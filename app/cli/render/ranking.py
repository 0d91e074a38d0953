"""The report of a deliberation: ranking with scores, confidence, cost, and the winning text."""

import re
from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from app.api.schemas import Deliberation, Proposal
from app.cli.render.lanes import is_simulated
from app.cli.render.panels import seconds, stage_text, style_of
from app.cli.render.prose import counted, printable
from app.deliberation.facts import DEGRADED_REASONS, Dissent, Tally, Verdict
from app.deliberation.fold import TERMINAL

_STATUS_STYLES = {
    "completed": "green",
    "failed": "red",
    "timeout": "red",
    "cancelled": "yellow",
    "cancelling": "yellow",
}
TALLY_CHARS_MAX = 60
_UNSCORED = {"skipped": "not asked", "late": "late"}
_LIMITS = {"deadline": "deadline", "calls": "budget of calls", "tokens": "budget of tokens", "cost": "budget of money"}


def plain(text: str | None) -> Text:
    """Untrusted text for display, without the effect of markup and control characters."""
    return Text(printable(text or ""))


def line_of(text: str, chars_max: int) -> str:
    """Untrusted text on one line, cut to at most `chars_max` characters and free of control characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def brief(text: str, chars_max: int) -> Text:
    """`line_of` for display."""
    return Text(line_of(text, chars_max))


def age_text(then: datetime, now: datetime) -> str:
    """The time that has passed, in its largest whole unit."""
    passed_s = max(0.0, (now - then).total_seconds())
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{int(passed_s // unit_s)} {unit}"
    return f"{int(passed_s)} s"


def status_text(status: str) -> Text:
    """A status in its colour."""
    return Text(printable(status), _STATUS_STYLES.get(status, "cyan"))


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def duration_s(created_at: datetime, ended_at: datetime | None) -> float | None:
    """Seconds from acceptance to the end; None before it."""
    return None if ended_at is None else max(0.0, (ended_at - created_at).total_seconds())


def _scored(proposal: Proposal) -> RenderableType:
    """The score, or the reason without one: the failure, or that the agent was not asked or late."""
    if proposal.score is None and proposal.error is not None:
        return Text(printable(proposal.error.code), "red")
    if proposal.score is None and proposal.status in _UNSCORED:
        return Text(_UNSCORED[proposal.status], "dim")
    return _figure(proposal.score, 3)


def _row(proposal: Proposal, criteria: list[str], *, wins: bool, models: bool) -> list[RenderableType]:
    marks = {mark.id: mark.score for mark in proposal.criteria}
    return [
        "–" if proposal.rank is None else str(proposal.rank),
        Text(proposal.agent_id, style_of(proposal.role)).append(" ★" if wins else ""),
        _scored(proposal),
        *(_figure(marks.get(criterion), 1) for criterion in criteria),
        f"{proposal.usage.tokens:,}",
        *([plain(proposal.model)] if models else []),
    ]


def ranking_table(deliberation: Deliberation) -> Table:
    """One row per agent in rank order with its score and its mean on each criterion, out of ten.

    Models have a column if they differ; an agent's id begins with its role.
    """
    proposals = deliberation.proposals
    criteria = list(dict.fromkeys(mark.id for proposal in proposals for mark in proposal.criteria))
    models = len({proposal.model for proposal in proposals if proposal.model}) > 1
    ranked = any(proposal.rank is not None for proposal in proposals)
    table = Table(title="Ranking" if ranked else "Council", title_justify="left", title_style="bold")
    # As narrow as its numbers, so that three criteria and the longest role fit 80 columns.
    table.add_column("#", justify="right")
    table.add_column("agent", no_wrap=True)
    table.add_column("score", justify="right")
    for criterion in criteria:
        table.add_column(plain(criterion), justify="right")
    table.add_column("tokens", justify="right")
    if models:
        table.add_column("model", style="dim")
    winner = deliberation.verdict.winner if deliberation.verdict else None
    for proposal in proposals:
        wins = proposal.agent_id == winner
        row = _row(proposal, criteria, wins=wins, models=models)
        table.add_row(*row, style="bold" if wins else "")
    return table


def tally_table(verdict: Verdict) -> Table:
    """Counted votes: one row per answer with its agents, most votes first."""
    table = Table(title="Votes", title_justify="left", title_style="bold", expand=True)
    table.add_column("votes", justify="right", no_wrap=True)
    table.add_column("answer", ratio=3, no_wrap=True, overflow="ellipsis")
    table.add_column("agents", ratio=2)
    for place, votes in enumerate(verdict.tally):
        style = "bold" if place == 0 and not verdict.tie else ""
        answer = brief(votes.answer, TALLY_CHARS_MAX)
        table.add_row(votes_text(votes), answer, ", ".join(votes.agents), style=style)
    return table


def votes_text(votes: Tally) -> str:
    """How many votes an answer has; after a debate also how many of them are final and first answers."""
    if votes.final is None:
        return str(votes.votes)
    kinds = {"final": votes.final, "first": votes.votes - votes.final}
    return " + ".join(f"{count} {kind}" for kind, count in kinds.items() if count)


SIMULATED = "Simulated: the engine is a stand-in without weights; no model wrote this."


def _agreement(verdict: Verdict) -> str:
    if verdict.agreement is None:
        return ""
    if verdict.tally:
        return f"{verdict.agreement * 100:.0f} % of the votes agree"
    return f"agreement {verdict.agreement:+.2f} (Kendall τ)"


def confidence(verdict: Verdict) -> str:
    """How sure the verdict is: its margin, agreement and worth, as far as it has them."""
    facts = [
        f"margin {verdict.margin:.3f}" if verdict.margin is not None else "",
        "a tie, broken by rule" if verdict.tie else "",
        _agreement(verdict),
        f"worth {verdict.effective_votes:.1f} independent ballots" if verdict.effective_votes is not None else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def dissent(against: Dissent) -> str:
    """Whom a reviewer preferred to the winner."""
    preferred = "its own answer" if against.preferred == against.agent_id else against.preferred
    return f"{against.agent_id} preferred {preferred}"


def _confidence(verdict: Verdict) -> Iterator[Text]:
    if facts := confidence(verdict):
        yield Text(facts)
    for against in verdict.dissent:
        yield Text.assemble(("dissent ", "yellow"), dissent(against))


def cost_text(deliberation: Deliberation) -> Text:
    """Status, time and calls; tokens; cost where it is known; models: a line each, which fits 80 columns."""
    usage = deliberation.usage
    line = Text.assemble(status_text(deliberation.status), (f" {deliberation.id}", "dim"))
    took_s = duration_s(deliberation.created_at, deliberation.ended_at)
    line.append("" if took_s is None else f" in {seconds(took_s)}")
    line.append(f" · {counted(usage.calls, 'engine call')}")
    prompt = f"{usage.prompt_tokens:,} prompt ({usage.cached_tokens:,} of them cached)"
    line.append(f"\n{usage.tokens:,} tokens: {prompt}, {usage.completion_tokens:,} completion", "dim")
    line.append(f"\ncost {usage.cost}" if usage.cost else "", "dim")
    models = dict.fromkeys(proposal.model for proposal in deliberation.proposals if proposal.model)
    line.append(f"\nby {printable(', '.join(models))}" if models else "", "dim")
    return line


def _content(deliberation: Deliberation, content: str) -> RenderableType:
    """An answer as Markdown; a program as source, because its line breaks matter."""
    if any(proposal.checks for proposal in deliberation.proposals):
        return Syntax(printable(content), "python", word_wrap=True, background_color="default")
    return Markdown(printable(content))


def _winning_text(deliberation: Deliberation) -> Iterator[RenderableType]:
    verdict = deliberation.verdict
    if verdict is None:
        return
    if verdict.content is not None:
        # A fused text has no author, so the title names the call that wrote it.
        written = f", by {verdict.winner}" if verdict.winner else f", from call {verdict.call_id}"
        title = f"The council's answer{written if verdict.winner or verdict.call_id else ''}"
        text = _content(deliberation, verdict.content)
        yield Panel(text, title=plain(title), title_align="left", border_style="green")
        return
    for proposal in deliberation.proposals:
        if proposal.content is not None:
            title, border = plain(f"{proposal.agent_id} {proposal.role}"), style_of(proposal.role)
            text = _content(deliberation, proposal.content)
            yield Panel(text, title=title, title_align="left", border_style=border)


def _cut(deliberation: Deliberation) -> Iterator[Text]:
    """One line for each stage that time or the budget cut."""
    for stage in deliberation.degraded.cut if deliberation.degraded else ():
        yield Text.assemble(("cut ", "yellow"), f"{stage_text(stage.purpose, stage.round)}, by the {_LIMITS[stage.by]}")


# The fields of a request that a problem names, as options of `deliberate ask`.
_OPTIONS = {
    "budget.max_tokens": "--budget-tokens",
    "budget.max_calls": "--budget-calls",
    "budget.max_cost": "--budget-cost",
    "sampling.max_tokens": "--max-tokens",
}
_FIELDS = re.compile("|".join(map(re.escape, _OPTIONS)))


def degraded_text(reason: str) -> str:
    """A reason of `degraded`, with the meaning of one that is a word."""
    meaning = DEGRADED_REASONS.get(reason)
    return printable(reason if meaning is None else f"{reason}: {meaning}")


def deliberation_report(deliberation: Deliberation) -> Group:
    """The full report of a deliberation, ended or not."""
    parts: list[RenderableType] = []
    if deliberation.proposals:
        parts.append(ranking_table(deliberation))
    if deliberation.verdict is not None:
        parts += [tally_table(deliberation.verdict)] if deliberation.verdict.tally else []
        parts += _confidence(deliberation.verdict)
    reasons = deliberation.degraded.reasons if deliberation.degraded else ()
    parts += [Text.assemble(("degraded ", "yellow"), degraded_text(reason)) for reason in reasons]
    parts += _cut(deliberation)
    if deliberation.problem is not None:
        problem = deliberation.problem
        detail = _FIELDS.sub(lambda field: _OPTIONS[field[0]], printable(problem.detail))
        parts.append(Text.assemble((f"{printable(problem.code)}: ", "red"), detail))
    parts += _winning_text(deliberation)
    if deliberation.status not in TERMINAL and (at := deliberation.progress) is not None:
        parts.append(Text(f"stage {at.stage}: {at.purpose}, {at.calls_finished} of {at.calls_total} calls answered"))
    parts.append(cost_text(deliberation))
    if any(is_simulated(proposal.model) for proposal in deliberation.proposals):
        parts.append(Text(SIMULATED, "yellow"))
    return Group(*parts)
