"""`deliberate ask`: submits a task and waits for the verdict."""

import asyncio
import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast
from uuid import uuid4

import typer
from rich.console import Console
from rich.text import Text

from app.api.schemas import Deliberation
from app.cli.client import GatewayClient, GatewayRefused, JsonObject, parsed
from app.cli.exits import CommandError, Exit, cause, exit_of, naming_options, output, run
from app.cli.files import STDIN, LocalFile, local_files, uploaded_evidence
from app.cli.options import ApiKeyOption, JsonOption, StackOption, UrlOption, nested_values, pairs
from app.cli.render.figures import quote_text
from app.cli.render.lines import heartbeats, print_to_stderr
from app.cli.render.report import deliberation_report
from app.cli.resources import full_id
from app.cli.target import gateway_client
from app.cli.watch import print_events, until_ended, watch_deliberation
from app.deliberation.quote import Quote
from app.deliberation.specification import OnDeadline, OnDisagreement, Priority

_OPTIONS = {
    "/task": "TASK",
    "/num_agents": "--agents",
    "/agents": "--council",
    "/parameters": "--parameter {}",
    "/constraints/rubric": "--rubric {}",
    "/constraints/requirements": "--requirement",
    "/constraints/timeout_seconds": "--timeout",
    "/constraints/on_deadline": "--on-deadline",
    "/constraints/agreement_min": "--agreement-min",
    "/constraints/on_disagreement": "--on-disagreement",
    "/actions/tools": "--tools {}",
    # As remedies name it.
    "actions": "--tools",
    "/budget/max_tokens": "--budget-tokens",
    "/budget/max_calls": "--budget-calls",
    "/budget/max_cost": "--budget-cost",
    "/sampling/temperature": "--temperature",
    "/sampling/max_tokens": "--max-tokens",
    "/metadata": "--meta {}",
    "/follows": "--follows",
    "/webhook": "--webhook",
    "/workspace/git": "--workspace",
    "/workspace/ref": "--ref",
    "/workspace/files": "--files",
    "/evidence": "--file",
    "Idempotency-Key": "--idempotency-key",
    **{f"/{name}": f"--{name}" for name in ("role", "strategy", "rounds", "quorum", "seed")},
}

GIT_WITHIN_S = 10.0
# The pattern takes any case and unknown names: the gateway knows its roles and suggests the closest.
_ROLE = re.compile(r"[\w-]+")


def parse_council(text: str) -> list[JsonObject]:
    """The `agents` of a request: `DEV:2,QA`, or a JSON list of members in the file of `@path`; raises BadParameter."""
    if text.startswith("@"):
        return _json_list(_file_text(text[1:], "--council"), "--council")
    agents: list[JsonObject] = []
    for entry in text.split(","):
        role, _, count = entry.strip().partition(":")
        if not _ROLE.fullmatch(role) or (count and not count.isdecimal()):
            raise typer.BadParameter(f"--council takes ROLE:COUNT,ROLE:COUNT or @file, not {text!r}")
        if count and not int(count):
            raise typer.BadParameter(f"--council: the count of {role} is 0; give 1 or more, or leave {role} out")
        agents.append({"role": role, "count": int(count or 1)})
    return agents


def parse_rubric(text: str) -> str | list[Any]:
    """A rubric: a text, or a JSON list that begins with `[`; `@path` names a file with either."""
    if text.startswith("@"):
        text = _file_text(text[1:], "--rubric")
    return _json_list(text, "--rubric") if text.lstrip().startswith("[") else text


def parse_tools(path: str) -> JsonObject:
    """The `actions` of a request: the tools of the JSON list in a file; raises BadParameter."""
    return {"tools": _json_list(_file_text(path, "--tools"), "--tools")}


def _json_list(text: str, option: str) -> list[Any]:
    try:
        items = json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{option} is no JSON list: {exc}") from exc
    if not isinstance(items, list):
        raise typer.BadParameter(f"{option} is no JSON list")
    if not items:
        raise typer.BadParameter(f"{option} is an empty list: give one entry or more, or leave it out")
    return cast("list[Any]", items)


