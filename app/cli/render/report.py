"""The report of a deliberation: its facts, ranking with scores, confidence, cost, and the winning text."""

import re
from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.markdown import Markdown
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from app.api.requests import FILE_ID_PREFIX
from app.api.schemas import Deliberation, Proposal
from app.cli.render.lanes import is_simulated, stage_text
from app.cli.render.lines import cancelled_text, parameter_texts
from app.cli.render.text import (
    counted,
    figure,
    line_of,
    named_rows,
    plain,
    printable,
    role_style,
    seconds,
    status_text,
)
from app.deliberation.actions import members_needed
from app.deliberation.calls import Money
from app.deliberation.citations import Citation
from app.deliberation.conversation import calls_said, turns_of
from app.deliberation.facts import DEGRADED_REASONS, Action, Dissent, Participation, Tally, Verdict
from app.deliberation.fold import TERMINAL
from app.deliberation.specification import ActionTool, Evidence, GitWorkspace, InputRef
from app.deliberation.strategies import STRATEGIES

SIMULATED = "Simulated: the engine is a stand-in without weights; no model wrote this."
TALLY_CHARS_MAX = 60
_UNSCORED = {"skipped": "not asked", "late": "late"}
_LIMITS = {"deadline": "deadline", "calls": "budget of calls", "tokens": "budget of tokens", "cost": "budget of money"}
# The fields of a request that a problem names, as options of `deliberate ask`.
_OPTIONS = {
    "budget.max_tokens": "--budget-tokens",
    "budget.max_calls": "--budget-calls",
    "budget.max_cost": "--budget-cost",
    "sampling.max_tokens": "--max-tokens",
}
_FIELDS = re.compile("|".join(map(re.escape, _OPTIONS)))


def took_text(created_at: datetime, ended_at: datetime | None, before: str = "") -> str:
    """The time from acceptance to the end, after `before`; empty until the end."""
    return "" if ended_at is None else before + seconds(max(0.0, (ended_at - created_at).total_seconds()))


def _limits(deliberation: Deliberation) -> str:
    budget = deliberation.budget
    constraints = deliberation.constraints
    limits = [
        f"{constraints.timeout_seconds} s",
        f"on deadline {constraints.on_deadline}",
        f"quorum {deliberation.quorum}",
    ]
    if constraints.agreement_min is not None:
        limits.append(f"agreement of {constraints.agreement_min:g}")
    limits += [f"on disagreement {constraints.on_disagreement}"] if constraints.on_disagreement != "best" else []
    limits += [f"{budget.max_tokens} tokens"] if budget.max_tokens is not None else []
    limits += [f"{budget.max_calls} calls"] if budget.max_calls is not None else []
    if budget.max_cost is not None:
        limits.append(str(Money(amount=budget.max_cost, currency=budget.prices[0].currency)))
    return ", ".join(limits)


def _input(file: InputRef) -> str:
    pages = "" if file.pages is None else f", {counted(file.pages, 'page')}"
    return f"{file.name}, {file.media_type}, {decimal(file.bytes)}{pages}, {FILE_ID_PREFIX}{file.sha256}"


def _tool(tool: ActionTool) -> str:
    return tool.name if tool.agreement_min is None else f"{tool.name} (agreement of {tool.agreement_min:g})"


def _evidence(evidence: Evidence) -> str:
    about = "; ".join(filter(None, [evidence.file and _input(evidence.file), evidence.source]))
    return f"{evidence.id}: {evidence.title}{f' ({about})' if about else ''}"


