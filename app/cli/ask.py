"""`deliberate ask`: submit a task, and wait for what the council makes of it."""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.console import Console
from rich.text import Text

from app.api.schemas import Deliberation
from app.cli.client import GatewayClient, GatewayRefused, JsonObject, understood
from app.cli.exits import Exit, exit_of, print_json, run
from app.cli.options import DEFAULT_URL, ApiKeyOption, JsonOption, UrlOption, nested_values, pairs
from app.cli.render.ranking import account
from app.cli.watch import print_events, until_ended, watch_deliberation


@dataclass(frozen=True, slots=True)
class AskedTask:
    """What a user asked for; None and empty leave the choice to the gateway."""

    task: str
    role: str | None = None
    agents: int | None = None
    council: str | None = None
    strategy: str | None = None
    parameters: list[str] = field(default_factory=list[str])
    rounds: int | None = None
    rubric: str | None = None
    requirements: list[str] = field(default_factory=list[str])
    timeout_s: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    quorum: int | None = None
    budget_tokens: int | None = None
    budget_calls: int | None = None
    metadata: list[str] = field(default_factory=list[str])
    webhook: str | None = None


def parse_council(text: str) -> list[JsonObject]:
    """`DEV:2,QA` as the `agents` of a request; raises typer.BadParameter when it does not parse."""
    agents: list[JsonObject] = []
    for entry in text.split(","):
        role, _, count = entry.strip().partition(":")
        if not role or (count and not count.isdecimal()):
            raise typer.BadParameter(f"--council takes ROLE:COUNT,ROLE:COUNT, not {text!r}")
        agents.append({"role": role, "count": int(count or 1)})
    return agents


def parse_rubric(text: str) -> str | list[Any]:
    """A rubric as given, or the JSON list that begins with `[`; `@path` names a file with either."""
    if text.startswith("@"):
        text = _file_text(text[1:], "--rubric")
    if not text.lstrip().startswith("["):
        return text
    try:
        return json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"--rubric looks like a JSON list, but is none: {exc}") from exc


def _file_text(path: str, option: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise typer.BadParameter(f"{option}: {path} cannot be read: {exc}") from exc


def task_text(task: str | None, file: str | None) -> str:
    """The task from the argument, a file, or stdin (`-`); raises typer.BadParameter unless exactly one is given."""
    if (task is None) == (file is None):
        raise typer.BadParameter("give the task either as TASK or by --file")
    if task is not None:
        return task
    return sys.stdin.read() if file == "-" else _file_text(file or "", "--file")


def _given(**fields: Any) -> JsonObject:  # noqa: ANN401 -- the fields of a JSON object
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def request_body(question: AskedTask) -> JsonObject:
    """The body of POST /deliberations: only what was asked for, so that every default is the gateway's."""
    if question.council is not None and (question.role is not None or question.agents is not None):
        raise typer.BadParameter("--council names the whole council: leave --role and --agents out")
    return _given(
        task=question.task,
        role=question.role,
        num_agents=question.agents,
        agents=None if question.council is None else parse_council(question.council),
        strategy=question.strategy,
        parameters=nested_values(question.parameters, "--parameter"),
        rounds=question.rounds,
        constraints=_given(
            rubric=None if question.rubric is None else parse_rubric(question.rubric),
            requirements=question.requirements,
            timeout_seconds=question.timeout_s,
        ),
        quorum=question.quorum,
        budget=_given(max_tokens=question.budget_tokens, max_calls=question.budget_calls),
        sampling=_given(temperature=question.temperature, max_tokens=question.max_tokens),
        seed=question.seed,
        metadata=pairs(question.metadata, "--meta"),
        webhook=_given(url=question.webhook),
    )


@dataclass(frozen=True, slots=True)
class _Manner:
    """How the command goes on after the submission."""

    url: str
    api_key: str | None
    idempotency_key: str | None
    detach: bool
    watch: bool
    as_json: bool


def goes_on(deliberation_id: str, url: str) -> Text:
    """How to come back to a deliberation that runs on."""
    at = "" if url == DEFAULT_URL else f" --url {url}"
    return Text(
        f"{deliberation_id} goes on:\n"
        f"  deliberate watch {deliberation_id}{at}\n  deliberate cancel {deliberation_id}{at}",
        "dim",
    )


async def _ask(body: JsonObject, manner: _Manner) -> Exit:
    console = Console(highlight=False)
    async with GatewayClient(manner.url, manner.api_key) as gateway:
        resource = await _submitted(gateway, body, manner)
        deliberation_id = str(resource["id"])
        if manner.detach:
            if manner.as_json:
                print_json(resource)
            else:
                console.print(Text(deliberation_id))
            return Exit.SUCCESS
        try:
            resource = await _followed(gateway, deliberation_id, console, manner)
        except asyncio.CancelledError:
            Console(stderr=True, highlight=False).print(goes_on(deliberation_id, manner.url))
            raise
        return exit_of(understood(Deliberation, resource).status)


async def _submitted(gateway: GatewayClient, body: JsonObject, manner: _Manner) -> JsonObject:
    try:
        return await gateway.submit(body, manner.idempotency_key or uuid4().hex)
    except GatewayRefused as error:
        if any(fault.field.startswith("/parameters") for fault in error.fields):
            error.remedy = f"`deliberate strategies {body.get('strategy', 'council')}` lists what it takes"
        elif any(fault.field == "/strategy" for fault in error.fields):
            error.remedy = "`deliberate strategies` tells what each does"
        raise


async def _followed(gateway: GatewayClient, deliberation_id: str, console: Console, manner: _Manner) -> JsonObject:
    if manner.watch and not manner.as_json:
        return await watch_deliberation(gateway, deliberation_id, console)
    if manner.watch:
        await print_events(gateway, deliberation_id)
        return await gateway.deliberation(deliberation_id)
    await until_ended(gateway, deliberation_id)
    resource = await gateway.deliberation(deliberation_id)
    if manner.as_json:
        print_json(resource)
    else:
        console.print(account(understood(Deliberation, resource)))
    return resource


CouncilOption = Annotated[
    str | None, typer.Option(metavar="DEV:2,QA:1", help="A mixed council, instead of --role and --agents.")
]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="The strategy's own, JSON or text; a.b=1 nests; may be repeated."),
]