def _file_text(path: str, option: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read().removeprefix("\ufeff")
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise typer.BadParameter(f"{option}: {path} cannot be read: {cause(exc)}") from exc


def task_text(task: str | None, task_file: str | None) -> str:
    """The task from the argument, a file, or stdin (`-` for either); raises typer.BadParameter unless one is given."""
    if (task is None) == (task_file is None):
        raise typer.BadParameter("give the task either as TASK or by --task-file")
    if task is not None and task != "-":
        return task
    return _file_text(task_file or "-", "--task-file")


def workspace_of(source: str, ref: str | None) -> JsonObject:
    """The workspace of a request: a URL as it is; of a path, the repository that holds it, as an absolute path.

    Standard error names uncommitted changes: agents do not see them.
    """
    if "://" in source:
        return _present(git=source, ref=ref)
    top = _git(source, "rev-parse", "--show-toplevel")
    if ref is None and top is not None and (changed := _git(top, "status", "--porcelain")):
        count = len(changed.splitlines())
        print_to_stderr(f"{top}: {count} uncommitted change{'s' * (count != 1)} will not be seen; commit first")
    return _present(git=top or str(Path(source).resolve()), ref=ref)


def files_of(names: Sequence[str]) -> JsonObject:
    """The workspace of a request that sends files, named from the current directory; raises typer.BadParameter.

    Of a directory all files below it are sent but hidden ones and links. Standard error names those that are no text.
    """
    here, files = Path.cwd(), dict[str, str]()
    for name in names:
        path = Path(name).resolve()
        base = here if path.is_relative_to(here) else path.parent
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            place = unicodedata.normalize("NFC", file.relative_to(base).as_posix())
            if file == path:
                files[place] = _file_text(name, "--files")
            elif file.is_file() and not _is_left_out(file, path):
                if (text := _text_of(file)) is None:
                    print_to_stderr(f"{place} is not sent: it is no UTF-8 text")
                else:
                    files[place] = text
    return {"files": [{"path": path, "text": text} for path, text in files.items()]}


def _is_left_out(path: Path, below: Path) -> bool:
    return path.is_symlink() or any(part.startswith(".") for part in path.relative_to(below).parts)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def _git(directory: str, *arguments: str) -> str | None:
    """The output of git in the user's own repository; None after a failure of git."""
    try:
        completed = subprocess.run(
            ["git", "-C", directory, *arguments], capture_output=True, text=True, timeout=GIT_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()


def _present(**fields: Any) -> JsonObject:  # noqa: ANN401 -- the fields of a JSON object
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


async def _ask(
    body: JsonObject,
    gateway: GatewayClient,
    idempotency_key: str,
    attached: Sequence[LocalFile],
    *,
    detach: bool,
    live: bool,
    as_json: bool,
) -> Exit:
    async with gateway:
        body = await _resolved(body, gateway, attached)
        async with heartbeats(lambda: f"still waiting for {gateway.url} to accept it", print_to_stderr):
            resource = await _submit(gateway, body, idempotency_key)
        deliberation_id = str(resource["id"])
        if detach:
            return output(resource, lambda: Text(deliberation_id), as_json=as_json)
        if "task" not in resource:
            raise CommandError(
                Exit.REFUSED,
                "insufficient_scope",
                f"{deliberation_id} was accepted and continues, but this key lacks the scope read",
                remedy=f"`deliberate watch {deliberation_id}` with another key, or submit with --detach",
            )
        try:
            if not live:
                resource = await until_ended(gateway, deliberation_id, print_to_stderr)
            elif as_json:
                resource = await print_events(gateway, deliberation_id)
            else:
                resource = await watch_deliberation(gateway, deliberation_id, Console(highlight=False))
        except asyncio.CancelledError:
            commands = (f"  deliberate {name} {deliberation_id}{gateway.options}" for name in ("watch", "cancel"))
            hint = Text("\n".join([f"{deliberation_id} continues:", *commands]), "dim")
            Console(stderr=True, highlight=False).print(hint)
            raise
        deliberation = parsed(Deliberation, resource)
        if not live:
            output(resource, lambda: deliberation_report(deliberation), as_json=as_json)
        return exit_of(deliberation.status)


async def _resolved(body: JsonObject, gateway: GatewayClient, attached: Sequence[LocalFile]) -> JsonObject:
    """The body with whole ids of what it follows, and with the attached files, which are uploaded, as evidence."""
    follows = [await full_id(gateway, id) for id in body.get("follows", [])]
    return body | _present(follows=follows, evidence=await uploaded_evidence(gateway, attached))


async def _price(body: JsonObject, gateway: GatewayClient, attached: Sequence[LocalFile], *, as_json: bool) -> Exit:
    async with gateway:
        body = await _resolved(body, gateway, attached)
        with naming_options(_OPTIONS):
            document = await gateway.request("POST", "/deliberations/quote", body=body)
    return output(document, lambda: quote_text(parsed(Quote, document)), as_json=as_json)


async def _submit(gateway: GatewayClient, body: JsonObject, idempotency_key: str) -> JsonObject:
    try:
        with naming_options(_OPTIONS):
            return await gateway.submit(body, idempotency_key)
    except GatewayRefused as error:
        if any(fault.field.startswith("--parameter") for fault in error.fields):
            error.remedy = f"`deliberate strategies {body.get('strategy', 'council')}` lists its parameters"
        elif any(fault.field == "--strategy" for fault in error.fields):
            error.remedy = "`deliberate strategies` describes them"
        elif any("role" in fault.detail for fault in error.fields):
            error.remedy = "`deliberate roles` describes them"
        raise


CouncilOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEV:2,QA:1|@FILE",
        help="A mixed council, instead of --role and --agents; @file has a JSON list of members with their personas.",
    ),
]
ToolsOption = Annotated[
    str | None,
    typer.Option(
        "--tools", metavar="PATH", help="JSON list of your tools: the council decides which to call. - is stdin."
    ),
]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Parameter of the strategy, JSON or text; a.b=1 nests; repeatable."),
]