def overview(deliberation: Deliberation) -> Iterator[tuple[str, str]]:
    """Each fact beside the answers with its name: the strategy and its settings, the limits and the times."""
    if deliberation.task_file is not None:
        yield "whole task", _input(deliberation.task_file)
    version = f" v{deliberation.verdict.strategy.version}" if deliberation.verdict is not None else ""
    yield "strategy", f"{deliberation.strategy}{version}"
    if parameters := parameter_texts(deliberation.parameters):
        yield "parameters", ", ".join(parameters)
    definition = STRATEGIES.get(deliberation.strategy)
    if definition is None or definition.rounds:
        yield "rounds", str(deliberation.rounds)
    yield (
        "council",
        ", ".join(
            f"{agent.agent_id} ({agent.role}{f', {agent.model}' if agent.model else ''})"
            for agent in deliberation.agents
        ),
    )
    yield "seed", str(deliberation.seed)
    yield "limits", _limits(deliberation)
    for requirement in deliberation.constraints.requirements:
        yield "requirement", requirement
    yield (
        "rubric",
        "; ".join(
            f"{criterion.id} ({criterion.weight:g}): {criterion.description}"
            for criterion in deliberation.constraints.rubric
        ),
    )
    if deliberation.constraints.actions is not None:
        yield "actions", ", ".join(map(_tool, deliberation.constraints.actions.tools))
    for key, value in {**deliberation.constraints.metadata, **deliberation.metadata}.items():
        yield "metadata", f"{key} = {value}"
    for evidence in deliberation.evidence:
        yield "evidence", _evidence(evidence)
    if isinstance(deliberation.workspace, GitWorkspace):
        yield (
            "workspace",
            f"{deliberation.workspace.git} at {deliberation.workspace.ref} ({deliberation.workspace.commit[:12]})",
        )
    elif deliberation.workspace is not None:
        yield "workspace", ", ".join(f"{file.path} ({file.bytes} bytes)" for file in deliberation.workspace.files)
    if deliberation.context is not None:
        about = deliberation.context.detail or (
            f"version {deliberation.context.version}" if deliberation.context.version else ""
        )
        yield "context", f"{deliberation.context.status}{f': {about}' if about else ''}"
    if deliberation.webhook is not None:
        yield "webhook", deliberation.webhook.url
    took = took_text(deliberation.created_at, deliberation.ended_at, ", took ")
    yield "created", f"{deliberation.created_at:%Y-%m-%d %H:%M:%S} UTC{took}"


def asked(deliberation: Deliberation) -> Iterator[tuple[str, str]]:
    """The task; of a conversation each message, with who says it and the calls of tools in it."""
    turns = turns_of(deliberation.task, deliberation.turns)
    if len(turns) == 1:
        yield "task", deliberation.task
        return
    for role, name, text in turns:
        said, calls = calls_said(text) if role == "assistant" else (text, [])
        lines = [said] if said else []
        lines += [f"{call.name}({call.arguments})" for call in calls]
        yield role, "\n".join(lines) if name is None else f"{name}: {text}"


def overview_table(deliberation: Deliberation) -> Table:
    return named_rows((name, plain(text)) for name, text in (*asked(deliberation), *overview(deliberation)))


def _scored(proposal: Proposal) -> RenderableType:
    if proposal.score is None and proposal.error is not None:
        return Text(printable(proposal.error.code), "red")
    if proposal.score is None and proposal.status in _UNSCORED:
        return Text(_UNSCORED[proposal.status], "dim")
    return figure(proposal.score, ".3f")


def ranking_table(deliberation: Deliberation) -> Table:
    proposals = deliberation.proposals
    criteria = list(dict.fromkeys(mark.id for proposal in proposals for mark in proposal.criteria))
    models = len({proposal.model for proposal in proposals if proposal.model}) > 1
    ranked = any(proposal.rank is not None for proposal in proposals)
    table = Table(title="Ranking" if ranked else "Council", title_justify="left", title_style="bold")
    # As narrow as its numbers, so that three criteria and the longest role fit 80 columns.
    table.add_column("#", justify="right")
    table.add_column("agent", no_wrap=True)
    for column in ("score", *criteria, "tokens"):
        table.add_column(plain(column), justify="right")
    if models:
        table.add_column("model", style="dim")
    winner = deliberation.verdict.winner if deliberation.verdict else None
    for proposal in proposals:
        wins = proposal.agent_id == winner
        marks = {mark.id: mark.score for mark in proposal.criteria}
        table.add_row(
            figure(proposal.rank, "d"),
            Text(proposal.agent_id, role_style(proposal.role)).append(" ★" if wins else ""),
            _scored(proposal),
            *(figure(marks.get(criterion), ".1f") for criterion in criteria),
            f"{proposal.usage.tokens:,}",
            *([plain(proposal.model)] if models else []),
            style="bold" if wins else "",
        )
    return table


def votes_text(votes: Tally) -> str:
    """The count of an answer's votes; after a debate the counts of final and of first answers."""
    if votes.final is None:
        return str(votes.votes)
    kinds = {"final": votes.final, "first": votes.votes - votes.final}
    return " + ".join(f"{count} {kind}" for kind, count in kinds.items() if count)


