"""What was asked: the facts of a deliberation beside its answers, as pairs of a name and a text."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from app.api.schemas import Deliberation
from app.cli.render.lines import parameter_texts
from app.cli.render.panels import seconds
from app.cli.render.prose import printable
from app.cli.render.ranking import duration_s
from app.deliberation.calls import Money
from app.deliberation.strategies import STRATEGIES


def _council(found: Deliberation) -> str:
    members = (f"{agent.agent_id} ({agent.role}{f', {agent.model}' if agent.model else ''})" for agent in found.agents)
    return ", ".join(members)


def _limits(found: Deliberation) -> str:
    budget = found.budget
    constraints = found.constraints
    limits = [f"{constraints.timeout_seconds} s", f"on deadline {constraints.on_deadline}", f"quorum {found.quorum}"]
    limits += [f"{budget.max_tokens} tokens"] if budget.max_tokens is not None else []
    limits += [f"{budget.max_calls} calls"] if budget.max_calls is not None else []
    if budget.max_cost is not None:
        limits.append(str(Money(amount=budget.max_cost, currency=budget.prices[0].currency)))
    return ", ".join(limits)


def _times(found: Deliberation) -> str:
    took_s = duration_s(found.created_at, found.ended_at)
    return f"{found.created_at:%Y-%m-%d %H:%M:%S} UTC" + ("" if took_s is None else f", took {seconds(took_s)}")


def overview(found: Deliberation) -> Iterator[tuple[str, str]]:
    """Each fact with a name: the strategy and all that determines it, the limits and the times."""
    version = f" v{found.verdict.strategy.version}" if found.verdict is not None else ""
    yield "strategy", f"{found.strategy}{version}"
    if parameters := parameter_texts(found.parameters):
        yield "parameters", ", ".join(parameters)
    definition = STRATEGIES.get(found.strategy)
    if definition is None or definition.rounds:
        yield "rounds", str(found.rounds)
    yield "council", _council(found)
    yield "seed", str(found.seed)
    yield "limits", _limits(found)
    for requirement in found.constraints.requirements:
        yield "requirement", requirement
    yield "rubric", "; ".join(f"{each.id} ({each.weight:g}): {each.description}" for each in found.constraints.rubric)
    for key, value in {**found.constraints.metadata, **found.metadata}.items():
        yield "metadata", f"{key} = {value}"
    for each in found.evidence:
        yield "evidence", f"{each.id}: {each.title}{f' ({each.source})' if each.source else ''}"
    if found.context is not None:
        about = found.context.detail or (f"version {found.context.version}" if found.context.version else "")
        yield "context", f"{found.context.status}{f': {about}' if about else ''}"
    if found.webhook is not None:
        yield "webhook", found.webhook.url
    yield "created", _times(found)


def overview_table(found: Deliberation) -> Table:
    """The task and the facts, a row each."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (("task", found.task), *overview(found)):
        table.add_row(name, Text(printable(text)))
    return table