# Long by its options: typer reads each from a parameter.
def ask(
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="The task to deliberate on.")] = None,
    url: UrlOption = None,
    data_dir: StackOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
    task_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Read the task from a file; - is stdin.")
    ] = None,
    attached: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            "--image",
            metavar="PATH",
            help="Text, PDF, docx or picture for every agent; - is stdin; repeatable.",
        ),
    ] = None,
    role: Annotated[str | None, typer.Option(help="Role of every agent. (default: DEV)")] = None,
    agents: Annotated[int | None, typer.Option(metavar="N", help="Number of agents. (default: 3, of single 1)")] = None,
    council: CouncilOption = None,
    strategy: Annotated[str | None, typer.Option(help="See `deliberate strategies`. (default: council)")] = None,
    parameter: ParameterOption = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of critique and revision. (default: 1)")] = None,
    rubric: Annotated[str | None, typer.Option(help="Criteria: a text, a JSON list, or @file with either.")] = None,
    requirement: Annotated[list[str] | None, typer.Option(help="A requirement for answers; repeatable.")] = None,
    timeout: Annotated[int | None, typer.Option(metavar="SECONDS", help="Deadline. (default: 300)")] = None,
    on_deadline: Annotated[
        OnDeadline | None, typer.Option(help="Whether the deadline ends in the best verdict so far. (default: best)")
    ] = None,
    tools: ToolsOption = None,
    agreement_min: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of the members that must give the answer.")
    ] = None,
    on_disagreement: Annotated[
        OnDisagreement | None, typer.Option(help="What stands where fewer give it. (default: best)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random choices.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token limit of one completion. (default: 2048)")] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of the first agent. (default: 0.7)")] = None,
    quorum: Annotated[int | None, typer.Option(help="Number of answers that a stage needs.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="Token limit of all calls together.")] = None,
    budget_calls: Annotated[int | None, typer.Option(help="Limit on the number of calls.")] = None,
    budget_cost: Annotated[float | None, typer.Option(help="Limit on the cost, in the currency of the prices.")] = None,
    meta: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Metadata; repeatable.")] = None,
    follows: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="An ended deliberation to build on; repeatable."),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="PATH|URL", help="A repository that the agents may read.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Files that the agents may read, or a directory; repeatable."),
    ] = None,
    ref: Annotated[str | None, typer.Option(help="Branch, tag or commit of it. (default: HEAD)")] = None,
    price: Annotated[bool, typer.Option("--quote", help="Print what it would cost, and start nothing.")] = False,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Receiver of a signed webhook at the end.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "--no-wait", help="Print the id and exit at once.")] = False,
    watch: Annotated[bool | None, typer.Option(help="Show it live. (default: in a terminal)")] = None,
    priority: Annotated[
        Priority | None, typer.Option(help="Whether its calls yield to interactive work. (default: interactive)")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="LABEL", help="Label of the clusters that may do it.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="A repeat with this key returns the same one.")] = None,
) -> None:
    """Submit a task and wait for the verdict.

    A terminal shows the council live; elsewhere only the verdict is printed. --json prints the resource at the end.
    --json --watch prints every event as it comes.
    """
    if council is not None and (role is not None or agents is not None):
        raise typer.BadParameter("--council names the whole council: omit --role and --agents")
    if ref is not None and workspace is None:
        raise typer.BadParameter("--ref names a commit of --workspace: give both")
    if files and workspace is not None:
        raise typer.BadParameter("--files are the workspace: omit --workspace")
    if STDIN in (attached or []) and STDIN in (task, task_file):
        raise typer.BadParameter("--file - and the task would both read stdin: give one of them another way")
    # Only the given options, so that every default is the gateway's.
    body = _present(
        task=task_text(task, task_file),
        role=role,
        num_agents=agents,
        agents=None if council is None else parse_council(council),
        strategy=strategy,
        parameters=nested_values(parameter or [], "--parameter"),
        rounds=rounds,
        constraints=_present(
            rubric=None if rubric is None else parse_rubric(rubric),
            requirements=requirement,
            timeout_seconds=timeout,
            on_deadline=on_deadline,
            agreement_min=agreement_min,
            on_disagreement=on_disagreement,
        ),
        actions=None if tools is None else parse_tools(tools),
        quorum=quorum,
        budget=_present(max_tokens=budget_tokens, max_calls=budget_calls, max_cost=budget_cost),
        sampling=_present(temperature=temperature, max_tokens=max_tokens),
        seed=seed,
        priority=priority,
        cluster=cluster,
        metadata=pairs(meta or [], "--meta"),
        follows=follows,
        workspace=files_of(files) if files else None if workspace is None else workspace_of(workspace, ref),
        webhook=_present(url=webhook),
    )
    live = watch if watch is not None else sys.stdout.isatty() and not as_json

    async def main() -> Exit:
        gateway, key = gateway_client(url, data_dir, api_key), idempotency_key or uuid4().hex
        with local_files(attached or []) as opened:
            if price:
                return await _price(body, gateway, opened, as_json=as_json)
            return await _ask(body, gateway, key, opened, detach=detach, live=live, as_json=as_json)

    run(main, as_json=as_json)