def tally_table(verdict: Verdict) -> Table:
    table = Table(title="Votes", title_justify="left", title_style="bold", expand=True)
    table.add_column("votes", justify="right", no_wrap=True)
    table.add_column("answer", ratio=3, no_wrap=True, overflow="ellipsis")
    table.add_column("agents", ratio=2)
    for place, votes in enumerate(verdict.tally):
        style = "bold" if place == 0 and not verdict.tie else ""
        answer = Text(line_of(votes.answer, TALLY_CHARS_MAX))
        table.add_row(votes_text(votes), answer, ", ".join(votes.agents), style=style)
    return table


def confidence(verdict: Verdict) -> str:
    facts: list[str] = []
    if verdict.margin is not None:
        facts.append(f"margin {verdict.margin:.3f}")
    if verdict.tie:
        facts.append("a tie, broken by rule")
    # Judges of actions agree in their ballots, though equal actions are counted too.
    votes = [tallied.votes for tallied in verdict.tally]
    if verdict.agreement is not None and votes and verdict.agreement == votes[0] / sum(votes):
        facts.append(f"{verdict.agreement * 100:.0f} % of the votes agree")
    elif verdict.agreement is not None:
        facts.append(f"agreement {verdict.agreement:+.2f} (Kendall τ)")
    if verdict.effective_votes is not None:
        facts.append(f"ballots count as {verdict.effective_votes:.1f} independent")
    return " · ".join(facts)


def stands_in(verdict: Verdict) -> bool:
    """Whether a reply that states the dissent stands in place of the answer."""
    return verdict.agreed is False and verdict.content is not None and verdict.call_id is None


def agreement_text(deliberation: Deliberation) -> str:
    """Whether as many members as demanded give the verdict's answer; empty where none is demanded."""
    verdict, size = deliberation.verdict, len(deliberation.agents)
    if verdict is None or verdict.agreed is None:
        return ""
    actions = (proposal.action for proposal in deliberation.proposals if proposal.agent_id == verdict.winner)
    action = next(actions, None)
    needed = members_needed(deliberation.constraints, size, None if action is None else action.model_dump_json())
    equal = next((votes for votes in verdict.tally if verdict.winner in votes.agents), None)
    agree = 0 if equal is None else equal.votes if equal.final is None else equal.final
    reached = "was reached" if verdict.agreed else "was not reached"
    give = f"{agree} of {counted(size, 'member')} {'gives' if agree == 1 else 'give'}"
    which, instead = ("the leading", ", so this reply stands in its place") if stands_in(verdict) else ("this", "")
    return f"The demanded agreement {reached}: {give} {which} answer, and {needed} must{instead}."


def dissent(against: Dissent) -> str:
    preferred = "its own answer" if against.preferred == against.agent_id else against.preferred
    return f"{against.agent_id} preferred {preferred}"


def cited(citation: Citation) -> str:
    """Evidence and pages, and what is wrong where they were not given."""
    numbers = ", ".join(map(str, citation.pages))
    pages = f"{'p.' if len(citation.pages) == 1 else 'pp.'} {numbers}" if numbers else ""
    match citation.fault:
        case "unknown_evidence":
            return f"{citation.evidence}, which was not given"
        case "unknown_page":
            return f"{citation.evidence} {pages}, which it does not have"
        case None:
            return f"{citation.evidence} {pages}".rstrip()


def cost_text(deliberation: Deliberation) -> Text:
    """Status, time and calls; tokens; cost where it is known; models: a line each, which fits 80 columns."""
    usage = deliberation.usage
    line = Text.assemble(status_text(deliberation.status), (f" {deliberation.id}", "dim"))
    line.append(took_text(deliberation.created_at, deliberation.ended_at, " in "))
    line.append(f" · {counted(usage.calls, 'engine call')}")
    prompt = f"{usage.prompt_tokens:,} prompt ({usage.cached_tokens:,} of them cached)"
    line.append(f"\n{usage.tokens:,} tokens: {prompt}, {usage.completion_tokens:,} completion", "dim")
    line.append(f"\ncost {usage.cost}" if usage.cost else "", "dim")
    models = dict.fromkeys(proposal.model for proposal in deliberation.proposals if proposal.model)
    line.append(f"\nby {printable(', '.join(models))}" if models else "", "dim")
    return line