# Long by its options alone: typer reads them off the signature.
def ask(
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="What to deliberate about.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
    file: Annotated[str | None, typer.Option(metavar="PATH", help="Read the task from a file; - is stdin.")] = None,
    role: Annotated[str | None, typer.Option(help="Role of every agent. (default: DEV)")] = None,
    agents: Annotated[int | None, typer.Option(metavar="N", help="Number of agents. (default: 3)")] = None,
    council: CouncilOption = None,
    strategy: Annotated[str | None, typer.Option(help="See `deliberate strategies`. (default: council)")] = None,
    parameter: ParameterOption = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of critique and revision. (default: 1)")] = None,
    rubric: Annotated[
        str | None, typer.Option(help="What is scored: a text, a JSON list of criteria, or @file with either.")
    ] = None,
    requirement: Annotated[list[str] | None, typer.Option(help="What an answer must satisfy; may be repeated.")] = None,
    timeout: Annotated[int | None, typer.Option(metavar="SECONDS", help="Deadline. (default: 300)")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed and answers, same transcript.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Bound of one completion. (default: 2048)")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the first agent. (default: 0.7)")] = None,
    quorum: Annotated[int | None, typer.Option(help="Answers that a stage needs.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="Ceiling on tokens, over all calls.")] = None,
    budget_calls: Annotated[int | None, typer.Option(help="Ceiling on calls.")] = None,
    meta: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Metadata; may be repeated.")] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Told of the end, signed.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "--no-wait", help="Print the id once it is accepted, and leave.")
    ] = False,
    watch: Annotated[
        bool | None, typer.Option(help="Show it while it runs. (default: in a terminal)", show_default=False)
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Asked again with the same key, it is the same deliberation.")
    ] = None,
) -> None:
    """Submit a task and wait for the verdict.

    In a terminal the council is shown live; elsewhere only the verdict is printed. With --json: the resource at the
    end; with --watch besides: every event as it comes.
    """
    question = AskedTask(
        task=task_text(task, file),
        role=role,
        agents=agents,
        council=council,
        strategy=strategy,
        parameters=parameter or [],
        rounds=rounds,
        rubric=rubric,
        requirements=requirement or [],
        timeout_s=timeout,
        seed=seed,
        max_tokens=max_tokens,
        temperature=temperature,
        quorum=quorum,
        budget_tokens=budget_tokens,
        budget_calls=budget_calls,
        metadata=meta or [],
        webhook=webhook,
    )
    body = request_body(question)
    live = watch if watch is not None else sys.stdout.isatty() and not as_json
    run(lambda: _ask(body, _Manner(url, api_key, idempotency_key, detach, live, as_json)), as_json=as_json)