def _winning_text(deliberation: Deliberation, verdict: Verdict) -> Iterator[RenderableType]:
    """The verdict's text; without one, every agent's."""
    # A program's line breaks matter; an answer is Markdown.
    programs = any(proposal.checks for proposal in deliberation.proposals)

    def panel(content: str, title: str, style: str, *, is_markdown: bool) -> Panel:
        text = printable(content)
        if programs:
            source = Syntax(text, "python", word_wrap=True, background_color="default")
        else:
            source = Markdown(text, hyperlinks=False) if is_markdown else Text(text)
        return Panel(source, title=plain(title), title_align="left", border_style=style)

    if verdict.content is not None:
        instead = stands_in(verdict)
        style, is_markdown = "yellow" if instead else "green", not instead and not _calls(verdict.action)
        yield panel(verdict.content, _title(verdict), style, is_markdown=is_markdown)
        return
    for proposal in deliberation.proposals:
        if proposal.content is not None:
            title, style = f"{proposal.agent_id} {proposal.role}", role_style(proposal.role)
            yield panel(proposal.content, title, style, is_markdown=not _calls(proposal.action))


def _calls(action: Action | None) -> bool:
    return action is not None and bool(action.calls)


def _title(verdict: Verdict) -> str:
    if stands_in(verdict):
        return "In place of an answer"
    # A fused text has no author, so the title names the call that wrote it.
    author = verdict.winner or (f"call {verdict.call_id}" if verdict.call_id else "")
    by = f", {'by' if verdict.winner else 'from'} {author}" if author else ""
    return f"The council's answer{by}"


def degraded_text(reason: str) -> str:
    meaning = DEGRADED_REASONS.get(reason)
    return printable(reason if meaning is None else f"{reason}: {meaning}")


def _participation(participation: Participation) -> Iterator[Text]:
    """A line if it was no council, and one for each member that stalled, with the stages."""
    if not participation.took_place and participation.members > 1:
        yield Text.assemble(
            ("no council ", "yellow"),
            f"{participation.counted} of {participation.members} members have an answer that counts",
        )
    for stall in participation.stalled:
        count = counted(stall.calls, "call")
        why = printable(stall.code or "no outcome before its end")
        where = stage_text(stall.purpose, stall.round)
        yield Text.assemble(("stalled ", "yellow"), f"{stall.agent_id} in {where}: {count}, {why}")


def deliberation_report(deliberation: Deliberation) -> Group:
    parts: list[RenderableType] = []
    verdict, degraded, problem = deliberation.verdict, deliberation.degraded, deliberation.problem
    if deliberation.proposals:
        parts.append(ranking_table(deliberation))
    if verdict is not None:
        parts += [tally_table(verdict)] if verdict.tally else []
        parts += filter(None, [Text(confidence(verdict)), Text(agreement_text(deliberation))])
        parts += [Text.assemble(("dissent ", "yellow"), dissent(objection)) for objection in verdict.dissent]
        parts += [Text.assemble(("cites ", "yellow" if it.fault else "dim"), cited(it)) for it in verdict.citations]
    if degraded is not None:
        parts += [Text.assemble(("degraded ", "yellow"), degraded_text(reason)) for reason in degraded.reasons]
        parts += [
            Text.assemble(("cut ", "yellow"), f"{stage_text(stage.purpose, stage.round)}, by the {_LIMITS[stage.by]}")
            for stage in degraded.cut
        ]
    if deliberation.participation is not None:
        parts += _participation(deliberation.participation)
    if (cancelled := deliberation.cancellation) is not None:
        told = printable(cancelled_text(cancelled.by, cancelled.reason))
        parts.append(Text.assemble((f"{deliberation.status} ", "yellow"), told))
    if problem is not None:
        detail = _FIELDS.sub(lambda field: _OPTIONS[field[0]], printable(problem.detail))
        parts.append(Text.assemble((f"{printable(problem.code)}: ", "red"), detail))
    if verdict is not None:
        parts += _winning_text(deliberation, verdict)
    if deliberation.status not in TERMINAL and (at := deliberation.progress) is not None:
        parts.append(Text(f"stage {at.stage}: {at.purpose}, {at.calls_finished} of {at.calls_total} calls answered"))
    parts.append(cost_text(deliberation))
    if any(is_simulated(proposal.model) for proposal in deliberation.proposals):
        parts.append(Text(SIMULATED, "yellow"))
    return Group(*parts)
